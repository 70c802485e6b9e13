"""Arithmetic value by value, and reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slotool.errors import GraphError
from slotool.graphs.operators.axes import broadcast, settle_axes, settle_axis, settle_channel_axis
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, OperatorType, Shape

# What Elementwise computes of one input, or of one and a number or another input.
FUNCTIONS = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log", "log1p", "log2"),
    *("negative", "reciprocal", "round", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan", "trunc"),
    *("clamp", "is_finite", "is_nan", "not", "bitwise_not"),
    *("subtract", "divide", "floor_divide", "remainder", "power", "maximum", "minimum", "atan2"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or", "xor"),
)


def _elementwise(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, math.prod(inputs[0]))


def _function(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if attributes["function"] not in FUNCTIONS:
        raise GraphError(f"unknown function {attributes['function']!r}; known are {', '.join(FUNCTIONS)}")
    shape = broadcast(inputs)
    return Effect(shape, 0, math.prod(shape))


def _combine(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Inputs broadcast: of each axis, a size of one stretches to the others'."""
    shape = broadcast(inputs)
    return Effect(shape, 0, math.prod(shape) * (len(inputs) - 1))


def _where(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """One of two values by a condition; numbers among the three are no inputs."""
    shape = broadcast(inputs)
    return Effect(shape, 0, math.prod(shape))


def _prelu(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Of what is below zero a trained share, one for each channel (axis 0) or one for all."""
    return Effect(inputs[0], 1 if attributes.get("shared") else inputs[0][0], math.prod(inputs[0]))


def _cast(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0])


def _reduced(attributes: Attributes, shape: Shape) -> Shape:
    axes = attributes["axes"]
    if attributes.get("keepdims"):
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _reduce(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(_reduced(attributes, inputs[0]), 0, math.prod(inputs[0]))


def _spread(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Per value one to subtract the mean, one to square, two to add up."""
    return Effect(_reduced(attributes, inputs[0]), 0, 4 * math.prod(inputs[0]))


def _along(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, math.prod(inputs[0]))


def _sort(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    comparisons = max(1, math.ceil(math.log2(inputs[0][attributes["axis"]])))
    return Effect(inputs[0], 0, comparisons * math.prod(inputs[0]))


def _top_k(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The ``k`` largest along an axis, or where they are."""
    shape, axis = list(inputs[0]), attributes["axis"]
    if attributes["k"] > shape[axis]:
        raise GraphError(f"there are no {attributes['k']} values along axis {axis} of {shape}")
    shape[axis] = attributes["k"]
    return Effect(tuple(shape), 0, math.prod(inputs[0]))


_AXES = {"axes": REQUIRED, "keepdims": False}
_REDUCTION = OperatorType(_reduce, _AXES, settle=settle_axes)

ARITHMETIC: dict[str, OperatorType] = {
    "Rescaling": OperatorType(_elementwise),
    "ReLU": OperatorType(_elementwise),
    "PReLU": OperatorType(_prelu, {"shared": False}, channels_first=True),
    "Softmax": OperatorType(_elementwise, {"axis": None}, settle=settle_channel_axis),
    "Activation": OperatorType(_elementwise, {"activation": REQUIRED}),
    "Add": OperatorType(_combine, inputs=None),
    "Multiply": OperatorType(_combine, inputs=None),
    "Elementwise": OperatorType(_function, {"function": REQUIRED}, inputs=None),
    "Where": OperatorType(_where, inputs=None),
    "Cast": OperatorType(_cast, {"dtype": REQUIRED}),
    "Mean": _REDUCTION,
    "Sum": _REDUCTION,
    "Max": _REDUCTION,
    "Min": _REDUCTION,
    "Product": _REDUCTION,
    "Norm": _REDUCTION,
    "LogSumExp": _REDUCTION,
    "Any": _REDUCTION,
    "All": _REDUCTION,
    "Variance": OperatorType(_spread, _AXES, settle=settle_axes),
    "ArgMax": _REDUCTION,
    "ArgMin": _REDUCTION,
    "CumulativeSum": OperatorType(_along, {"axis": REQUIRED}, settle=settle_axis),
    "Sort": OperatorType(_sort, {"axis": REQUIRED, "indices": False}, settle=settle_axis),
    "TopK": OperatorType(_top_k, {"k": REQUIRED, "axis": REQUIRED, "indices": False}, settle=settle_axis),
}
