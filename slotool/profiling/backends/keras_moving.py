"""Views, copies and lookups in Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.profiling.backends.keras_values import (
    Function,
    Initializer,
    Value,
    for_each_example,
    is_computed,
    layer_name,
    reshaped,
    without,
)


def _reshape(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    return reshaped(values[0], inputs[0], operator.shape)


def _transpose(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    axes = list(operator.attributes["axes"])
    return Value(values[0].tensor, tuple(axes.index(axis) for axis in values[0].order))


def _copy(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    return Value.as_stated(values[0].stated(), len(inputs[0]))


def _slice(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    (value,), attributes = values, operator.attributes
    axis, start, size = attributes["axis"], attributes.get("start", 0), attributes["size"]
    step = attributes.get("step", 1)
    before = (slice(None),) * value.at(axis)
    if not attributes.get("keepdims", True):
        return Value(value.tensor[(*before, start)], without(value.order, [axis]))
    return Value(value.tensor[(*before, slice(start, start + (size - 1) * step + 1, step))], value.order)


def _expand(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    shape = operator.shape
    before = (*[1] * (len(shape) - len(inputs[0])), *inputs[0])
    times = [new // old for old, new in zip(before, shape, strict=True)]
    tensor = keras.ops.reshape(values[0].stated(), (-1, *before))
    return Value.as_stated(keras.ops.tile(tensor, (1, *times)), len(shape))


def _concatenate(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    if len(values) == 1:
        return values[0]
    axis = operator.attributes.get("axis", channel_axis(inputs[0]))
    parts = for_each_example(values)
    order = next((value.order for value in values if is_computed(value)), values[0].order)
    tensors = [part.in_order(order) for part in parts]
    at = 1 + order.index(axis)
    if all(map(is_computed, parts)):
        return Value(keras.layers.Concatenate(axis=at, name=layer_name(operator))(tensors), order)
    return Value(keras.ops.concatenate(tensors, axis=at), order)


def _stack(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    parts = [part.stated() for part in for_each_example(values)]
    return Value.as_stated(keras.ops.stack(parts, axis=operator.attributes["axis"] + 1), len(operator.shape))


def _repeat(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    tiled = keras.ops.tile(values[0].stated(), (1, *operator.attributes["repeats"]))
    return Value.as_stated(tiled, len(operator.shape))


def _pad(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    (value,), pads, rank = values, operator.attributes["pads"], len(inputs[0])
    mode = operator.attributes.get("mode", "constant")
    if mode not in ("constant", "reflect"):
        raise GraphError(f"operator {operator.name!r}: Pad by {mode} cannot be built in Keras")
    around = [(0, 0), *((pads[axis], pads[rank + axis]) for axis in value.order)]
    return Value(keras.ops.pad(value.tensor, around, mode=mode), value.order)


def _roll(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    (value,), shifts = values, operator.attributes["shifts"]
    tensor: Any = value.tensor
    for shift, axis in zip(shifts, operator.attributes["axes"], strict=True):
        tensor = keras.ops.roll(tensor, shift, axis=value.at(axis))
    return Value(tensor, value.order)


def _flip(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    axes = [values[0].at(axis) for axis in operator.attributes["axes"]]
    return Value(keras.ops.flip(values[0].tensor, axis=axes), values[0].order)


def _gather(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    data, places = values
    if is_computed(places):
        raise GraphError(f"operator {operator.name!r}: Gather of computed places cannot be built in Keras")
    axis = operator.attributes["axis"]
    return Value.as_stated(keras.ops.take(data.stated(), places.stated()[0], axis=axis + 1), len(operator.shape))


MOVING: dict[str, Function] = {
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Copy": _copy,
    "Slice": _slice,
    "Expand": _expand,
    "Concatenate": _concatenate,
    "Stack": _stack,
    "Repeat": _repeat,
    "Pad": _pad,
    "Roll": _roll,
    "Flip": _flip,
    "Gather": _gather,
}
