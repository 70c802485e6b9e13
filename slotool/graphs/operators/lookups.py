"""Lookups: values by the numbers of their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, torch, torch_parts
from slotool.graphs.operators.attributes import Attributes, Shape, settle_axis
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, is_computed, layer_name
from slotool.graphs.operators.onnx_writer import FLOAT, INT32, INT64, Writer

if TYPE_CHECKING:
    from torch import Tensor


class Embedding(OperatorType):
    """A row of ``units`` numbers for each of the whole numbers, which are below ``vocabulary``."""

    attributes = {"vocabulary": REQUIRED, "units": REQUIRED}
    feature_axis = -1
    places = 0
    onnx_type = FLOAT

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape = (*inputs[0], attributes["units"])
        weights = attributes["vocabulary"] * attributes["units"]
        return Effect(shape, weights, moved=math.prod(inputs[0]) + 2 * math.prod(shape))

    def place_count(self, operator: Operator) -> int:
        return int(operator["vocabulary"])

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        rows, width = operator["vocabulary"], operator["units"]
        table = torch.empty(rows, width, device=device)
        # No values are drawn on the meta device: torch would import a compiler for it, which takes a second.
        if not table.is_meta:
            table.normal_()
        return torch.nn.Embedding(rows, width, _weight=table)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        table = writer.weight(operator["vocabulary"], operator["units"])
        places = values[0] if writer.kind(values[0]) == INT32 else writer.cast(values[0], INT64)
        return writer.node("Gather", table, places, axis=0)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        vocabulary, units = operator["vocabulary"], operator["units"]
        layer = keras.layers.Embedding(
            vocabulary, units, embeddings_initializer=weights, name=layer_name(operator.name)
        )
        return Value.as_stated(layer(values[0].stated()), len(operator.shape))


class Gather(OperatorType):
    """Values along an axis by their numbers: data (a, n, b) by indices (c, d) is (a, c, d, b)."""

    attributes = {"axis": REQUIRED}
    inputs = 2
    places = 1
    passes_numbers = True
    settle = staticmethod(settle_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (data, indices), axis = inputs, attributes["axis"]
        shape = (*data[:axis], *indices, *data[axis + 1 :])
        return Effect(shape, moved=2 * math.prod(shape) + math.prod(indices))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return partial(_gathered, axis=operator["axis"])

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (data, places), (shape, indices), axis = values, operator.input_shapes, operator["axis"]
        if writer.kind(places) != INT32:
            places = writer.cast(places, INT64)
        if places in writer.free or writer.batch_size == 1:
            alone = writer.node("Squeeze", places, writer.integers(0))
            return writer.node("Gather", data, alone, axis=axis + 1)
        if data in writer.free:
            gathered = writer.node("Gather", writer.node("Squeeze", data, writer.integers(0)), places, axis=axis)
            order = [axis, *range(axis), *range(axis + 1, len(operator.shape) + 1)]
            return writer.node("Transpose", gathered, perm=order) if axis else gathered
        before, count, after = math.prod(shape[:axis]), math.prod(indices), math.prod(shape[axis + 1 :])
        flat = writer.shaped(data, before, shape[axis], after)
        rows = writer.node("Expand", writer.shaped(places, 1, count, 1), writer.integers(1, before, count, after))
        return writer.shaped(writer.node("GatherElements", flat, rows, axis=2), *operator.shape)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        data, places = values
        if is_computed(places):
            raise cannot_be_built(operator, "Keras", "Gather of computed places")
        axis = operator["axis"]
        return Value.as_stated(keras.ops.take(data.stated(), places.stated()[0], axis=axis + 1), len(operator.shape))


def _gathered(data: Tensor, places: Tensor, axis: int) -> Tensor:
    """Return data [batch, *before, n, *after] by places [batch, *shape]; either may be the same for every example."""
    places = places.long()
    if len(places) == 1:
        gathered = data.index_select(axis + 1, places.flatten())
        return gathered.reshape(*data.shape[: axis + 1], *places.shape[1:], *data.shape[axis + 2 :])
    before, after = data.shape[1 : axis + 1], data.shape[axis + 2 :]
    if len(data) == 1:
        gathered = data[0].index_select(axis, places.flatten())
        return gathered.reshape(*before, *places.shape, *after).movedim(len(before), 0)
    flat = data.reshape(len(data), math.prod(before), -1, math.prod(after))
    rows = places.reshape(len(places), 1, -1, 1).expand(-1, flat.shape[1], -1, flat.shape[3])
    return flat.gather(2, rows).reshape(len(data), *before, *places.shape[1:], *after)


class GatherElements(OperatorType):
    """The value that each index names along an axis, at the place of the index (torch.gather)."""

    attributes = {"axis": REQUIRED}
    captured = {"onnx.GatherElements": lambda call: {"axis": call.inner(call.attribute("axis", 0))}}
    inputs = 2
    places = 1
    passes_numbers = True
    settle = staticmethod(settle_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        data, indices = inputs
        if len(data) != len(indices):
            raise GraphError(f"GatherElements cannot take {list(data)} by indices {list(indices)}")
        return Effect(indices, moved=3 * math.prod(indices))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        axis = operator["axis"] + 1

        def gathered(data: Tensor, places: Tensor) -> Tensor:
            data, places = torch_parts.of_one_batch(data, places)
            return data.gather(axis, places.long())

        return gathered

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        data, places = writer.of_one_batch(values, operator.input_shapes)
        return writer.node("GatherElements", data, writer.cast(places, INT64), axis=operator["axis"] + 1)


class Scatter(OperatorType):
    """Data with updates written or added at indices; inputs are data, indices, updates.

    ``in_place``: the data after another operator has written into a view of it.
    """

    attributes = {"axis": 0, "in_place": False}
    inputs = None
    places = 1
    settle = staticmethod(settle_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        if attributes["in_place"]:
            return Effect(inputs[0], moved=0)
        if len(inputs) > 3:
            raise GraphError("Scatter takes data, indices and updates")
        return Effect(inputs[0], moved=2 * math.prod(inputs[0]) + 2 * math.prod(inputs[-1]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        self._require_places(operator, "torch")
        axis = operator["axis"] + 1

        def scattered(data: Tensor, places: Tensor, values: Tensor) -> Tensor:
            data, places, values = torch_parts.of_one_batch(data, places, values)
            return data.scatter(axis, places.long(), values.to(data.dtype))

        return scattered

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        self._require_places(operator, "ONNX")
        data, places, updates = writer.of_one_batch(values, operator.input_shapes)
        places, axis = writer.cast(places, INT64), operator["axis"] + 1
        return writer.node("ScatterElements", data, places, writer.cast(updates, writer.kind(data)), axis=axis)

    def _require_places(self, operator: Operator, library: str) -> None:
        shapes = operator.input_shapes
        if len(shapes) != 3 or shapes[1] != shapes[2] or len(shapes[0]) != len(shapes[1]):
            raise cannot_be_built(operator, library, "Scatter without a place for each value")
