"""An operator graph as a torch module: the one place that turns a description into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.indices import Indices, is_trained
from slotool.graphs.operators import OPERATORS, Operator, elementwise
from slotool.graphs.operators.base import cannot_be_built
from slotool.graphs.operators.torch_parts import Constant, Function
from slotool.llvm import without_late_triton

# Builder of a module, or a function of tensors, from an operator on a device.
Builder = Callable[[Operator, str], Callable[..., Tensor]]
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor] | None] = {
    None: None,
    **{
        name: getattr(torch, names.torch, None) or getattr(functional, names.torch)
        for name, names in elementwise.ACTIVATIONS.items()
    },
    # Over channels: the second axis of a batch of images, else the last.
    "softmax": lambda x: torch.softmax(x, dim=1 if x.ndim == 4 else -1),
}


class GraphModule(nn.Module):
    """Module that runs an ``OperatorGraph``; ``layers``: functions that build its unknown operators, by name.

    It takes the inputs in order, [batch, *shape] each, float32 unless the graph states otherwise; output [batch,
    *graph.output_shape]. Parameters are named ``layers.<operator>.weight`` and ``.bias``; ``of`` maps an operator's
    name to its layer. ``device='meta'`` builds the shapes without their memory. Constants that are not trained are
    drawn: places of a lookup within bounds, all else ones. Raises ``GraphError`` for an operator or activation that
    cannot be built.
    """

    # Drawing an embedding's weights on the meta device imports what imports Triton.
    @without_late_triton()
    def __init__(self, graph: OperatorGraph, device: str = "cpu", layers: Mapping[str, Builder] | None = None):
        super().__init__()
        self.graph = graph
        self.layers = nn.ModuleDict()
        self._steps: list[tuple[str, tuple[str, ...], nn.Module, Callable[[Tensor], Tensor] | None]] = []
        indices = Indices(graph)
        for operator in graph.operators:
            if operator.op == "InputLayer":
                continue
            if operator.op == "Constant":
                layer: nn.Module = _constant(operator, indices, device)
            else:
                layer = _build(operator, device, layers or {})
            if operator.name in indices.unsure:
                layer = _Bounded(layer, *indices.bound_of(operator))
            self.layers[_key(operator.name, self.layers)] = layer
            self._steps.append((operator.name, operator.inputs, layer, _activation(operator)))
        order = [operator.name for operator in graph.operators]
        self.of = {name: layer for name, _, layer, _ in self._steps}
        self._inputs = [operator.name for operator in graph.inputs]
        self._is_chain = all(inputs == (before,) for before, (_, inputs, _, _) in zip(order, self._steps, strict=False))
        last_use = {source: name for name, inputs, _, _ in self._steps for source in inputs}
        self._used_up: dict[str, list[str]] = {}
        for source, name in last_use.items():
            self._used_up.setdefault(name, []).append(source)
        for name, *_ in self._steps[:-1]:
            if name not in last_use:
                # Nothing reads it.
                self._used_up.setdefault(name, []).append(name)

    def forward(self, *inputs: Tensor, between: Callable[[], None] | None = None) -> Tensor:
        """Run the graph; ``between`` is called before each operator, and its errors pass through."""
        if self._is_chain:
            (x,) = inputs
            for _, _, layer, activation in self._steps:
                if between is not None:
                    between()
                x = layer(x) if activation is None else activation(layer(x))
            return x
        values = dict(zip(self._inputs, inputs, strict=True))
        for name, sources, layer, activation in self._steps:
            if between is not None:
                between()
            value = layer(*(values[source] for source in sources))
            values[name] = value if activation is None else activation(value)
            # Memory still in a cache is then reused by the next value, as in a module written by hand.
            for source in self._used_up.get(name, ()):
                del values[source]
        return values[self.graph.operators[-1].name]


class _Bounded(nn.Module):
    """A lookup whose places are computed, kept within bounds."""

    def __init__(self, layer: nn.Module, position: int, limit: int):
        super().__init__()
        self.layer, self._position, self._limit = layer, position, limit

    def forward(self, *inputs: Tensor) -> Tensor:
        bounded = list(inputs)
        bounded[self._position] = bounded[self._position].clamp(0, self._limit - 1)
        answer: Tensor = self.layer(*bounded)
        return answer


def _constant(operator: Operator, indices: Indices, device: str) -> Constant:
    if is_trained(operator):
        return Constant(operator.shape, None, device)
    # Values, which nobody lends later, are there at once.
    builder_device = "cpu" if device == "meta" else device
    return Constant(
        operator.shape,
        torch.from_numpy(indices.filled(operator, np.random.default_rng(0), 1)).to(builder_device),
        builder_device,
    )


def _key(name: str, layers: nn.ModuleDict) -> str:
    """Return a free key for a layer; dots would nest it, and names such as ``type`` are methods of the dictionary."""
    key = name.replace(".", "_") or "_"
    while key in layers or hasattr(layers, key):
        key += "_"
    return key


def _activation(operator: Operator) -> Callable[[Tensor], Tensor] | None:
    name = operator.attributes.get("activation")
    if name not in ACTIVATIONS:
        raise GraphError(f"operator {operator.name!r}: unknown activation {name!r}")
    return ACTIVATIONS[name]


def _build(operator: Operator, device: str, layers: Mapping[str, Builder]) -> nn.Module:
    if operator.op in layers:
        layer = layers[operator.op](operator, device)
    elif operator.known:
        layer = OPERATORS[operator.op].torch(operator, device)
    else:
        raise cannot_be_built(operator, "torch")
    return layer if isinstance(layer, nn.Module) else Function(layer)
