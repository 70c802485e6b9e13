"""An operator graph as a torch module: the one place that turns a description into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from slotool.errors import GraphError
from slotool.graphs.graph import Operator, OperatorGraph
from slotool.graphs.operators import Shape, pair

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor] | None] = {
    None: None,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, dim=-1),
}


class GraphModule(nn.Module):
    """Runs an ``OperatorGraph`` whose operators are all known.

    Input float32 [batch, *graph.input_shape], output [batch, *graph.output_shape]. Parameters are named
    ``layers.<operator>.weight`` and ``.bias``. ``device='meta'`` builds the shapes without their memory.
    Raises ``GraphError`` for an operator or activation that cannot be built.
    """

    def __init__(self, graph: OperatorGraph, device: str = "cpu"):
        super().__init__()
        self.graph = graph
        self.layers = nn.ModuleDict()
        self._steps: list[tuple[str, tuple[str, ...], nn.Module, Callable[[Tensor], Tensor] | None]] = []
        shapes = {operator.name: operator.shape for operator in graph.operators}
        for operator in graph.operators:
            if operator.op == "InputLayer":
                continue
            layer = _build(operator, [shapes[name] for name in operator.inputs], device)
            self.layers[operator.name.replace(".", "_")] = layer
            self._steps.append((operator.name, operator.inputs, layer, _activation(operator)))
        order = [operator.name for operator in graph.operators]
        self._is_chain = all(inputs == (before,) for before, (_, inputs, _, _) in zip(order, self._steps, strict=False))

    def forward(self, x: Tensor) -> Tensor:
        if self._is_chain:
            for _, _, layer, activation in self._steps:
                x = layer(x) if activation is None else activation(layer(x))
            return x
        values = {self.graph.operators[0].name: x}
        for name, inputs, layer, activation in self._steps:
            value = layer(*(values[source] for source in inputs))
            values[name] = value if activation is None else activation(value)
        return values[self.graph.operators[-1].name]


class _Sum(nn.Module):
    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        for other in others:
            first = first + other
        return first


class _Concatenation(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=1)


class _GlobalAverage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def _activation(operator: Operator) -> Callable[[Tensor], Tensor] | None:
    name = operator.attributes.get("activation")
    if name not in ACTIVATIONS:
        raise GraphError(f"operator {operator.name!r}: unknown activation {name!r}")
    return ACTIVATIONS[name]


def _build(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    if operator.op not in _LAYERS:
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in torch")
    return _LAYERS[operator.op](operator, inputs, device)


def _dense(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes = operator.attributes
    return nn.Linear(inputs[0][-1], int(attributes["units"]), bias=attributes.get("bias", True), device=device)


def _conv2d(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, (channels, height, width) = operator.attributes, inputs[0]
    depthwise = operator.op == "DepthwiseConv2D"
    kernel, stride = pair(attributes["kernel"]), pair(attributes.get("stride", 1))
    around = _padding(attributes.get("padding", "valid"), (height, width), kernel, stride)
    symmetric = around[0] == around[1] and around[2] == around[3]
    layer = nn.Conv2d(
        channels,
        channels if depthwise else int(attributes["filters"]),
        kernel,
        stride,
        padding=(around[2], around[0]) if symmetric else 0,
        groups=channels if depthwise else int(attributes.get("groups", 1)),
        bias=attributes.get("bias", True),
        device=device,
    )
    return layer if symmetric else nn.Sequential(nn.ZeroPad2d(around), layer)


def _pool2d(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, (_, height, width) = operator.attributes, inputs[0]
    kernel = pair(attributes["kernel"])
    stride = pair(attributes.get("stride", kernel))
    around = _padding(attributes.get("padding", "valid"), (height, width), kernel, stride)
    highest = operator.op == "MaxPooling2D"
    pool: nn.Module = nn.MaxPool2d(kernel, stride) if highest else nn.AvgPool2d(kernel, stride)
    if not any(around):
        return pool
    return nn.Sequential(nn.ConstantPad2d(around, float("-inf") if highest else 0.0), pool)


def _batch_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    kind = nn.BatchNorm2d if len(inputs[0]) == 3 else nn.BatchNorm1d
    return kind(inputs[0][0], device=device)


def _padding(
    mode: str, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[int, int, int, int]:
    """(left, right, top, bottom) zeros; 'same' puts the odd one at the end, as Keras does."""
    if mode == "valid":
        return (0, 0, 0, 0)
    if mode != "same":
        raise GraphError(f"padding {mode!r} is neither 'same' nor 'valid'")
    around: list[int] = []
    for n, k, s in zip(reversed(size), reversed(kernel), reversed(stride), strict=True):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        around += [total // 2, total - total // 2]
    left, right, top, bottom = around
    return left, right, top, bottom


_LAYERS: dict[str, Callable[[Operator, Sequence[Shape], str], nn.Module]] = {
    "Dense": _dense,
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _conv2d,
    "MaxPooling2D": _pool2d,
    "AveragePooling2D": _pool2d,
    "GlobalAveragePooling2D": lambda *_: _GlobalAverage(),
    "Flatten": lambda *_: nn.Flatten(),
    "BatchNormalization": _batch_norm,
    "ReLU": lambda *_: nn.ReLU(),
    "Softmax": lambda *_: nn.Softmax(dim=1),
    "Add": lambda *_: _Sum(),
    "Concatenate": lambda *_: _Concatenation(),
}
