"""Operator types: what each does to shapes, what it costs, and how torch, ONNX and Keras compute it.

One class a type, at the level of Keras layers, in files grouped by family; each registers itself in ``OPERATORS``.

Shapes leave the batch out and put channels first: ``(features,)``, ``(steps, features)`` or ``(channels, height,
width)``. FLOPs are per example, a multiply-add counting two. An activation that is an attribute of the layer before
it, as in Keras, is free here.

A ``Constant`` and what is computed from constants alone has no batch; it stretches over that of what it meets. Of a
framework's operators with several outputs each output that is used is an operator here: the parts of a split are
``Slice``s of one input.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators import (  # noqa: F401  # each registers its classes
    elementwise,
    images,
    layers,
    lookups,
    moving,
    norms,
    pooling,
    recurrent,
    reductions,
)
from slotool.graphs.operators.attributes import (
    DTYPES,
    Attributes,
    Shape,
    broadcast,
    channel_axis,
    per_channel,
    stretches_as,
)
from slotool.graphs.operators.base import (
    BYTES_PER_VALUE,
    OPERATORS,
    REQUIRED,
    Effect,
    Operator,
    OperatorType,
)
from slotool.graphs.operators.windows import output_size, padding_around, sides

__all__ = [
    "BYTES_PER_VALUE",
    "DTYPES",
    "MAX_OPERATOR_SIZE",
    "OPERATORS",
    "REQUIRED",
    "Attributes",
    "Effect",
    "Operator",
    "OperatorType",
    "Shape",
    "broadcast",
    "channel_axis",
    "infer",
    "make_operator",
    "output_size",
    "padding_around",
    "per_channel",
    "resolve",
    "sides",
    "stretches_as",
]

# Random networks repeat the same layers thousands of times; made once, their text and structure are kept too.
MAX_CACHED = 16_384
# Values, weights and FLOPs of one operator: thousands of the largest still add up within 64 bits.
MAX_OPERATOR_SIZE = 2**50
_CACHE: dict[tuple[Any, ...], Operator] = {}
_RESOLVED: dict[tuple[Any, ...], tuple[dict[str, Any], Effect]] = {}


def infer(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Return the effect of a known operator. Raises ``GraphError`` for an unknown one, or shapes that do not fit it."""
    return resolve(op, attributes, inputs)[1]


def resolve(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> tuple[dict[str, Any], Effect]:
    """Return a known operator's attributes in their one canonical form, and its effect.

    Canonical means: what equals its default is left out (but a pooling's stride is always said), a square pair is one
    number, a padding that pads nothing is left out, one that pads as 'same' does is called so. Thus equal layers have
    equal attributes however they were written. Raises ``GraphError`` for an unknown operator or attribute, or shapes
    that do not fit.
    """
    # repr, unlike equality, tells 1 from True and 1.0.
    key = (op, tuple(map(tuple, inputs)), repr(attributes))
    if key not in _RESOLVED:
        if len(_RESOLVED) >= MAX_CACHED:
            _RESOLVED.clear()
        _RESOLVED[key] = _resolved(op, attributes, inputs)
    canonical, effect = _RESOLVED[key]
    return dict(canonical), effect


def _resolved(op: str, attributes: Attributes, inputs: Sequence[Shape]) -> tuple[dict[str, Any], Effect]:
    if op not in OPERATORS:
        raise GraphError(f"unknown operator {op!r}; known are {', '.join(OPERATORS)}")
    kind = OPERATORS[op]
    canonical = kind.canonical(attributes)
    if len(inputs) != kind.inputs if kind.inputs is not None else not inputs:
        expected = "one or more" if kind.inputs is None else kind.inputs
        raise GraphError(f"{op} takes {expected} inputs, not {len(inputs)}")
    try:
        kind.settle(canonical, inputs)
        effect = kind.infer({**kind.attributes, **canonical}, inputs)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{op} cannot take inputs {list(map(list, inputs))} with {canonical}") from error
    if any(size < 1 for size in effect.shape):
        raise GraphError(f"{op} would leave nothing of its input: output shape {list(effect.shape)}")
    return canonical, effect


def make_operator(
    name: str,
    op: str,
    inputs: tuple[str, ...],
    shapes: Sequence[Shape],
    attributes: Mapping[str, Any],
    stated: Effect | None = None,
) -> Operator:
    """Return an operator on inputs of these ``shapes``: inferred when it is known, else as ``stated``.

    Raises ``GraphError``, naming it, for shapes or attributes that do not fit, or an unknown one with nothing stated.
    """
    shapes = tuple(shapes)
    if op not in OPERATORS:
        if stated is None:
            raise GraphError(f"operator {name!r}: {op!r} is unknown, so its shape must be stated")
        return _operator(name, op, inputs, shapes, dict(attributes), stated)
    # repr, unlike equality, tells 1 from True and 1.0.
    key = (name, op, inputs, shapes, repr(attributes))
    if key not in _CACHE:
        if len(_CACHE) >= MAX_CACHED:
            _CACHE.clear()
        try:
            canonical, effect = resolve(op, attributes, shapes)
        except GraphError as error:
            raise GraphError(f"operator {name!r}: {error}") from error
        _CACHE[key] = _operator(name, op, inputs, shapes, canonical, effect)
    return _CACHE[key]


def _operator(
    name: str, op: str, inputs: tuple[str, ...], shapes: Sequence[Shape], attributes: Mapping[str, Any], effect: Effect
) -> Operator:
    """Return an operator. Raises ``GraphError`` for sizes that arrays of 64-bit numbers cannot add up."""
    values = math.prod(effect.shape)
    for what, size in {"output values": values, "weights": effect.weights, "FLOPs": effect.flops}.items():
        if size > MAX_OPERATOR_SIZE:
            limit = f"at most {MAX_OPERATOR_SIZE:.3g} can be counted"
            # No float holds the largest that a file may state.
            number = f"{float(size):.3g}" if size < sys.float_info.max else "more than 1e308"
            raise GraphError(f"operator {name!r}: {number} {what}, {limit}")
    moved = sum(map(math.prod, shapes)) + values if effect.moved is None else effect.moved
    costs = (effect.weights, effect.flops, moved, effect.calls)
    return Operator(name, op, inputs, attributes, effect.shape, *costs, tuple(shapes))
