"""One ONNX node as a capture sees it: what it takes and makes, and where the batch is in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.onnx.reading import Constant, Node
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


@dataclass(frozen=True)
class Call:
    """One node.

    ``values``: what depends on the network's input, and ``constants``, both by position; ``made``: the output.
    ``inputs`` and ``shape`` are those of one example, channels first also where the model has them last
    (``channels_last``).
    """

    node: Node
    values: Mapping[int, Batched]
    constants: Mapping[int, Constant]
    made: Batched
    opset: int
    inputs: tuple[Shape, ...] = ()
    channels_last: bool = False

    @property
    def first(self) -> Batched:
        return next(iter(self.values.values()))

    @property
    def is_plain(self) -> bool:
        """True if the first axis of all inputs and of the output is the batch and nothing else."""
        return all(value.axis == 0 and value.windows == 1 for value in (*self.values.values(), self.made))

    @property
    def shape(self) -> Shape:
        shape = self.made.example
        return (shape[2], shape[0], shape[1]) if self.channels_last and len(shape) == 3 else shape

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def settings(self, position: int, name: str = "") -> list[Any] | None:
        """Return what newer versions of an operator take as a constant input and older ones as an attribute."""
        if name in self.node.attributes:
            value = self.node.attributes[name]
            return list(value) if isinstance(value, list) else [value]
        constant = self.constants.get(position)
        return None if constant is None or constant.values is None else list(constant.values)

    def numbers(self, position: int, name: str = "") -> list[int] | None:
        """Return whole numbers among the settings."""
        found = self.settings(position, name)
        return None if found is None else [int(value) for value in found]

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def inner(self, axis: int) -> int | None:
        """Return an axis of the first input in the model as one of an example, channels first; None for the batch."""
        found = self.first.inner(axis)
        last = self.channels_last and len(self.first.example) == 3
        return (1, 2, 0)[found] if last and found is not None else found

    def inside(self, axes: Sequence[int]) -> list[int] | None:
        """Return several axes as ``inner`` does; None where the batch is among them."""
        found = [self.inner(int(axis)) for axis in axes]
        return None if None in found else [axis for axis in found if axis is not None]
