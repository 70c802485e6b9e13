"""Views, which cost nothing, and copies, which move bytes; neither computes anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.libraries import functional, keras, nn, torch, torch_parts
from slotool.graphs.operators.attributes import (
    Attributes,
    Shape,
    broadcast,
    chosen_axis,
    settle_axis,
    settle_channel_axis,
    settle_order,
    within,
)
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import (
    Initializer,
    Value,
    by_layer,
    for_each_example,
    is_computed,
    layer_name,
    reshaped,
    without,
)
from slotool.graphs.operators.onnx_writer import INT64, Writer, widest

if TYPE_CHECKING:
    from torch import Tensor

PAD_MODES = ("constant", "reflect", "edge", "wrap")
_TORCH_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


class Flatten(OperatorType):
    passes_numbers = True

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect((math.prod(inputs[0]),), moved=0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.Flatten()

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("Flatten", values[0], axis=1)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        return by_layer(keras.layers.Flatten(name=layer_name(operator.name)), operator.shape, values)


class Reshape(OperatorType):
    attributes = {"shape": REQUIRED}
    passes_numbers = True

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if math.prod(attributes["shape"]) != math.prod(inputs[0]):
            raise GraphError(f"Reshape cannot make {list(attributes['shape'])} of {list(inputs[0])}")
        return Effect(attributes["shape"], moved=0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        shape = operator.shape
        return lambda x: x.reshape(len(x), *shape)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        # 0 keeps the batch as it is.
        return writer.node("Reshape", values[0], writer.integers(0, *operator.shape))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        return reshaped(values[0], operator.input_shapes[0], operator.shape)


class Transpose(OperatorType):
    """``axes``: which axis of the input each axis of the output is."""

    attributes = {"axes": REQUIRED}
    has_memory = False
    passes_numbers = True
    settle = staticmethod(settle_order)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if len(attributes["axes"]) != len(inputs[0]):
            raise GraphError(f"Transpose of {list(inputs[0])} by {list(attributes['axes'])} does not name every axis")
        return Effect(tuple(inputs[0][axis] for axis in attributes["axes"]), moved=0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        order = (0, *(axis + 1 for axis in operator["axes"]))
        return lambda x: x.permute(order)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("Transpose", values[0], perm=[0, *(axis + 1 for axis in operator["axes"])])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        axes = list(operator["axes"])
        return Value(values[0].tensor, tuple(axes.index(axis) for axis in values[0].order))


class Slice(OperatorType):
    """Slice of ``size`` values along an axis, from ``start``, every ``step``-th.

    Without ``keepdims`` an axis of one value is removed.
    """

    attributes = {"axis": REQUIRED, "start": 0, "size": REQUIRED, "step": 1, "keepdims": True}
    has_memory = False
    passes_numbers = True
    settle = staticmethod(settle_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape, axis, size = list(inputs[0]), attributes["axis"], attributes["size"]
        if attributes["start"] + (size - 1) * attributes["step"] >= shape[axis]:
            raise GraphError(f"there are no such {size} values along axis {axis} of {shape}")
        if attributes["keepdims"]:
            shape[axis] = size
        elif size == 1:
            del shape[axis]
        else:
            raise GraphError(f"an axis of {size} values cannot go")
        return Effect(tuple(shape), moved=0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis, places = operator["axis"] + 1, self._places(operator)
        if not operator["keepdims"]:
            return lambda x: x.select(axis, places.start)
        if places.step == 1:
            return lambda x: x.narrow(axis, places.start, len(places))
        where = (*[slice(None)] * axis, slice(places.start, places.stop, places.step))
        return lambda x: x[where]

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axis, places = operator["axis"] + 1, self._places(operator)
        if not operator["keepdims"]:
            return writer.node("Gather", values[0], writer.number(places.start, INT64), axis=axis)
        return writer.cut(values[0], axis, places.start, places.stop, places.step)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (value,), axis, places = values, operator["axis"], self._places(operator)
        before = (slice(None),) * value.at(axis)
        if not operator["keepdims"]:
            return Value(value.tensor[(*before, places.start)], without(value.order, [axis]))
        return Value(value.tensor[(*before, slice(places.start, places.stop, places.step))], value.order)

    def _places(self, operator: Operator) -> range:
        """Return the places along the axis whose values are left."""
        attributes = operator.complete
        start, size, step = attributes["start"], attributes["size"], attributes["step"]
        return range(start, start + (size - 1) * step + 1, step)


class Expand(OperatorType):
    """The input stretched to ``shape``, without a copy."""

    attributes = {"shape": REQUIRED}
    captured = {"keras.BroadcastTo": lambda call: {"shape": call.shape}}
    has_memory = False
    passes_numbers = True

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if broadcast([inputs[0], attributes["shape"]]) != attributes["shape"]:
            raise GraphError(f"{list(inputs[0])} does not stretch to {list(attributes['shape'])}")
        return Effect(attributes["shape"], moved=0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        new, shape = self._new_axes(operator), operator.shape
        return lambda x: x.reshape(len(x), *new, *x.shape[1:]).expand(len(x), *shape)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        new = self._new_axes(operator)
        value = writer.shaped(values[0], *new, *operator.input_shapes[0]) if new else values[0]
        return writer.node("Expand", value, writer.integers(1, *operator.shape))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        before = (*self._new_axes(operator), *operator.input_shapes[0])
        times = [new // old for old, new in zip(before, operator.shape, strict=True)]
        tensor = keras.ops.reshape(values[0].stated(), (-1, *before))
        return Value.as_stated(keras.ops.tile(tensor, (1, *times)), len(operator.shape))

    def _new_axes(self, operator: Operator) -> list[int]:
        return [1] * (len(operator.shape) - len(operator.input_shapes[0]))


class Copy(OperatorType):
    """Copy of values in order, for a view that cannot stay one."""

    passes_numbers = True

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return lambda x: x.clone(memory_format=torch.contiguous_format)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        # Nodes that turn values have written them anew already.
        return writer.node("Identity", values[0])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        return Value.as_stated(values[0].stated(), len(operator.shape))


class _Join(OperatorType, abstract=True):
    """Inputs side by side along an axis, in the type that all of them become."""

    inputs = None
    passes_numbers = True

    def onnx_kind(self, operator: Operator, kinds: Sequence[int]) -> int:
        return widest(kinds)


class Concatenate(_Join):
    attributes = {"axis": None}
    captured = {"onnx.Concat": lambda call: {"axis": call.inner(call.attribute("axis", 1))}}
    settle = staticmethod(settle_channel_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        axis = chosen_axis(attributes, inputs[0])
        rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
        if len(rest) != 1 or len({len(shape) for shape in inputs}) != 1:
            raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
        return Effect((*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis = chosen_axis(operator.attributes, operator.shape) + 1
        return lambda *parts: torch.cat(tuple(torch_parts.of_one_batch(*parts)), dim=axis)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axis = chosen_axis(operator.attributes, operator.shape) + 1
        return writer.node("Concat", *writer.of_one_batch(writer.of_one_type(values), operator.input_shapes), axis=axis)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        if len(values) == 1:
            return values[0]
        parts = for_each_example(values)
        order = next((value.order for value in values if is_computed(value)), values[0].order)
        tensors = [part.in_order(order) for part in parts]
        at = 1 + order.index(chosen_axis(operator.attributes, operator.shape))
        if all(map(is_computed, parts)):
            return Value(keras.layers.Concatenate(axis=at, name=layer_name(operator.name))(tensors), order)
        return Value(keras.ops.concatenate(tensors, axis=at), order)


class Stack(_Join):
    attributes = {"axis": REQUIRED}

    def settle(self, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        attributes["axis"] = within(attributes["axis"], len(inputs[0]) + 1)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if len(set(inputs)) != 1:
            raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
        axis = attributes["axis"]
        return Effect((*inputs[0][:axis], len(inputs), *inputs[0][axis:]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis = operator["axis"] + 1
        return lambda *parts: torch.stack(tuple(torch_parts.of_one_batch(*parts)), dim=axis)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axis = operator["axis"] + 1
        parts = writer.of_one_batch(writer.of_one_type(values), operator.input_shapes)
        return writer.node("Concat", *(writer.node("Unsqueeze", x, writer.integers(axis)) for x in parts), axis=axis)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        parts = [part.stated() for part in for_each_example(values)]
        return Value.as_stated(keras.ops.stack(parts, axis=operator["axis"] + 1), len(operator.shape))


class Repeat(OperatorType):
    """The input so many times along each axis, written out."""

    attributes = {"repeats": REQUIRED}
    passes_numbers = True

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        repeats = attributes["repeats"]
        if len(repeats) != len(inputs[0]):
            raise GraphError(f"Repeat of {list(inputs[0])} by {list(repeats)} does not say how often along every axis")
        return Effect(tuple(size * times for size, times in zip(inputs[0], repeats, strict=True)))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        repeats = (1, *operator["repeats"])
        return lambda x: x.repeat(repeats)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("Tile", values[0], writer.integers(1, *operator["repeats"]))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        tiled = keras.ops.tile(values[0].stated(), (1, *operator["repeats"]))
        return Value.as_stated(tiled, len(operator.shape))


class Pad(OperatorType):
    """``pads``: how much is added before each axis, then after each axis (as in ONNX)."""

    attributes = {"pads": REQUIRED, "mode": "constant"}

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        pads, rank = attributes["pads"], len(inputs[0])
        if attributes["mode"] not in PAD_MODES:
            raise GraphError(f"unknown mode {attributes['mode']!r} of Pad; known are {', '.join(PAD_MODES)}")
        if len(pads) != 2 * rank:
            raise GraphError(f"Pad of {list(inputs[0])} needs {2 * rank} numbers, not {len(pads)}")
        return Effect(tuple(size + pads[axis] + pads[rank + axis] for axis, size in enumerate(inputs[0])))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        pads, mode, rank = operator["pads"], operator["mode"], len(operator.shape)
        around = [(pads[axis], pads[rank + axis]) for axis in range(rank)]
        if mode == "constant":
            flat = [side for sides in reversed(around) for side in sides]
            return lambda x: functional.pad(x, flat)
        return partial(_padded, around=around, pad=partial(functional.pad, mode=_TORCH_PAD_MODES[mode]))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        pads, rank = operator["pads"], len(operator.shape)
        around = writer.integers(0, *pads[:rank], 0, *pads[rank:])
        return writer.node("Pad", values[0], around, mode=operator["mode"])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (value,), pads, rank = values, operator["pads"], len(operator.shape)
        mode = operator["mode"]
        if mode not in ("constant", "reflect"):
            raise cannot_be_built(operator, "Keras", f"Pad by {mode}")
        around = [(0, 0), *((pads[axis], pads[rank + axis]) for axis in value.order)]
        return Value(keras.ops.pad(value.tensor, around, mode=mode), value.order)


def _padded(x: Tensor, around: Sequence[tuple[int, int]], pad: TensorFunction) -> Tensor:
    """Return a tensor padded with its own values, axis by axis.

    Torch pads so at most the last three, and only behind two others.
    """
    for axis, sides in enumerate(around, start=1):
        if any(sides):
            last = x.movedim(axis, -1)
            flat = pad(last.reshape(1, -1, last.shape[-1]), sides)
            x = flat.reshape(*last.shape[:-1], flat.shape[-1]).movedim(-1, axis)
    return x


class Roll(OperatorType):
    attributes = {"shifts": REQUIRED, "axes": REQUIRED}
    captured = {
        "torch.roll": lambda call: {"shifts": call["shifts"], "axes": call.axes("dims")} if call["dims"] else None,
        "keras.Roll": lambda call: {"shifts": call.operation.shift, "axes": call.axes()},
    }
    passes_numbers = True
    settle = staticmethod(settle_order)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if len(attributes["shifts"]) != len(attributes["axes"]):
            raise GraphError("Roll needs one shift for each of its axes")
        return Effect(inputs[0])

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        shifts, axes = operator["shifts"], [axis + 1 for axis in operator["axes"]]
        return lambda x: x.roll(shifts, axes)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        value = values[0]
        for shift, axis in zip(operator["shifts"], operator["axes"], strict=True):
            size = operator.shape[axis]
            at = -shift % size
            if at:
                ends = writer.cut(value, axis + 1, at, size), writer.cut(value, axis + 1, 0, at)
                value = writer.node("Concat", *ends, axis=axis + 1)
        return value if value != values[0] else writer.node("Identity", value)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (value,), tensor = values, values[0].tensor
        for shift, axis in zip(operator["shifts"], operator["axes"], strict=True):
            tensor = keras.ops.roll(tensor, shift, axis=value.at(axis))
        return Value(tensor, value.order)


class Flip(OperatorType):
    attributes = {"axes": REQUIRED}
    captured = {
        "torch.flip": lambda call: {"axes": call.axes("dims")},
        "keras.Flip": lambda call: {"axes": call.axes()},
    }
    passes_numbers = True
    settle = staticmethod(settle_order)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axes = [axis + 1 for axis in operator["axes"]]
        return lambda x: x.flip(axes)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        value = values[0]
        for axis in operator["axes"]:
            value = writer.cut(value, axis + 1, -1, -(operator.shape[axis] + 1), -1)
        return value

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        axes = [values[0].at(axis) for axis in operator["axes"]]
        return Value(keras.ops.flip(values[0].tensor, axis=axes), values[0].order)
