"""What each known operator does to shapes, and what it costs: one entry per operator, at the Keras layer level.

Shapes leave the batch out and put channels first: ``(features,)``, ``(steps, features)`` or ``(channels, height,
width)``. FLOPs are per example, a multiply-add counting two. An activation that is an attribute of the layer before
it, as in Keras, is free here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any

from slotool.errors import GraphError

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]
BYTES_PER_VALUE = 4
REQUIRED = object()


@dataclass(frozen=True)
class Effect:
    """What an operator makes of its inputs: output shape, weights (trained or kept statistics), FLOPs per example."""

    shape: Shape
    weights: int = 0
    flops: int = 0


Infer = Callable[[Attributes, Sequence[Shape]], Effect]


@dataclass(frozen=True)
class OperatorType:
    """How one operator behaves.

    ``attributes`` maps each attribute it may have to its default (``REQUIRED`` for none); ``inputs`` is how many
    inputs it takes, None for one or more.
    """

    infer: Infer
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: int | None = 1


def infer(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The effect of a known operator. Raises ``GraphError`` for an unknown one, or shapes that do not fit it."""
    return resolve(op, attributes, inputs)[1]


def resolve(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> tuple[dict[str, Any], Effect]:
    """A known operator's attributes in their one canonical form, and its effect.

    Canonical means: what equals its default is left out (but a pooling's stride is always said), a square pair is one
    number, a padding that pads nothing is left out, one that pads as 'same' does is called so. Thus equal layers have
    equal attributes however they were written. Raises ``GraphError`` for an unknown operator or attribute, or shapes
    that do not fit.
    """
    if op not in OPERATORS:
        raise GraphError(f"unknown operator {op!r}; known are {', '.join(OPERATORS)}")
    kind = OPERATORS[op]
    kept = _canonical(op, kind, attributes)
    if len(inputs) != kind.inputs if kind.inputs is not None else not inputs:
        wanted = "one or more" if kind.inputs is None else kind.inputs
        raise GraphError(f"{op} takes {wanted} inputs, not {len(inputs)}")
    try:
        _settle_window(kind, kept, inputs)
        effect = kind.infer(kept, inputs)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{op} cannot take inputs {list(map(list, inputs))} with {kept}") from error
    if any(size < 1 for size in effect.shape):
        raise GraphError(f"{op} would leave nothing of its input: output shape {list(effect.shape)}")
    return kept, effect


def pair(value: Any) -> tuple[int, int]:
    """``3`` or ``(3, 5)`` as (height, width)."""
    if isinstance(value, int):
        return value, value
    height, width = value
    return int(height), int(width)


def window_padding(attributes: Attributes, inputs: Shape) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) that a convolution or pooling adds; 'same' puts the odd one at the end, as Keras."""
    padding = attributes.get("padding", "valid")
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        height, width = pair(padding)
        return height, height, width, width
    kernel, stride = _window(attributes)
    around: list[int] = []
    for size, length, step in zip(inputs[1:], kernel, stride, strict=True):
        total = max((-(-size // step) - 1) * step + length - size, 0)
        around += [total // 2, total - total // 2]
    top, bottom, left, right = around
    return top, bottom, left, right


def zero_padding(value: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of ZeroPadding2D and Cropping2D, whose attribute is as 1, (1, 2) or (0, 1, 0, 1)."""
    if isinstance(value, int):
        return value, value, value, value
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    top, bottom, left, right = value
    return top, bottom, left, right


def channel_axis(shape: Shape) -> int:
    """Which axis holds what normalisation and softmax work on: channels of an image, else the last."""
    return 0 if len(shape) == 3 else len(shape) - 1


def per_channel(shape: Shape) -> Shape:
    """The shape of an array of one number for each channel, which stretches over the rest: (channels, 1, 1)."""
    axis = channel_axis(shape)
    return (shape[axis], *[1] * (len(shape) - 1 - axis))


def stretches_as(shape: Shape, other: Shape) -> bool:
    """Whether arrays of these shapes broadcast alike: leading axes of one size do not count."""
    first, second = ([*dropwhile(lambda size: size == 1, sizes)] for sizes in (shape, other))
    return first == second


def _input(attributes: Attributes, _: Sequence[Shape]) -> Effect:
    return Effect(attributes["shape"])


def _dense(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    *outer, features = inputs[0]
    units, positions = attributes["units"], math.prod(outer)
    bias = units if attributes.get("bias", True) else 0
    return Effect((*outer, units), features * units + bias, 2 * features * units * positions)


def _conv2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, filters, groups = inputs[0][0], attributes["filters"], attributes.get("groups", 1)
    if channels % groups or filters % groups:
        raise GraphError(f"{channels} channels and {filters} filters cannot form {groups} groups")
    height, width = _output_size(attributes, inputs[0])
    weights = math.prod(pair(attributes["kernel"])) * (channels // groups) * filters
    bias = filters if attributes.get("bias", True) else 0
    return Effect((filters, height, width), weights + bias, 2 * weights * height * width)


def _depthwise(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    return _conv2d({**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}, inputs)


def _separable(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    spatial = _depthwise({**attributes, "bias": False}, inputs)
    bias = attributes.get("bias", True)
    mixing = _conv2d({"filters": attributes["filters"], "kernel": 1, "bias": bias}, [spatial.shape])
    return Effect(mixing.shape, spatial.weights + mixing.weights, spatial.flops + mixing.flops)


def _pool2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    height, width = _output_size(attributes, inputs[0])
    return Effect((channels, height, width), 0, channels * height * width * math.prod(pair(attributes["kernel"])))


def _global_pool(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, _, _ = inputs[0]
    return Effect((channels, 1, 1) if attributes.get("keepdims") else (channels,), 0, math.prod(inputs[0]))


def _zero_pad(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["padding"])
    return Effect((channels, height + top + bottom, width + left + right))


def _crop(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["cropping"])
    return Effect((channels, height - top - bottom, width - left - right))


def _flatten(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((math.prod(inputs[0]),))


def _reshape(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if math.prod(attributes["shape"]) != math.prod(inputs[0]):
        raise GraphError(f"Reshape cannot make {list(attributes['shape'])} of {list(inputs[0])}")
    return Effect(attributes["shape"])


def _batch_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Moving mean and variance are counted as weights, as Keras counts them."""
    parts = 2 + attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * inputs[0][channel_axis(inputs[0])], 2 * math.prod(inputs[0]))


def _layer_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Per value: one for the mean, three for the variance, one to normalise, two to scale and shift."""
    parts = attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * inputs[0][channel_axis(inputs[0])], 7 * math.prod(inputs[0]))


def _normalization(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Mean and variance per channel and, as in Keras, one counter; no weights when they are ``fixed`` constants."""
    weights = 0 if attributes.get("fixed") else 2 * inputs[0][channel_axis(inputs[0])] + 1
    return Effect(inputs[0], weights, 2 * math.prod(inputs[0]))


def _layer_scale(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """One trained factor per channel (Touvron et al. 2021)."""
    return Effect(inputs[0], math.prod(per_channel(inputs[0])), math.prod(inputs[0]))


def _elementwise(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, math.prod(inputs[0]))


def _combine(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Inputs broadcast: of each axis, a size of one stretches to the others'."""
    sizes = [sorted(set(axis)) for axis in zip(*inputs, strict=True)]
    if any(len(axis) > 2 or (len(axis) == 2 and axis[0] != 1) for axis in sizes):
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    shape = tuple(axis[-1] for axis in sizes)
    return Effect(shape, 0, math.prod(shape) * (len(inputs) - 1))


def _concatenate(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    axis = channel_axis(inputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    if len(rest) != 1:
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    return Effect((*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :]))


_WINDOW = {"kernel": REQUIRED, "stride": 1, "padding": "valid", "dilation": 1}
_TRAINED = {"bias": True, "activation": None}
_POOL = {"kernel": REQUIRED, "stride": None, "padding": "valid"}  # None: as the kernel

OPERATORS: dict[str, OperatorType] = {
    "InputLayer": OperatorType(_input, {"shape": REQUIRED}, inputs=0),
    "Dense": OperatorType(_dense, {"units": REQUIRED, **_TRAINED}),
    "Conv2D": OperatorType(_conv2d, {"filters": REQUIRED, **_WINDOW, "groups": 1, **_TRAINED}),
    "DepthwiseConv2D": OperatorType(_depthwise, {**_WINDOW, "multiplier": 1, **_TRAINED}),
    "SeparableConv2D": OperatorType(_separable, {"filters": REQUIRED, **_WINDOW, "multiplier": 1, **_TRAINED}),
    "MaxPooling2D": OperatorType(_pool2d, _POOL),
    "AveragePooling2D": OperatorType(_pool2d, _POOL),
    "GlobalAveragePooling2D": OperatorType(_global_pool, {"keepdims": False}),
    "GlobalMaxPooling2D": OperatorType(_global_pool, {"keepdims": False}),
    "ZeroPadding2D": OperatorType(_zero_pad, {"padding": REQUIRED}),
    "Cropping2D": OperatorType(_crop, {"cropping": REQUIRED}),
    "Flatten": OperatorType(_flatten),
    "Reshape": OperatorType(_reshape, {"shape": REQUIRED}),
    "BatchNormalization": OperatorType(_batch_norm, {"scale": True, "center": True}),
    "LayerNormalization": OperatorType(_layer_norm, {"scale": True, "center": True}),
    "Normalization": OperatorType(_normalization, {"fixed": False}),
    "LayerScale": OperatorType(_layer_scale),
    "Rescaling": OperatorType(_elementwise),
    "ReLU": OperatorType(_elementwise),
    "Softmax": OperatorType(_elementwise),
    "Activation": OperatorType(_elementwise, {"activation": REQUIRED}),
    "Add": OperatorType(_combine, inputs=None),
    "Multiply": OperatorType(_combine, inputs=None),
    "Concatenate": OperatorType(_concatenate, inputs=None),
}


def _canonical(op: str, kind: OperatorType, attributes: Attributes) -> dict[str, Any]:
    foreign = [name for name in attributes if name not in kind.attributes]
    if foreign:
        raise GraphError(f"{op} has no attribute {foreign[0]!r}; it has {', '.join(kind.attributes) or 'none'}")
    kept = {}
    for name, default in kind.attributes.items():
        if name not in attributes:
            if default is REQUIRED:
                raise GraphError(f"{op} needs the attribute {name!r}")
            continue
        value = attributes[name]
        try:
            value = _FORMS[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise GraphError(f"{op}: {name} cannot be {value!r}") from error
        if value != default:
            kept[name] = value
    return kept


def _settle_window(kind: OperatorType, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Bring stride and padding to their canonical form, which depends on the kernel and the size of the input."""
    if "kernel" not in attributes:
        return
    if len(inputs[0]) != 3:
        raise GraphError(f"a window needs an image of (channels, height, width), not {list(inputs[0])}")
    if kind.attributes["stride"] is None:
        # A pooling's default stride is its kernel; said always, so that readers need not know.
        attributes.setdefault("stride", attributes["kernel"])
    if "padding" in attributes:
        around = window_padding(attributes, inputs[0])
        if not any(around):
            del attributes["padding"]
        elif around == window_padding({**attributes, "padding": "same"}, inputs[0]):
            attributes["padding"] = "same"


def _window(attributes: Attributes) -> tuple[tuple[int, int], tuple[int, int]]:
    """How far the dilated kernel reaches, and the stride, each as (height, width)."""
    kernel, dilation = pair(attributes["kernel"]), pair(attributes.get("dilation", 1))
    reach = (kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1
    return reach, pair(attributes.get("stride", 1))


def _output_size(attributes: Attributes, inputs: Shape) -> tuple[int, int]:
    _, height, width = inputs
    kernel, stride = _window(attributes)
    top, bottom, left, right = window_padding(attributes, inputs)
    return (height + top + bottom - kernel[0]) // stride[0] + 1, (width + left + right - kernel[1]) // stride[1] + 1


def _whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or operator.index(value) < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return operator.index(value)


def _squarish(value: Any, least: int = 1) -> int | tuple[int, int]:
    if not isinstance(value, list | tuple):
        return _whole(value, least)
    height, width = (_whole(size, least) for size in value)
    return height if height == width else (height, width)


def _padding(value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise ValueError(f"{value!r} is neither 'same' nor 'valid'")
        return value
    if isinstance(value, list | tuple) and len(value) == 4:
        around = tuple(_whole(size, 0) for size in value)
        return around if around[0] != around[1] or around[2] != around[3] else _squarish(around[::2], 0)
    return _squarish(value, 0)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _shape(value: Any) -> Shape:
    if isinstance(value, str) or not value:
        raise ValueError("a shape is a list of sizes")
    return tuple(_whole(size) for size in value)


def _activation(value: Any) -> str | None:
    if not isinstance(value, str | None) or value == "":
        raise ValueError(f"{value!r} is not the name of an activation")
    return None if value == "linear" else value


_FORMS: dict[str, Callable[[Any], Any]] = {
    "shape": _shape,
    "units": _whole,
    "filters": _whole,
    "groups": _whole,
    "multiplier": _whole,
    "kernel": _squarish,
    "stride": _squarish,
    "dilation": _squarish,
    "padding": _padding,
    "cropping": _padding,
    "activation": _activation,
    "bias": _flag,
    "scale": _flag,
    "center": _flag,
    "keepdims": _flag,
    "fixed": _flag,
}
