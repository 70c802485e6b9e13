"""What each known operator does to shapes, and what it costs: one entry per operator, at the Keras layer level.

Shapes leave the batch out and put channels first: ``(features,)``, ``(steps, features)`` or ``(channels, height,
width)``. FLOPs are per example, a multiply-add counting two. An activation that is an attribute of the layer before
it, as in Keras, is free here. One file per group of operators: ``layers``, ``windows``, ``arithmetic`` and ``moving``.

A ``Constant`` and what is computed from constants alone has no batch; it stretches over that of what it meets. Of a
framework's operators with several outputs each output that is used is an operator here: the parts of a split are
``Slice``s of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators.arithmetic import ARITHMETIC, FUNCTIONS
from slotool.graphs.operators.axes import broadcast, channel_axis, per_channel, stretches_as
from slotool.graphs.operators.forms import DTYPES, canonical
from slotool.graphs.operators.kinds import BYTES_PER_VALUE, REQUIRED, Attributes, Effect, Infer, OperatorType, Shape
from slotool.graphs.operators.layers import LAYERS
from slotool.graphs.operators.moving import MOVING
from slotool.graphs.operators.windows import (
    WINDOWS,
    output_size,
    padding_around,
    pair,
    sides,
    window_padding,
    zero_padding,
)

__all__ = [
    "BYTES_PER_VALUE",
    "DTYPES",
    "FUNCTIONS",
    "OPERATORS",
    "REQUIRED",
    "Attributes",
    "Effect",
    "Infer",
    "OperatorType",
    "Shape",
    "broadcast",
    "channel_axis",
    "infer",
    "output_size",
    "padding_around",
    "pair",
    "per_channel",
    "resolve",
    "sides",
    "stretches_as",
    "window_padding",
    "zero_padding",
]

OPERATORS: dict[str, OperatorType] = {**LAYERS, **WINDOWS, **ARITHMETIC, **MOVING}


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
    kept = canonical(op, kind, attributes)
    if len(inputs) != kind.inputs if kind.inputs is not None else not inputs:
        wanted = "one or more" if kind.inputs is None else kind.inputs
        raise GraphError(f"{op} takes {wanted} inputs, not {len(inputs)}")
    try:
        if kind.settle is not None:
            kind.settle(kept, inputs)
        effect = kind.infer(kept, inputs)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise GraphError(f"{op} cannot take inputs {list(map(list, inputs))} with {kept}") from error
    if any(size < 1 for size in effect.shape):
        raise GraphError(f"{op} would leave nothing of its input: output shape {list(effect.shape)}")
    return kept, effect
