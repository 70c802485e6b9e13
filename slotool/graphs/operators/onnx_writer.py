"""Collects the nodes of an ONNX model, and names the weights that lie elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.graphs.libraries import onnx
from slotool.graphs.operators.attributes import Shape

# torch's, so that both backends compute the same.
EPSILON = 1e-5
FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # as onnx.TensorProto numbers them
KINDS = {
    **{"float32": FLOAT, "uint8": 2, "int8": 3, "int16": 5, "int32": INT32, "int64": INT64, "bool": BOOL},
    **{"float16": 10, "float64": 11},
}
# Types in order of promotion, as in torch: two become the later one.
RANKS = [BOOL, 2, 3, 5, INT32, INT64, 10, FLOAT, 11]


def widest(kinds: Sequence[int]) -> int:
    """Return the type that values of these types become together."""
    return max(kinds, key=RANKS.index)


@dataclass(frozen=True)
class Weight:
    """An initialiser that the model names but does not hold; a running statistic is one that is not ``trained``."""

    name: str
    shape: Shape
    trained: bool


class Writer:
    """Collects nodes and initialisers; names are numbered, as operators may be called anything.

    ``kinds``: types of values, where they are not float32. ``free``: values that are the same for every example,
    [1, …]; all others have ``batch_size`` examples.
    """

    def __init__(self, batch_size: int) -> None:
        self.operator = ""
        self.batch_size = batch_size
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.weights: list[Weight] = []
        self.kinds: dict[str, int] = {}
        self.free: set[str] = set()

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one output and return the name of that."""
        return self.nodes_of(op, 1, *inputs, **attributes)[0]

    def nodes_of(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append a node of several outputs and return their names."""
        number = len(self.nodes)
        output = [f"value_{number}" + (f"_{at}" if at else "") for at in range(outputs)]
        name = f"{self.operator}/{op}_{number}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), output, name=name, **attributes))
        return output

    def weight(self, *shape: int, trained: bool = True) -> str:
        """Return the name of an initialiser that is stored elsewhere."""
        name = f"weight_{len(self.weights)}"
        tensor = onnx.TensorProto(name=name, dims=shape, data_type=FLOAT, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="memory")
        self.initialisers.append(tensor)
        self.weights.append(Weight(name, shape, trained))
        return name

    def integers(self, *values: int) -> str:
        return self.array(np.array(values, dtype=np.int64))

    def number(self, value: float, kind: int = FLOAT) -> str:
        return self.array(np.array(value, dtype=onnx.helper.tensor_dtype_to_np_dtype(kind)))

    def repeated(self, value: float, count: int) -> str:
        """Return a vector of one number without weights."""
        tensor = onnx.numpy_helper.from_array(np.array([value], dtype=np.float32))
        return self.node("ConstantOfShape", self.integers(count), value=tensor)

    def array(self, values: np.ndarray) -> str:
        """Return an initialiser that the model holds."""
        name = f"constant_{len(self.initialisers)}"
        self.initialisers.append(onnx.numpy_helper.from_array(values, name))
        return name

    def kind(self, value: str) -> int:
        return self.kinds.get(value, FLOAT)

    def cast(self, value: str, kind: int) -> str:
        """Return the value in another type."""
        if self.kind(value) == kind:
            return value
        outputs = self.node("Cast", value, to=kind)
        self.kinds[outputs] = kind
        if value in self.free:
            self.free.add(outputs)
        return outputs

    def of_one_type(self, values: Sequence[str]) -> list[str]:
        """Return the values in one type."""
        kind = widest([self.kind(value) for value in values])
        return [self.cast(value, kind) for value in values]

    def cut(self, value: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return the values along an axis, the batch counted, from ``start`` to before ``end``."""
        places = (self.integers(number) for number in (start, end, axis, step))
        return self.node("Slice", value, *places)

    def shaped(self, value: str, *shape: int) -> str:
        """Return examples in another shape, with the batch unchanged."""
        outputs = self.node("Reshape", value, self.integers(0, *shape))
        self._as(outputs, value)
        return outputs

    def turned(self, value: str, axes: Sequence[int]) -> str:
        """Return the axes of the examples in another order."""
        if list(axes) == list(range(len(axes))):
            return value
        outputs = self.node("Transpose", value, perm=[0, *(axis + 1 for axis in axes)])
        self._as(outputs, value)
        return outputs

    def aligned(self, values: Sequence[str], shapes: Sequence[Shape]) -> list[str]:
        """Return the values with as many axes as the largest, new ones of size one behind the batch."""
        rank = max(map(len, shapes))
        return [
            value if len(shape) == rank else self.shaped(value, *[1] * (rank - len(shape)), *shape)
            for value, shape in zip(values, shapes, strict=True)
        ]

    def of_one_batch(self, values: Sequence[str], shapes: Sequence[Shape]) -> list[str]:
        """Return the values that are the same for every example written out for each, unless all are."""
        if self.batch_size == 1 or all(value in self.free for value in values):
            return list(values)
        return [
            self._for_each(value, shape) if value in self.free else value
            for value, shape in zip(values, shapes, strict=True)
        ]

    def _for_each(self, value: str, shape: Shape) -> str:
        outputs = self.node("Expand", value, self.integers(self.batch_size, *shape))
        self.kinds[outputs] = self.kind(value)
        return outputs

    def _as(self, outputs: str, value: str) -> None:
        if self.kind(value) != FLOAT:
            self.kinds[outputs] = self.kind(value)
        if value in self.free:
            self.free.add(outputs)
