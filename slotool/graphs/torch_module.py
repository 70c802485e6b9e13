"""An operator graph as a torch module: the one place that turns a description into something that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs.graph import Operator, OperatorGraph
from slotool.graphs.operators import Shape, channel_axis, pair, per_channel, window_padding, zero_padding

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor] | None] = {
    None: None,
    "relu": torch.relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "mish": functional.mish,
    "softplus": functional.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hard_sigmoid": functional.hardsigmoid,
    "hard_silu": functional.hardswish,
    # Over channels: the second axis of a batch of images, else the last.
    "softmax": lambda x: torch.softmax(x, dim=1 if x.ndim == 4 else -1),
}


Builder = Callable[[Operator, Sequence[Shape], str], nn.Module]


class GraphModule(nn.Module):
    """Runs an ``OperatorGraph`` whose operators are all known, or are among ``layers``: what builds them, by name.

    Input float32 [batch, *graph.input_shape], output [batch, *graph.output_shape]. Parameters are named
    ``layers.<operator>.weight`` and ``.bias``; ``of`` maps an operator's name to its layer. ``device='meta'`` builds
    the shapes without their memory. Raises ``GraphError`` for an operator or activation that cannot be built.
    """

    def __init__(self, graph: OperatorGraph, device: str = "cpu", layers: Mapping[str, Builder] | None = None):
        super().__init__()
        self.graph = graph
        builders = {**_LAYERS, **(layers or {})}
        self.layers = nn.ModuleDict()
        self._steps: list[tuple[str, tuple[str, ...], nn.Module, Callable[[Tensor], Tensor] | None]] = []
        shapes = {operator.name: operator.shape for operator in graph.operators}
        for operator in graph.operators:
            if operator.op == "InputLayer":
                if operator is not graph.operators[0]:
                    raise GraphError(
                        f"operator {operator.name!r}: a network of several inputs cannot be built in torch"
                    )
                continue
            layer = _build(operator, [shapes[name] for name in operator.inputs], device, builders)
            self.layers[_key(operator.name, self.layers)] = layer
            self._steps.append((operator.name, operator.inputs, layer, _activation(operator)))
        order = [operator.name for operator in graph.operators]
        self.of = {name: layer for name, _, layer, _ in self._steps}
        self._is_chain = all(inputs == (before,) for before, (_, inputs, _, _) in zip(order, self._steps, strict=False))

    def forward(self, x: Tensor, between: Callable[[], None] | None = None) -> Tensor:
        """``between`` is called before each operator; what it raises goes through."""
        if self._is_chain:
            for _, _, layer, activation in self._steps:
                if between is not None:
                    between()
                x = layer(x) if activation is None else activation(layer(x))
            return x
        values = {self.graph.operators[0].name: x}
        for name, inputs, layer, activation in self._steps:
            if between is not None:
                between()
            value = layer(*(values[source] for source in inputs))
            values[name] = value if activation is None else activation(value)
        return values[self.graph.operators[-1].name]


class _Function(nn.Module):
    """A layer without weights."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._function(*inputs)


class _Moved(nn.Module):
    """A layer that wants an axis elsewhere: moved there before it and back after."""

    def __init__(self, layer: nn.Module, source: int, target: int):
        super().__init__()
        self.layer, self._source, self._target = layer, source, target

    def forward(self, x: Tensor) -> Tensor:
        answer: torch.Tensor = self.layer(x.movedim(self._source, self._target)).movedim(self._target, self._source)
        return answer


class _Normalization(nn.Module):
    """Fixed mean and variance per channel; like Keras it also keeps a counter."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, device=device))
        self.register_buffer("variance", torch.ones(shape, device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.get_buffer("mean")) / self.get_buffer("variance").sqrt()


class _LayerScale(nn.Module):
    """A trained factor per channel."""

    def __init__(self, shape: Shape, device: str):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _key(name: str, taken: nn.ModuleDict) -> str:
    """A free key for a layer; dots would nest it, and names such as ``type`` are methods of the dictionary."""
    key = name.replace(".", "_") or "_"
    while key in taken or hasattr(taken, key):
        key += "_"
    return key


def _activation(operator: Operator) -> Callable[[Tensor], Tensor] | None:
    name = operator.attributes.get("activation")
    if name not in ACTIVATIONS:
        raise GraphError(f"operator {operator.name!r}: unknown activation {name!r}")
    return ACTIVATIONS[name]


def _build(operator: Operator, inputs: Sequence[Shape], device: str, builders: Mapping[str, Builder]) -> nn.Module:
    if operator.op not in builders:
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in torch")
    return builders[operator.op](operator, inputs, device)


def _dense(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes = operator.attributes
    return nn.Linear(inputs[0][-1], int(attributes["units"]), bias=attributes.get("bias", True), device=device)


def _conv2d(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, channels = operator.attributes, inputs[0][0]
    if operator.op == "DepthwiseConv2D":
        attributes = {**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}
    top, bottom, left, right = window_padding(attributes, inputs[0])
    symmetric = top == bottom and left == right
    layer = nn.Conv2d(
        channels,
        attributes["filters"],
        pair(attributes["kernel"]),
        pair(attributes.get("stride", 1)),
        padding=(top, left) if symmetric else 0,
        dilation=pair(attributes.get("dilation", 1)),
        groups=attributes.get("groups", 1),
        bias=attributes.get("bias", True),
        device=device,
    )
    return layer if symmetric else nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), layer)


def _separable(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, channels = operator.attributes, inputs[0][0]
    middle = channels * attributes.get("multiplier", 1)
    spatial = replace(operator, attributes={**attributes, "filters": middle, "groups": channels, "bias": False})
    mixing = nn.Conv2d(middle, attributes["filters"], 1, bias=attributes.get("bias", True), device=device)
    return nn.Sequential(_conv2d(spatial, inputs, device), mixing)


def _pool2d(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    attributes = operator.attributes
    kernel, stride = pair(attributes["kernel"]), pair(attributes.get("stride", attributes["kernel"]))
    top, bottom, left, right = window_padding(attributes, inputs[0])
    highest = operator.op == "MaxPooling2D"
    pool: nn.Module = nn.MaxPool2d(kernel, stride) if highest else nn.AvgPool2d(kernel, stride)
    if not (top or bottom or left or right):
        return pool
    around = nn.ConstantPad2d((left, right, top, bottom), float("-inf") if highest else 0.0)
    return nn.Sequential(around, pool)


def _global_pool(operator: Operator, *_: object) -> nn.Module:
    pool = torch.amax if operator.op == "GlobalMaxPooling2D" else torch.mean
    return _Function(partial(pool, dim=(2, 3), keepdim=operator.attributes.get("keepdims", False)))


def _batch_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    kind = nn.BatchNorm2d if len(inputs[0]) == 3 else nn.BatchNorm1d
    norm = _without_unused(kind(inputs[0][channel_axis(inputs[0])], device=device), operator)
    return _Moved(norm, -1, 1) if len(inputs[0]) == 2 else norm


def _layer_norm(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    norm = _without_unused(nn.LayerNorm(inputs[0][channel_axis(inputs[0])], device=device), operator)
    return _Moved(norm, 1, -1) if len(inputs[0]) == 3 else norm


def _without_unused(norm: nn.Module, operator: Operator) -> nn.Module:
    for part, name in (("scale", "weight"), ("center", "bias")):
        if not operator.attributes.get(part, True):
            setattr(norm, name, None)
    return norm


def _normalization(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    if operator.attributes.get("fixed"):
        return _Function(partial(torch.mul, other=1.0))
    return _Normalization(per_channel(inputs[0]), device)


def _layer_scale(_: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    return _LayerScale(per_channel(inputs[0]), device)


def _zero_pad(operator: Operator, *_: object) -> nn.Module:
    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return nn.ZeroPad2d((left, right, top, bottom))


def _crop(operator: Operator, *_: object) -> nn.Module:
    top, bottom, left, right = zero_padding(operator.attributes["cropping"])
    return nn.ZeroPad2d((-left, -right, -top, -bottom))


def _reshape(operator: Operator, *_: object) -> nn.Module:
    return _Function(partial(_reshaped, shape=operator.attributes["shape"]))


def _reshaped(x: Tensor, shape: Shape) -> Tensor:
    return x.reshape(x.shape[0], *shape)


def _concatenate(_: Operator, inputs: Sequence[Shape], __: str) -> nn.Module:
    return _Function(partial(_concatenated, dim=1 + channel_axis(inputs[0])))


def _concatenated(*inputs: Tensor, dim: int) -> Tensor:
    return torch.cat(inputs, dim=dim)


def _sum(first: Tensor, *others: Tensor) -> Tensor:
    return reduce(torch.add, others, first)


def _product(first: Tensor, *others: Tensor) -> Tensor:
    return reduce(torch.mul, others, first)


def _softmax(_: Operator, inputs: Sequence[Shape], __: str) -> nn.Module:
    return nn.Softmax(dim=1 + channel_axis(inputs[0]))


_LAYERS: dict[str, Builder] = {
    "Dense": _dense,
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _conv2d,
    "SeparableConv2D": _separable,
    "MaxPooling2D": _pool2d,
    "AveragePooling2D": _pool2d,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "ZeroPadding2D": _zero_pad,
    "Cropping2D": _crop,
    "Flatten": lambda *_: nn.Flatten(),
    "Reshape": _reshape,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Normalization": _normalization,
    "LayerScale": _layer_scale,
    # A graph holds structure and cost, no constants: it rescales by one.
    "Rescaling": lambda *_: _Function(partial(torch.mul, other=1.0)),
    "ReLU": lambda *_: nn.ReLU(),
    "Softmax": _softmax,
    # Its activation is applied as every operator's is.
    "Activation": lambda *_: nn.Identity(),
    "Add": lambda *_: _Function(_sum),
    "Multiply": lambda *_: _Function(_product),
    "Concatenate": _concatenate,
}
