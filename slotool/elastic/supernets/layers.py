"""Layers of supernets: operators known by name alone, and WeightSlice (superserve, §3).

A step is what one operator of a subnet does to its inputs, with a part of a layer's weights. Steps hold views of the
whole network's weights, which are never copied to be kept, so the step of a layer is the same object in all subnets
that take the same part of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import InputError
from slotool.graphs import Effect, OperatorGraph
from slotool.graphs.operators import Operator, Shape, channel_axis, per_channel
from slotool.graphs.torch_module import ACTIVATIONS, Builder, GraphModule

Attributes = Mapping[str, Any]
Step = Callable[..., Tensor]


class MultiHeadAttention(nn.Module):
    """Self-attention whose weights are stored head by head, so that the first heads are a slice without gaps.

    ``x``: [batch, steps, width]. ``weight``: [heads, 3 · size, width], of each head its queries, keys and values;
    ``output``: [width, heads · size].
    """

    def __init__(self, width: int, heads: int, size: int, device: str = "cpu"):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, 3 * size, width, device=device))
        self.bias = nn.Parameter(torch.zeros(heads, 3 * size, device=device))
        self.output = nn.Parameter(torch.empty(width, heads * size, device=device))
        self.output_bias = nn.Parameter(torch.zeros(width, device=device))
        nn.init.trunc_normal_(self.weight, std=width**-0.5)
        nn.init.trunc_normal_(self.output, std=(heads * size) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        return attention(x, self.weight, self.bias, self.output, self.output_bias)


def attention(x: Tensor, weight: Tensor, bias: Tensor, output: Tensor, output_bias: Tensor) -> Tensor:
    """Compute ``MultiHeadAttention`` with any part of its weights."""
    heads, triple, _ = weight.shape
    size = triple // 3
    batch, steps, _ = x.shape
    mixed = functional.linear(x, weight.flatten(0, 1), bias.flatten())
    queries, keys, values = mixed.view(batch, steps, heads, 3, size).permute(3, 0, 2, 1, 4).unbind()
    attended = functional.scaled_dot_product_attention(queries, keys, values)
    return functional.linear(attended.transpose(1, 2).reshape(batch, steps, heads * size), output, output_bias)


class Addend(nn.Module):
    """Adds a trained ``weight``, which stretches over the rest."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class PrependTokens(nn.Module):
    """Puts trained tokens before those of each example: ``weight`` [tokens, width]."""

    def __init__(self, tokens: int, width: int, device: str = "cpu"):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(tokens, width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return prepended(x, self.weight)


def prepended(x: Tensor, tokens: Tensor) -> Tensor:
    """Return [batch, steps, width] after ``tokens`` [n, width]."""
    return torch.cat([tokens.expand(len(x), -1, -1), x], dim=1)


def _attention_effect(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    inner = attributes["heads"] * attributes["size"]
    weights = 4 * width * inner + 3 * inner + width
    return Effect((steps, width), weights, 2 * steps * (4 * width * inner + 2 * steps * inner))


def _prepend_effect(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    return Effect((steps + attributes["tokens"], width), attributes["tokens"] * width)


def _added_effect(weight: Shape, shape: Shape) -> Effect:
    return Effect(shape, math.prod(weight), math.prod(shape))


# Description of these operators, unknown to graphs. Tokens are [steps, width].
EFFECTS: dict[str, Callable[[Attributes, Sequence[Shape]], Effect]] = {
    "MultiHeadAttention": _attention_effect,
    "PositionEmbedding": lambda _, inputs: _added_effect(inputs[0], inputs[0]),
    "Tokens": lambda _, inputs: Effect((math.prod(inputs[0][1:]), inputs[0][0])),
    "GlobalAveragePooling1D": lambda _, inputs: Effect(inputs[0][1:], 0, math.prod(inputs[0])),
    "Scale": lambda _, inputs: Effect(inputs[0], 0, 2 * math.prod(inputs[0])),
    "ChannelShift": lambda _, inputs: _added_effect(per_channel(inputs[0]), inputs[0]),
    "PrependTokens": _prepend_effect,
    "TakeToken": lambda _, inputs: Effect(inputs[0][1:]),
    "AsImage": lambda _, inputs: Effect((*inputs[0], 1, 1)),
}


def _attention_layer(operator: Operator, device: str) -> nn.Module:
    return MultiHeadAttention(operator.shape[1], operator.attributes["heads"], operator.attributes["size"], device)


def _scaling(operator: Operator, _: str) -> Step:
    factor, offset = operator.attributes["factor"], operator.attributes["offset"]
    return lambda x: x * factor + offset


def _token(operator: Operator, _: str) -> Step:
    index = operator.attributes["index"]
    return lambda x: x[:, index]


# Builders in the form of ``GraphModule``.
LAYERS: dict[str, Builder] = {
    "MultiHeadAttention": _attention_layer,
    "PositionEmbedding": lambda operator, device: Addend(0.02 * torch.randn(operator.shape, device=device)),
    "Tokens": lambda *_: lambda x: x.flatten(2).transpose(1, 2),
    "GlobalAveragePooling1D": lambda *_: lambda x: x.mean(dim=1),
    "Scale": _scaling,
    "ChannelShift": lambda operator, device: Addend(torch.zeros(per_channel(operator.shape), device=device)),
    "PrependTokens": lambda operator, device: PrependTokens(operator.attributes["tokens"], operator.shape[1], device),
    "TakeToken": _token,
    "AsImage": lambda *_: lambda x: x[:, :, None, None],
}


def build(graph: OperatorGraph, epsilon: Mapping[str, float]) -> GraphModule:
    """Return ``graph`` as a torch module. ``epsilon``: of normalisations, where it is not torch's default.

    Raises ``GraphError`` for an operator that cannot be built.
    """
    module = GraphModule(graph, layers=LAYERS)
    for name, value in epsilon.items():
        layer: Any = own_layer(module.of[name])
        layer.eps = value
    return module


def own_layer(layer: nn.Module) -> nn.Module:
    """Return the part of a layer that has its weights: one may pad first, or turn axes around it."""
    if isinstance(layer, nn.Sequential):
        return layer[-1]
    return getattr(layer, "layer", layer)


# Gives a normalisation its (mean, variance), or measures them: takes what it is about to normalise, channels second.
Statistics = Callable[[Tensor], tuple[Tensor, Tensor]] | None


def make_step(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, statistics: Statistics) -> Step:
    """Return the step of ``operator`` in a narrowed graph, with the first part of its whole ``layer``.

    ``statistics`` None: a normalisation uses those of its batch, as in training. Raises ``InputError`` for a layer that
    cannot be computed in part.
    """
    kind = _SLICED.get(operator.op)
    if kind is not None:
        step = kind(operator, inputs, layer, statistics)
    elif next(layer.parameters(), None) is None and next(layer.buffers(), None) is None:
        step = layer.forward
    elif operator.weights == sum(parameter.numel() for parameter in layer.parameters()):
        step = layer
    else:
        raise InputError(f"operator {operator.name!r}: a {operator.op} cannot be computed in part")
    activation = ACTIVATIONS[operator.attributes.get("activation")]
    return step if activation is None else lambda *x: activation(step(*x))


# A call of torch's oneDNN convolution costs some 50 µs before it computes anything, its native one 8 µs; up to so much
# work (FLOPs of all images) that decides. Without a window the native one is a matrix product and faster at any size.
SMALL_WORK = 1_500_000
# Without a window, torch uses oneDNN from so many images on, or with several threads from two.
POINTWISE_IMAGES = 16


class _Convolution:
    """A 2-D convolution by the first filters and of the first channels.

    Where fewer channels than there are come in, the weights have gaps, and the library would copy them on every call.
    Where there are fewer positions than filters it is cheaper to lay out the image and multiply the matrix, gaps
    and all; so the smaller of the two is copied. Of torch's two ways to convolve the quicker is called.
    """

    def __init__(self, operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics):
        self.padding: nn.Module | None = None
        if isinstance(layer, nn.Sequential):
            self.padding, layer = layer[0], layer[1]
        assert isinstance(layer, nn.Conv2d)
        filters, channels = operator.shape[0], inputs[0][0]
        per_group = channels
        self.groups = layer.groups
        if layer.groups > 1:
            if operator.op != "DepthwiseConv2D" and filters != layer.out_channels:
                raise InputError(f"operator {operator.name!r}: a grouped convolution cannot be computed in part")
            self.groups = channels if operator.op == "DepthwiseConv2D" else layer.groups
            per_group = layer.weight.shape[1]
        self.weight = layer.weight[:filters, :per_group]
        self.bias = None if layer.bias is None else layer.bias[:filters]
        self.window = (layer.stride, layer.padding, layer.dilation)
        self.kernel = layer.kernel_size
        self.filters, self.shape = filters, operator.shape[1:]
        positions = self.shape[0] * self.shape[1]
        gaps = self.groups == 1 and not self.weight.is_contiguous()
        # CuDNN chooses by itself on a GPU.
        weight = layer.weight
        answers = not torch.is_grad_enabled() and weight.device.type == "cpu" and weight.dtype == torch.float32
        self.most_unfolded = (filters - 1) // positions if gaps and answers else 0
        self.native = self._native_batches(operator.flops) if answers else range(0)

    def _native_batches(self, flops: int) -> range:
        """Return the numbers of images for which torch would call oneDNN although its own convolution is quicker."""
        stride, padding, dilation = self.window
        if self.groups > 1 or isinstance(padding, str) or dilation != (1, 1):
            return range(0)
        if (self.kernel, stride, padding) == ((1, 1), (1, 1), (0, 0)):
            return range(POINTWISE_IMAGES if torch.get_num_threads() == 1 else 2, sys.maxsize)
        return range(1 if min(self.kernel) > 3 else 2, SMALL_WORK // max(1, flops) + 1)

    def __call__(self, x: Tensor) -> Tensor:
        if self.padding is not None:
            x = self.padding(x)
        if x.shape[0] <= self.most_unfolded:
            return self._by_matrix(x)
        stride, padding, dilation = self.window
        if x.shape[0] in self.native:
            return torch.ops.aten.thnn_conv2d.default(x, self.weight, self.kernel, self.bias, stride, padding)
        return functional.conv2d(x, self.weight, self.bias, stride, padding, dilation, self.groups)

    def _by_matrix(self, x: Tensor) -> Tensor:
        stride, padding, dilation = self.window
        if self.kernel == (1, 1):
            x = x if stride == (1, 1) else x[:, :, :: stride[0], :: stride[1]]
            columns = x.flatten(2)
        else:
            assert not isinstance(padding, str)  # layers of graphs state theirs in numbers
            columns = functional.unfold(x, self.kernel, dilation, padding, stride)
        matrix = self.weight.flatten(1)
        out = torch.empty(len(x), self.filters, columns.shape[2])
        for image, result in zip(columns, out, strict=True):
            torch.mm(matrix, image, out=result)
        if self.bias is not None:
            out += self.bias[:, None]
        return out.view(len(x), self.filters, *self.shape)


def _dense(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    assert isinstance(layer, nn.Linear)
    units = operator.shape[-1]
    weight = layer.weight[:units, : inputs[0][-1]]
    bias = None if layer.bias is None else layer.bias[:units]
    return lambda x: functional.linear(x, weight, bias)


def _batch_norm(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, statistics: Statistics) -> Step:
    moved = len(inputs[0]) == 2
    norm: Any = getattr(layer, "layer", layer)
    channels = inputs[0][channel_axis(inputs[0])]
    weight, bias, eps = _first(norm.weight, channels), _first(norm.bias, channels), norm.eps

    def normalise(x: Tensor) -> Tensor:
        if statistics is None:
            return functional.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
        mean, variance = statistics(x)
        return torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)

    if moved:
        return lambda x: normalise(x.transpose(1, 2)).transpose(1, 2)
    return normalise


def _layer_norm(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    moved = len(inputs[0]) == 3
    norm: Any = getattr(layer, "layer", layer)
    channels = (inputs[0][channel_axis(inputs[0])],)
    weight, bias, eps = _first(norm.weight, *channels), _first(norm.bias, *channels), norm.eps
    if moved:
        return lambda x: functional.layer_norm(x.movedim(1, -1), channels, weight, bias, eps).movedim(-1, 1)
    return lambda x: functional.layer_norm(x, channels, weight, bias, eps)


def _layer_scale(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    weight = _part(layer, inputs[0])
    return lambda x: x * weight


def _added(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    weight = _part(layer, inputs[0])
    return lambda x: x + weight


def _attention(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    whole: Any = layer
    heads, width = operator.attributes["heads"], inputs[0][1]
    inner = heads * operator.attributes["size"]
    weight, bias = whole.weight[:heads, :, :width], whole.bias[:heads]
    output, output_bias = whole.output[:width, :inner], whole.output_bias[:width]
    return lambda x: attention(x, weight, bias, output, output_bias)


def _prepend(operator: Operator, inputs: Sequence[Shape], layer: nn.Module, _: Statistics) -> Step:
    weight: Any = layer.weight
    weight = weight[:, : inputs[0][1]]
    return lambda x: prepended(x, weight)


def _part(layer: Any, shape: Shape) -> Tensor:
    """Return the first part of the weights, that which stretches over values of ``shape``."""
    weight: Tensor = layer.weight
    return weight[tuple(map(slice, shape[len(shape) - weight.ndim :]))]


def _first(weight: Tensor | None, channels: int) -> Tensor | None:
    return None if weight is None else weight[:channels]


_SLICED: dict[str, Callable[[Operator, Sequence[Shape], nn.Module, Statistics], Step]] = {
    "Conv2D": _Convolution,
    "DepthwiseConv2D": _Convolution,
    "Dense": _dense,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "LayerScale": _layer_scale,
    "MultiHeadAttention": _attention,
    "PositionEmbedding": _added,
    "ChannelShift": _added,
    "PrependTokens": _prepend,
}
