"""The calls of a torch module behind its captured graph: their weights, their arguments, and how to run them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from slotool.errors import GraphError, InputError
from slotool.graphs.capture.batch_axis import MAX_TRACES, batch_size, is_ambiguous, sizes_beside
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.aten_arithmetic import ACTIVATIONS
from slotool.graphs.capture.torch.capture import inference, quiet
from slotool.graphs.capture.torch.flops import without_fast_paths
from slotool.graphs.capture.torch.network import Forms, NetworkWalk
from slotool.graphs.capture.torch.nodes import given_arguments, plain_name, shape_of
from slotool.graphs.capture.torch.program import export, uncompiled
from slotool.graphs.graph import OperatorGraph
from slotool.printable import reason

PRODUCTS = ("linear", "addmm", "mm", "matmul")


class Calls:
    """An exported program of one input and one output.

    ``graph``: as captured; its operators have the names of the calls. ``nodes``: by name. ``batch``: the size of the
    batch that it was exported on. Calls of one operator are asked for by its name.
    """

    def __init__(self, program: ExportedProgram, input_shape: Sequence[int], batch: int, forms: Forms, kind: str):
        self._program, self.batch, self.kind = program, batch, kind
        drafts = Drafts("torch")
        source = drafts.add("input", "InputLayer", (), {"shape": tuple(input_shape)}, input_shape)
        walk = NetworkWalk(drafts, batch, forms, "", layers_alone=True)
        signature = program.graph_signature
        self._constants = parameters(program)
        for node in program.graph.nodes:
            if node.op == "placeholder":
                walk.place(node, source if node.name in signature.user_inputs else None)
            elif node.op == "get_attr":
                walk.place(node, None)
            elif node.op == "call_function":
                walk.call(node)
                self._fold(node)
        outputs = [node for node in walk.names if node.name in signature.user_outputs]
        if len(signature.user_outputs) != 1 or not outputs:
            raise InputError(f"{kind} gives {len(signature.user_outputs)} outputs; one is expected, the logits")
        self.graph: OperatorGraph = drafts.graph([walk.names[outputs[0]]], "torch")
        self.nodes: dict[str, fx.Node] = {node.name: node for node in program.graph.nodes}
        self._drafts, self._walk = drafts, walk

    @classmethod
    def of(cls, module: nn.Module, input_shape: Sequence[int]) -> Calls:
        """Record the calls of ``module`` in inference mode and float32. Raises ``GraphError`` where tracing fails."""
        kind = type(module).__name__
        try:
            module, _ = uncompiled(module)
        except GraphError as error:
            raise InputError(str(error)) from error
        if any(tensor.is_floating_point() and tensor.dtype != torch.float32 for tensor in module.parameters()):
            module = copy.deepcopy(module).float()
        module = module.cpu()
        sizes = [tuple(input_shape), *(tuple(p.shape) for p in [*module.parameters(), *module.buffers()])]
        with inference(module), quiet(), without_fast_paths():
            for _ in range(MAX_TRACES):
                batch = batch_size(sizes, small=True)
                try:
                    program = export(module, [torch.zeros(batch, *input_shape)])
                except Exception as error:
                    # Export reports what it cannot trace through dozens of classes.
                    raise GraphError(
                        f"{kind} cannot be traced on inputs {tuple(input_shape)} ({reason(error)})"
                    ) from error
                shapes = [shape for node in program.graph.nodes if (shape := shape_of(node))]
                if not is_ambiguous(shapes, batch):
                    break
                sizes += sizes_beside(shapes, batch)
            return cls(program, input_shape, batch, Forms(module), kind)

    def source(self, node: fx.Node) -> str:
        """Return the operator with the output ``node``."""
        return self._drafts.source(self._walk.names[node])

    def activation_of(self, operator: str) -> str:
        """Return the call of the activation that is part of an operator, else the operator."""
        calls = (
            name for name, node in self.nodes.items() if plain_name(node) in ACTIVATIONS and node in self._walk.names
        )
        return next((name for name in calls if self.source(self.nodes[name]) == operator), operator)

    def name(self, operator: str) -> str:
        """Return the plain name of an operator's call: ``add`` for ``add_.Tensor``."""
        return plain_name(self.nodes[operator])

    def is_data(self, value: Any) -> bool:
        return value in self._walk.names

    def arguments(self, operator: str) -> dict[str, Any]:
        """Return the arguments by their schema's names, defaults filled in; constants as tensors, data as nodes."""
        return arguments_of(self.nodes[operator], self._constants)

    def value(self, operator: str, argument: str) -> Tensor | None:
        """Return a constant among the arguments, or None."""
        constant = self.arguments(operator).get(argument)
        return constant if isinstance(constant, Tensor) else None

    def constant(self, operator: str) -> Tensor | None:
        """Return the only constant tensor of a call, None where there is none or several."""
        constants = [
            self._constants[value] for value in self.nodes[operator].all_input_nodes if value in self._constants
        ]
        tensors = [value for value in constants if isinstance(value, Tensor)]
        return tensors[0] if len(tensors) == 1 else None

    def data_position(self, operator: str) -> int:
        """Return the position of the data in a call with one data input, 0 for the first of its tensors."""
        return [self.is_data(value) for value in _flat(self.nodes[operator].args)].index(True)

    def is_product(self, operator: str) -> bool:
        return self.name(operator) in PRODUCTS

    def product(self, operator: str) -> tuple[Tensor, Tensor | None]:
        """Return the weight [units, features] and bias of a product with a matrix."""
        return self.product_of(self.nodes[operator])

    def product_of(self, node: fx.Node) -> tuple[Tensor, Tensor | None]:
        arguments, call = arguments_of(node, self._constants), plain_name(node)
        if call == "linear":
            return arguments["weight"], arguments["bias"]
        if call == "addmm":
            beta, alpha = arguments.get("beta", 1), arguments.get("alpha", 1)
            return alpha * arguments["mat2"].T, beta * arguments["self"]
        return arguments["other" if call == "matmul" else "mat2"].T, None

    def label(self, operator: str) -> str:
        """Return the user's name of the layer that an operator is part of, if the trace has it."""
        return label_of(self.nodes[operator])

    def refuse(self, operator: str, why: str) -> InputError:
        return InputError(f"layer {self.label(operator)!r} cannot be imported: {why}")

    def moved(self, node: fx.Node, values: dict[fx.Node, Tensor]) -> Any:
        """Return the result of a call that only moves ``values``, with constants unchanged."""
        all_values = {**self._constants, **values}
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), all_values.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def run(self, x: Tensor) -> Tensor:
        """Return the user's network on float32 [batch, *input_shape]."""
        answers: Tensor = self._program.module(check_guards=False)(x)
        return answers

    def values(self, x: Tensor, names: set[str]) -> dict[str, Tensor]:
        """Return the outputs of calls by their names."""
        recorder = _Recorder(self._program.module(check_guards=False), names)
        recorder.run(x)
        return recorder.outputs

    def _fold(self, node: fx.Node) -> None:
        """Compute what hangs on weights alone, such as their transpose."""
        if all(value in self._constants for value in node.all_input_nodes):
            with torch.no_grad():
                self._constants[node] = self.moved(node, {})


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, names: set[str]):
        super().__init__(module)
        self._names, self.outputs = names, dict[str, Tensor]()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self._names and isinstance(value, Tensor):
            self.outputs[n.name] = value
        return value


def arguments_of(node: fx.Node, constants: dict[fx.Node, Any]) -> dict[str, Any]:
    """Return arguments by name, as ``Calls.arguments``."""
    return {
        name: constants.get(value, value) if isinstance(value, fx.Node) else value
        for name, value in given_arguments(node).items()
    }


def label_of(node: fx.Node) -> str:
    """Return the module's name if the trace has it, else the call's."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix("L['self'].").strip(".") or node.name


def parameters(program: ExportedProgram) -> dict[fx.Node, Any]:
    """Return the parameters, buffers and constants by the node that stands for them."""
    signature, state = program.graph_signature, {**program.constants, **program.state_dict}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names.update(getattr(signature, "inputs_to_lifted_tensor_constants", {}))
    return {n: state[names[n.name]].detach() for n in program.graph.nodes if n.op == "placeholder" and n.name in names}


def _flat(args: Sequence[Any]) -> list[Any]:
    return [value for arg in args for value in (arg if isinstance(arg, list | tuple) else [arg])]
