"""Operators that compute nothing: views, which cost nothing, and copies, which move bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators.axes import broadcast, chosen_axis, settle_axis, settle_channel_axis, settle_order, within
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, OperatorType, Shape

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _flatten(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((math.prod(inputs[0]),), moved=0)


def _reshape(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if math.prod(attributes["shape"]) != math.prod(inputs[0]):
        raise GraphError(f"Reshape cannot make {list(attributes['shape'])} of {list(inputs[0])}")
    return Effect(attributes["shape"], moved=0)


def _transpose(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """``axes``: which axis of the input each axis of the output is."""
    if len(attributes["axes"]) != len(inputs[0]):
        raise GraphError(f"Transpose of {list(inputs[0])} by {list(attributes['axes'])} does not name every axis")
    return Effect(tuple(inputs[0][axis] for axis in attributes["axes"]), moved=0)


def _slice(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """``size`` values along an axis, from ``start`` on, every ``step``-th; without ``keepdims`` the axis goes, of which
    one value is left."""
    shape, axis, size = list(inputs[0]), attributes["axis"], attributes["size"]
    if attributes.get("start", 0) + (size - 1) * attributes.get("step", 1) >= shape[axis]:
        raise GraphError(f"there are no such {size} values along axis {axis} of {shape}")
    if attributes.get("keepdims", True):
        shape[axis] = size
    elif size == 1:
        del shape[axis]
    else:
        raise GraphError(f"an axis of {size} values cannot go")
    return Effect(tuple(shape), moved=0)


def _expand(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The input stretched to ``shape``, without a copy."""
    if broadcast([inputs[0], attributes["shape"]]) != attributes["shape"]:
        raise GraphError(f"{list(inputs[0])} does not stretch to {list(attributes['shape'])}")
    return Effect(attributes["shape"], moved=0)


def _copy(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The same values written anew, one beside the other: what follows a view that cannot stay one."""
    return Effect(inputs[0])


def _repeat(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The input so many times along each axis, written out."""
    repeats = attributes["repeats"]
    if len(repeats) != len(inputs[0]):
        raise GraphError(f"Repeat of {list(inputs[0])} by {list(repeats)} does not say how often along every axis")
    return Effect(tuple(size * times for size, times in zip(inputs[0], repeats, strict=True)))


def _pad(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """``pads``: how much is added before each axis, then after each axis (as in ONNX)."""
    pads, rank = attributes["pads"], len(inputs[0])
    if attributes.get("mode", "constant") not in PAD_MODES:
        raise GraphError(f"unknown mode {attributes['mode']!r} of Pad; known are {', '.join(PAD_MODES)}")
    if len(pads) != 2 * rank:
        raise GraphError(f"Pad of {list(inputs[0])} needs {2 * rank} numbers, not {len(pads)}")
    return Effect(tuple(size + pads[axis] + pads[rank + axis] for axis, size in enumerate(inputs[0])))


def _concatenate(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    axis = chosen_axis(attributes, inputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    if len(rest) != 1 or len({len(shape) for shape in inputs}) != 1:
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    return Effect((*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :]))


def _stack(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if len(set(inputs)) != 1:
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    axis = attributes["axis"]
    return Effect((*inputs[0][:axis], len(inputs), *inputs[0][axis:]))


def _settle_stack(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    attributes["axis"] = within(attributes["axis"], len(inputs[0]) + 1)


def _same_size(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0])


def _roll(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if len(attributes["shifts"]) != len(attributes["axes"]):
        raise GraphError("Roll needs one shift for each of its axes")
    return Effect(inputs[0])


def _gather(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Values along an axis by their numbers: data (a, n, b) by indices (c, d) is (a, c, d, b)."""
    (data, indices), axis = inputs, attributes["axis"]
    shape = (*data[:axis], *indices, *data[axis + 1 :])
    return Effect(shape, moved=2 * math.prod(shape) + math.prod(indices))


def _gather_elements(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Of each place of the indices the value that they name along an axis (torch.gather)."""
    data, indices = inputs
    if len(data) != len(indices):
        raise GraphError(f"GatherElements cannot take {list(data)} by indices {list(indices)}")
    return Effect(indices, moved=3 * math.prod(indices))


def _scatter(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Of data, indices and updates: data with updates written or added at places that the indices name. ``in_place``:
    the data after another operator has written into a view of it."""
    if attributes.get("in_place"):
        return Effect(inputs[0], moved=0)
    if len(inputs) > 3:
        raise GraphError("Scatter takes data, indices and updates")
    return Effect(inputs[0], moved=2 * math.prod(inputs[0]) + 2 * math.prod(inputs[-1]))


MOVING: dict[str, OperatorType] = {
    "Flatten": OperatorType(_flatten),
    "Reshape": OperatorType(_reshape, {"shape": REQUIRED}),
    "Transpose": OperatorType(_transpose, {"axes": REQUIRED}, settle=settle_order),
    "Slice": OperatorType(
        _slice, {"axis": REQUIRED, "start": 0, "size": REQUIRED, "step": 1, "keepdims": True}, settle=settle_axis
    ),
    "Expand": OperatorType(_expand, {"shape": REQUIRED}),
    "Copy": OperatorType(_copy),
    "Concatenate": OperatorType(_concatenate, {"axis": None}, inputs=None, settle=settle_channel_axis),
    "Stack": OperatorType(_stack, {"axis": REQUIRED}, inputs=None, settle=_settle_stack),
    "Repeat": OperatorType(_repeat, {"repeats": REQUIRED}),
    "Pad": OperatorType(_pad, {"pads": REQUIRED, "mode": "constant"}),
    "Roll": OperatorType(_roll, {"shifts": REQUIRED, "axes": REQUIRED}, settle=settle_order),
    "Flip": OperatorType(_same_size, {"axes": REQUIRED}, settle=settle_order),
    "Gather": OperatorType(_gather, {"axis": REQUIRED}, inputs=2, settle=settle_axis),
    "GatherElements": OperatorType(_gather_elements, {"axis": REQUIRED}, inputs=2, settle=settle_axis),
    "Scatter": OperatorType(_scatter, {"axis": 0, "in_place": False}, inputs=None, settle=settle_axis),
}
