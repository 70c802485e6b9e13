"""Views, copies and lookups in ONNX, where each writes its output."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.profiling.backends.onnx_writer import INT32, INT64, Layer, Writer


def _flatten(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Flatten", values[0], axis=1)


def _reshape(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    # 0 keeps the batch as it is.
    return writer.node("Reshape", values[0], writer.integers(0, *operator.shape))


def _transpose(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Transpose", values[0], perm=[0, *(axis + 1 for axis in operator.attributes["axes"])])


def _slice(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes = operator.attributes
    axis, start, size = attributes["axis"] + 1, attributes.get("start", 0), attributes["size"]
    step = attributes.get("step", 1)
    if not attributes.get("keepdims", True):
        return writer.node("Gather", values[0], writer.number(start, INT64), axis=axis)
    return _cut(writer, values[0], axis, start, start + (size - 1) * step + 1, step)


def _cut(writer: Writer, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
    places = (writer.integers(number) for number in (start, end, axis, step))
    return writer.node("Slice", value, *places)


def _expand(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    new = [1] * (len(operator.shape) - len(inputs[0]))
    value = writer.shaped(values[0], *new, *inputs[0]) if new else values[0]
    return writer.node("Expand", value, writer.integers(1, *operator.shape))


def _copy(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """Whatever turned the values before has written them anew already."""
    return writer.node("Identity", values[0])


def _concatenate(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axis = operator.attributes.get("axis", channel_axis(inputs[0])) + 1
    return writer.node("Concat", *writer.of_one_batch(writer.alike(values), inputs), axis=axis)


def _stack(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axis, parts = operator.attributes["axis"] + 1, writer.of_one_batch(writer.alike(values), inputs)
    return writer.node("Concat", *(writer.node("Unsqueeze", x, writer.integers(axis)) for x in parts), axis=axis)


def _repeat(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Tile", values[0], writer.integers(1, *operator.attributes["repeats"]))


def _pad(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    pads, rank = operator.attributes["pads"], len(inputs[0])
    around = writer.integers(0, *pads[:rank], 0, *pads[rank:])
    return writer.node("Pad", values[0], around, mode=operator.attributes.get("mode", "constant"))


def _roll(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    value = values[0]
    for shift, axis in zip(operator.attributes["shifts"], operator.attributes["axes"], strict=True):
        size = inputs[0][axis]
        at = -shift % size
        if at:
            ends = _cut(writer, value, axis + 1, at, size), _cut(writer, value, axis + 1, 0, at)
            value = writer.node("Concat", *ends, axis=axis + 1)
    return value if value != values[0] else writer.node("Identity", value)


def _flip(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    value = values[0]
    for axis in operator.attributes["axes"]:
        value = _cut(writer, value, axis + 1, -1, -(inputs[0][axis] + 1), -1)
    return value


def _gather(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    (data, places), axis = values, operator.attributes["axis"]
    if writer.kind(places) != INT32:
        places = writer.cast(places, INT64)
    if places in writer.free or writer.batch_size == 1:
        alone = writer.node("Squeeze", places, writer.integers(0))
        return writer.node("Gather", data, alone, axis=axis + 1)
    if data in writer.free:
        found = writer.node("Gather", writer.node("Squeeze", data, writer.integers(0)), places, axis=axis)
        rank = len(operator.shape) + 1
        order = [axis, *range(axis), *range(axis + 1, rank)]
        return writer.node("Transpose", found, perm=order) if axis else found
    before, after = math.prod(inputs[0][:axis]), math.prod(inputs[0][axis + 1 :])
    flat = writer.shaped(data, before, inputs[0][axis], after)
    count = math.prod(inputs[1])
    rows = writer.node("Expand", writer.shaped(places, 1, count, 1), writer.integers(1, before, count, after))
    return writer.shaped(writer.node("GatherElements", flat, rows, axis=2), *operator.shape)


def _gather_elements(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    data, places = writer.of_one_batch(values, inputs)
    return writer.node("GatherElements", data, writer.cast(places, INT64), axis=operator.attributes["axis"] + 1)


def _scatter(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    if len(inputs) != 3 or inputs[1] != inputs[2] or len(inputs[0]) != len(inputs[1]):
        raise GraphError(f"operator {operator.name!r}: Scatter without a place for each value cannot be built in ONNX")
    data, places, updates = writer.of_one_batch(values, inputs)
    places, axis = writer.cast(places, INT64), operator.attributes.get("axis", 0) + 1
    return writer.node("ScatterElements", data, places, writer.cast(updates, writer.kind(data)), axis=axis)


MOVING: dict[str, Layer] = {
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Expand": _expand,
    "Copy": _copy,
    "Concatenate": _concatenate,
    "Stack": _stack,
    "Repeat": _repeat,
    "Pad": _pad,
    "Roll": _roll,
    "Flip": _flip,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Scatter": _scatter,
}
