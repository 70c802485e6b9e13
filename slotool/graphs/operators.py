"""What each known operator does to shapes, and what it costs: one entry per operator, at the Keras layer level.

Shapes leave the batch out and put channels first: ``(features,)`` or ``(channels, height, width)``. FLOPs are per
example, a multiply-add counting two. An activation belongs to the layer before it, as in Keras, and is free here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.errors import GraphError

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]
BYTES_PER_VALUE = 4


@dataclass(frozen=True)
class Effect:
    """What an operator makes of its inputs: output shape, trained weights, FLOPs per example."""

    shape: Shape
    weights: int = 0
    flops: int = 0


Infer = Callable[[Attributes, Sequence[Shape]], Effect]


def infer(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The effect of a known operator. Raises ``GraphError`` for an unknown one, or shapes that do not fit it."""
    if op not in OPERATORS:
        raise GraphError(f"unknown operator {op!r}; known are {', '.join(OPERATORS)}")
    try:
        effect = OPERATORS[op](attributes, inputs)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GraphError(f"operator {op} cannot take inputs {list(inputs)} with {dict(attributes)}") from error
    if any(size < 1 for size in effect.shape):
        raise GraphError(f"operator {op} would leave nothing of its input: output shape {effect.shape}")
    return effect


def _input(attributes: Attributes, _: Sequence[Shape]) -> Effect:
    return Effect(tuple(int(size) for size in attributes["shape"]))


def _dense(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    *outer, features = inputs[0]
    units, positions = int(attributes["units"]), math.prod(outer)
    bias = units if attributes.get("bias", True) else 0
    return Effect((*outer, units), features * units + bias, 2 * features * units * positions)


def _conv2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    filters, groups = int(attributes["filters"]), int(attributes.get("groups", 1))
    kernel, bias = pair(attributes["kernel"]), filters if attributes.get("bias", True) else 0
    out = _window(attributes, (height, width), kernel)
    weights = kernel[0] * kernel[1] * (channels // groups) * filters
    return Effect((filters, *out), weights + bias, 2 * weights * out[0] * out[1])


def _depthwise(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    return _conv2d({**attributes, "filters": channels, "groups": channels}, inputs)


def _pool2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    kernel = pair(attributes["kernel"])
    out = _window({"stride": kernel, "padding": "valid", **attributes}, (height, width), kernel)
    return Effect((channels, *out), 0, channels * out[0] * out[1] * kernel[0] * kernel[1])


def _global_pool(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0][:1], 0, math.prod(inputs[0]))


def _flatten(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((math.prod(inputs[0]),))


def _normalise(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 4 * inputs[0][0], 2 * math.prod(inputs[0]))


def _elementwise(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, math.prod(inputs[0]))


def _combine(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    if any(shape != inputs[0] for shape in inputs):
        raise GraphError(f"Add needs inputs of one shape, not {list(inputs)}")
    return Effect(inputs[0], 0, math.prod(inputs[0]) * (len(inputs) - 1))


def _concatenate(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((sum(shape[0] for shape in inputs), *inputs[0][1:]))


OPERATORS: dict[str, Infer] = {
    "InputLayer": _input,
    "Dense": _dense,
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _depthwise,
    "MaxPooling2D": _pool2d,
    "AveragePooling2D": _pool2d,
    "GlobalAveragePooling2D": _global_pool,
    "Flatten": _flatten,
    "BatchNormalization": _normalise,
    "ReLU": _elementwise,
    "Softmax": _elementwise,
    "Add": _combine,
    "Concatenate": _concatenate,
}


def pair(value: Any) -> tuple[int, int]:
    """``3`` or ``(3, 5)`` as (height, width)."""
    if isinstance(value, int):
        return value, value
    height, width = value
    return int(height), int(width)


def _window(attributes: Attributes, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
    stride = pair(attributes.get("stride", 1))
    if attributes.get("padding", "valid") == "same":
        return math.ceil(size[0] / stride[0]), math.ceil(size[1] / stride[1])
    return (size[0] - kernel[0]) // stride[0] + 1, (size[1] - kernel[1]) // stride[1] + 1
