"""PyTorch modules as operator graphs: by torch.export, and piece by piece along a torch.fx trace where that fails."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.aten import SAME, Call, translate
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import Shape

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.export import ExportedProgram

# Two examples, so that what squeezes axes of size one leaves the batch alone.
BATCH = 2


def capture_torch(module: nn.Module, input_shape: Sequence[int]) -> OperatorGraph:
    """The graph of a module of one input, in inference mode, ``input_shape`` without the batch.

    Weights are parameters and running statistics; one that two operators share counts for each. Operators that
    slotool does not know are kept as ``torch.<name>`` with the shape and the weights they have and 0 FLOPs: see
    ``OperatorGraph.unknown``. The module is left as it was.
    Raises ``GraphError`` when the module cannot run on such inputs or its forward cannot be traced.
    """
    drafts = Drafts("torch")
    source = drafts.add("input", "InputLayer", (), {"shape": tuple(input_shape)}, input_shape)
    with inference(module), _quiet():
        example = _example(module, input_shape)
        try:
            program = export(module, [example])
        except Exception as error:
            # Export reports what it cannot trace through dozens of classes; whatever it was, fx may manage.
            from slotool.graphs.capture.fx import add_pieces

            outputs = add_pieces(drafts, module, example, source, error)
        else:
            outputs = add_program(drafts, program, [source])
    if all(drafts.source(name) == source for name in outputs):
        raise GraphError(f"{type(module).__name__} computes nothing from its input")
    return drafts.graph(outputs, "torch")


def export(module: nn.Module, examples: Sequence[torch.Tensor]) -> ExportedProgram:
    """The module as ATen calls. Raises whatever torch.export raises."""
    import torch

    with torch.no_grad():
        return torch.export.export(module, tuple(examples))


def add_program(drafts: Drafts, program: ExportedProgram, sources: Sequence[str], prefix: str = "") -> list[str]:
    """Append every call of an exported program that takes ``sources``; the names of its outputs."""
    walk = _Walk(drafts, prefix)
    inputs = iter(sources)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            is_input = node.name in program.graph_signature.user_inputs
            walk.place(node, next(inputs) if is_input else None)
        elif node.op == "get_attr":
            walk.place(node, None)
        elif node.op == "call_function":
            walk.call(node)
    results = next(node for node in reversed(program.graph.nodes) if node.op == "output").all_input_nodes
    wanted = set(program.graph_signature.user_outputs)
    return [walk.names[node] for node in results if node in walk.names and node.name in wanted]


class _Walk:
    """Goes through an exported graph node by node.

    ``names`` holds the layer of every value that depends on the network's input, ``constants`` the number of weights
    behind every value that does not.
    """

    def __init__(self, drafts: Drafts, prefix: str):
        self._drafts, self._prefix = drafts, prefix
        self.names: dict[Any, str] = {}
        self.constants: dict[Any, int] = {}

    def place(self, node: Any, source: str | None) -> None:
        """An input of the program: ``source`` for data, None for a parameter, buffer or constant."""
        if source is not None:
            self.names[node] = source
        else:
            self.constants[node] = _count(node)

    def call(self, node: Any) -> None:
        data = [value for value in node.all_input_nodes if value in self.names]
        weights = sum(self.constants.get(value, 0) for value in node.all_input_nodes)
        shape = shape_of(node)
        if not data or shape is None:
            # A constant made of constants, or an assertion, or a size: nothing that takes time or has an output.
            self.constants[node] = weights
            return
        if node.target is operator.getitem and node.args[1] == 0:
            self.names[node] = self.names[data[0]]
            return
        name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
        self.names[node] = self._add(node, name, data, shape[1:], weights)

    def _add(self, node: Any, name: str, data: list[Any], shape: Shape, weights: int) -> str:
        inputs = [self.names[value] for value in data]
        label = self._prefix + node.name
        call = Call(_arguments(node), tuple(self._drafts.shape(source) for source in inputs), shape)
        translated = translate(name, call)
        if translated == SAME:
            return self._drafts.drop(label, inputs[0])
        if translated is None:
            return self._drafts.add(label, name, inputs, None, shape, weights)
        op, attributes = translated
        if op == "Activation":
            return self._drafts.add_activation(label, attributes["activation"], inputs, shape)
        return self._drafts.add(label, op, inputs, attributes, shape, weights)


def _arguments(node: Any) -> Mapping[str, Any]:
    """Arguments by their schema's names, defaults filled in, tensors as their shapes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    defaults = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    return {name: shape_of(value) if hasattr(value, "meta") else value for name, value in (defaults | given).items()}


def shape_of(node: Any) -> Shape | None:
    """Shape of a node's output with its batch, of the first tensor where there are several; None for no tensor."""
    value = node.meta.get("val")
    while isinstance(value, tuple | list) and value:
        value = value[0]
    shape = getattr(value, "shape", None)
    return tuple(int(size) for size in shape) if shape is not None else None


def _count(node: Any) -> int:
    """How many weights a constant is; counters, such as a batch normalisation's, are none."""
    value = node.meta.get("val")
    return value.numel() if hasattr(value, "numel") and value.is_floating_point() else 0


def _example(module: nn.Module, input_shape: Sequence[int]) -> torch.Tensor:
    import torch

    if not input_shape or min(input_shape) < 1:
        raise GraphError(f"input shape {list(input_shape)} has a size below 1")
    tensors = (tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.is_floating_point())
    like = next(tensors, torch.zeros(()))
    return torch.zeros(BATCH, *input_shape, dtype=like.dtype, device=like.device)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns, logs and prints about a trace that failed, for its authors; we say what matters in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """The module in inference mode, afterwards every part in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
