"""One ONNX node as a capture sees it: what it takes and makes, and where the batch is in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.onnx_reading import Constant, Node
from slotool.graphs.operators import Shape

# What a node is: our operators, one after the other; None where it is none.
Chain = list[tuple[str, dict[str, Any]]] | None


@dataclass(frozen=True)
class Batched:
    """A value's shape as the model has it, and where the batch is: at ``axis``, folded with so many ``windows``.

    ``axis`` None: it has no batch, or it was lost; the whole shape is an example's.
    """

    shape: Shape
    axis: int | None = 0
    windows: int = 1

    @property
    def example(self) -> Shape:
        if self.axis is None:
            return self.shape
        within = (self.windows,) if self.windows > 1 else ()
        return (*self.shape[: self.axis], *within, *self.shape[self.axis + 1 :])

    def inner(self, axis: int) -> int | None:
        """An axis of the model's value as one of the example's; None for that of the batch."""
        axis %= len(self.shape)
        if self.axis is None or self.windows > 1:
            return axis
        return None if axis == self.axis else axis - (axis > self.axis)

    def inside(self, axes: Sequence[int]) -> list[int] | None:
        """Several axes; None where the batch is among them."""
        found = [self.inner(int(axis)) for axis in axes]
        return None if None in found else [axis for axis in found if axis is not None]


@dataclass(frozen=True)
class Call:
    """One node: its ``values`` by position that depend on the network's input, its ``constants``, and its output."""

    node: Node
    values: Mapping[int, Batched]
    constants: Mapping[int, Constant]
    made: Batched
    opset: int

    @property
    def first(self) -> Batched:
        return next(iter(self.values.values()))

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def numbers(self, position: int, name: str = "") -> list[int] | None:
        """What newer versions of an operator take as a constant input and older ones as an attribute."""
        if name in self.node.attributes:
            value = self.node.attributes[name]
            return [int(each) for each in value] if isinstance(value, list) else [int(value)]
        constant = self.constants.get(position)
        return None if constant is None or constant.values is None else [int(value) for value in constant.values]

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""
