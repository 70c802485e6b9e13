"""Operators of a transformer on image patches, which graphs keep by name alone: what they cost, and what runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.graphs import Effect, OperatorGraph
from slotool.graphs.operators import Operator, Shape, per_channel
from slotool.graphs.torch_module import Builder, GraphModule

Attributes = Mapping[str, Any]


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
    """What ``MultiHeadAttention`` computes, with whatever part of its weights is given."""
    heads, triple, _ = weight.shape
    size = triple // 3
    batch, steps, _ = x.shape
    mixed = functional.linear(x, weight.flatten(0, 1), bias.flatten())
    queries, keys, values = mixed.view(batch, steps, heads, 3, size).permute(3, 0, 2, 1, 4).unbind()
    seen = functional.scaled_dot_product_attention(queries, keys, values)
    return functional.linear(seen.transpose(1, 2).reshape(batch, steps, heads * size), output, output_bias)


class PositionEmbedding(nn.Module):
    """Adds a trained vector per position: ``weight`` [steps, width]."""

    def __init__(self, steps: int, width: int, device: str = "cpu"):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(steps, width, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight


class Tokens(nn.Module):
    """[batch, channels, height, width] as [batch, height · width, channels]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class Scale(nn.Module):
    """x · factor + offset."""

    def __init__(self, factor: float, offset: float):
        super().__init__()
        self._factor, self._offset = factor, offset

    def forward(self, x: Tensor) -> Tensor:
        return x * self._factor + self._offset


class ChannelShift(nn.Module):
    """Adds a number per channel: ``weight`` stretches over the rest."""

    def __init__(self, shape: Shape, device: str = "cpu"):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, device=device))

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
    """[batch, steps, width] after ``tokens`` [n, width]."""
    return torch.cat([tokens.expand(len(x), -1, -1), x], dim=1)


class TakeToken(nn.Module):
    """Of [batch, steps, width] one step: [batch, width]."""

    def __init__(self, index: int):
        super().__init__()
        self._index = index

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self._index]


class AsImage(nn.Module):
    """[batch, channels] as [batch, channels, 1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None, None]


class MeanOverSteps(nn.Module):
    """[batch, steps, width] as [batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def _attention_effect(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    inner = attributes["heads"] * attributes["size"]
    weights = 4 * width * inner + 3 * inner + width
    return Effect((steps, width), weights, 2 * steps * (4 * width * inner + 2 * steps * inner))


def _position_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    return Effect((steps, width), steps * width, steps * width)


def _tokens_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    return Effect((height * width, channels))


def _mean_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    return Effect((width,), 0, steps * width)


def _scale_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, 2 * math.prod(inputs[0]))


def _shift_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], math.prod(per_channel(inputs[0])), math.prod(inputs[0]))


def _prepend_effect(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    steps, width = inputs[0]
    return Effect((steps + attributes["tokens"], width), attributes["tokens"] * width)


def _take_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((inputs[0][1],))


def _as_image_effect(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((*inputs[0], 1, 1))


# How graphs describe these operators, which they do not know.
EFFECTS: dict[str, Callable[[Attributes, Sequence[Shape]], Effect]] = {
    "MultiHeadAttention": _attention_effect,
    "PositionEmbedding": _position_effect,
    "Tokens": _tokens_effect,
    "GlobalAveragePooling1D": _mean_effect,
    "Scale": _scale_effect,
    "ChannelShift": _shift_effect,
    "PrependTokens": _prepend_effect,
    "TakeToken": _take_effect,
    "AsImage": _as_image_effect,
}


def _attention_layer(operator: Operator, device: str) -> nn.Module:
    return MultiHeadAttention(operator.shape[1], operator.attributes["heads"], operator.attributes["size"], device)


def _position_layer(operator: Operator, device: str) -> nn.Module:
    steps, width = operator.shape
    return PositionEmbedding(steps, width, device)


# As ``GraphModule`` takes them.
LAYERS: dict[str, Builder] = {
    "MultiHeadAttention": _attention_layer,
    "PositionEmbedding": _position_layer,
    "Tokens": lambda *_: Tokens(),
    "GlobalAveragePooling1D": lambda *_: MeanOverSteps(),
    "Scale": lambda operator, *_: Scale(operator.attributes["factor"], operator.attributes["offset"]),
    "ChannelShift": lambda operator, device: ChannelShift(per_channel(operator.shape), device),
    "PrependTokens": lambda operator, device: PrependTokens(operator.attributes["tokens"], operator.shape[1], device),
    "TakeToken": lambda operator, *_: TakeToken(operator.attributes["index"]),
    "AsImage": lambda *_: AsImage(),
}


def build(graph: OperatorGraph, epsilon: Mapping[str, float]) -> GraphModule:
    """``graph`` as a torch module. ``epsilon``: of normalisations, where it is not torch's default.

    Raises ``GraphError`` for an operator that cannot be built.
    """
    module = GraphModule(graph, layers=LAYERS)
    for name, value in epsilon.items():
        layer: Any = own_layer(module.of[name])
        layer.eps = value
    return module


def own_layer(layer: nn.Module) -> nn.Module:
    """The part of a layer that has its weights: one may pad first, or turn axes around it."""
    if isinstance(layer, nn.Sequential):
        return layer[-1]
    return getattr(layer, "layer", layer)
