"""PyTorch modules that torch.export can trace: as chains of layers with ReLU, or cut before their last linear layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.elastic.slo_nn.importers.chain import Chain, from_graph
from slotool.elastic.slo_nn.importers.cutting import Cut, dense_layer, require_one_output
from slotool.elastic.slo_nn.mlp import MLP
from slotool.elastic.supernets.importing import import_calls
from slotool.errors import GraphError, InputError
from slotool.graphs.capture.loading import load_torch
from slotool.graphs.capture.torch.calls import Calls, arguments_of, label_of, parameters
from slotool.graphs.capture.torch.capture import WANTS_WHOLE_NUMBERS, inference, quiet, without_cache
from slotool.graphs.capture.torch.nodes import plain_name
from slotool.llvm import without_late_triton
from slotool.models.adapters.torch_program import TorchModuleModel, datatype_of_torch
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.printable import reason

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram


def from_torch(module: nn.Module, input_shape: Sequence[int]) -> MLP:
    """Return the network of a PyTorch module in inference mode; the module itself does not change.

    ``input_shape``: shape of one example, without the batch. Raises ``InputError`` naming the layer that breaks the
    chain, or as the module takes whole numbers; ``GraphError`` when it cannot be traced.
    """
    try:
        calls = Calls.of(module, input_shape)
    except GraphError as error:
        if WANTS_WHOLE_NUMBERS in str(error):  # such as token ids
            raise InputError(str(error)) from error
        raise
    # Before weights are copied, which may be many.
    for operator in calls.graph.operators:
        if len(operator.inputs) > 1:
            raise Chain(tuple(input_shape)).refuse(operator.name, "where the network branches")
    network = import_calls(calls)
    state = {name: tensor.numpy() for name, tensor in network.module().state_dict().items()}
    return from_graph(network.graph, state, network.epsilon)


ENDINGS = ("softmax", "_softmax", "log_softmax", "_log_softmax", "dropout", "clone", "contiguous", "alias", "detach")
# An example of a traced batch; 1 would be taken for a fixed size.
TRACED_EXAMPLES = 2


def cut_torch(name: str, input_shape: Sequence[int], folder: Path) -> Cut:
    """Cut the torch module ``name``, module:factory, as ``cut``."""
    module = load_torch(name).cpu()
    return cut_module(module, name, input_shape, folder)


@without_late_triton()
def cut_module(module: nn.Module, name: str, input_shape: Sequence[int], folder: Path) -> Cut:
    """Cut a module in memory, as ``cut``; it is left in inference mode."""
    import torch

    module = module.eval().requires_grad_(False)
    with inference(module), without_cache(module), quiet():
        program, dtype = _traced(module, name, input_shape)
        features, weights, bias, label = _last_layer(name, program)
        positions = _positions(features)
        front = program.module(check_guards=False)
        _end_at(front, features.name, last_position=positions is not None)
        traced = _exported(front, name, input_shape, dtype)
        path = folder / "front.pt2"
        torch.export.save(traced, path)
        # An answer by other than one position's scores would be no fair comparison.
        plain = positions is None and not isinstance(_answers(program), Mapping)
        whole = module if plain else _scoring(front, weights, bias)
    specs = (TensorSpec("input", datatype_of_torch(dtype), (FREE, *input_shape)),)
    signature = Signature(specs, (TensorSpec("output", datatype_of_torch(weights.dtype), (FREE, len(weights))),))
    rows, shift = weights.float().numpy(), None if bias is None else bias.float().numpy()
    return Cut(
        path, dense_layer(label, rows, shift), TorchModuleModel(whole, signature, name=name), "PyTorch", positions
    )


def _traced(module: nn.Module, name: str, input_shape: Sequence[int]) -> tuple[ExportedProgram, Any]:
    """Return the module on inputs of the datatype of its weights or, where it takes none of these, on whole numbers."""
    import torch

    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    try:
        return _exported(module, name, input_shape, dtype), dtype
    except InputError as error:
        try:
            return _exported(module, name, input_shape, torch.int64), torch.int64
        except InputError as whole:
            # A network of tokens says of other numbers only that they are none.
            message = whole if WANTS_WHOLE_NUMBERS in str(error.__cause__) else error
            raise message from message.__cause__


def _exported(module: Any, name: str, input_shape: Sequence[int], dtype: Any) -> ExportedProgram:
    """Export with any batch size if the module allows that, else for one example."""
    import torch

    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad():
            example = torch.zeros(TRACED_EXAMPLES, *input_shape, dtype=dtype)
            return torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    except Exception:
        # Export reports what it cannot trace through dozens of classes; one example may be traced where any number
        # cannot.
        try:
            with torch.no_grad():
                return torch.export.export(module, (torch.zeros(1, *input_shape, dtype=dtype),))
        except Exception as error:
            raise InputError(f"{name} cannot be traced on inputs {tuple(input_shape)} ({reason(error)})") from error


def _last_layer(name: str, program: ExportedProgram) -> tuple[Any, Any, Any, str]:
    """Return the node that makes the features, weights [classes, features], bias, and the layer's name."""
    constants = parameters(program)
    last = _scores(name, program)
    while plain_name(last) in ENDINGS:
        last = last.all_input_nodes[0]
    arguments = arguments_of(last, constants)
    features = arguments.get("input")
    if plain_name(last) != "linear" or features is None or len(features.meta["val"].shape) not in (2, 3):
        what = plain_name(last)
        raise InputError(f"{name}: the last layer {label_of(last)!r} is {what}, not a linear layer on features")
    return features, arguments["weight"].detach(), arguments["bias"], label_of(last)


def _scores(name: str, program: ExportedProgram) -> Any:
    """Return the node of the network's output: the only one or, of several by name, that of the logits."""
    outputs = program.graph_signature.user_outputs
    scores = outputs[0]
    if len(outputs) != 1:
        answers = _answers(program)
        named = answers.get("logits") if isinstance(answers, Mapping) else None
        require_one_output(name, 1 if isinstance(named, str) else len(outputs))
        scores = named
    nodes = {node.name: node for node in program.graph.nodes}
    return nodes[str(scores)]


def _answers(program: ExportedProgram) -> Any:
    """Return the call's result with node names for tensors: a mapping for networks of transformers."""
    from torch.utils import _pytree

    names = [str(output) for output in program.graph_signature.user_outputs]
    return _pytree.tree_unflatten(names, program.call_spec.out_spec)


def _positions(features: Any) -> int | None:
    """Return the number of sequence positions with features; None if an example has one row of them."""
    _, *positions, _ = features.meta["val"].shape
    return int(positions[0]) if positions else None


def _scoring(front: Any, weights: Any, bias: Any) -> nn.Module:
    """Return a module of ``front`` and the last layer on its result: no other position is scored."""
    import torch

    class Scoring(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            (features,) = front(x)
            return torch.nn.functional.linear(features, weights, bias)

    return Scoring()


def _end_at(front: Any, features: str, *, last_position: bool) -> None:
    """Let a traced module give what the call ``features`` makes, at the last position or whole, and nothing else."""
    import torch

    graph = front.graph
    output = next(node for node in graph.nodes if node.op == "output")
    call = next(node for node in graph.nodes if node.name == features)
    if last_position:
        with graph.inserting_after(call):
            call = graph.call_function(torch.ops.aten.select.int, (call, 1, -1))
    output.args = ((call,),)
    graph.eliminate_dead_code()
    graph._codegen = torch.fx.graph.CodeGen()
    front.delete_all_unused_submodules()
    front.recompile()
