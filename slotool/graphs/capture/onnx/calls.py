"""ONNX node in a capture: its inputs and output, and the batch's place in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Operation, axis_after
from slotool.graphs.capture.onnx.reading import Constant, Node
from slotool.graphs.operators import OPERATORS, Shape

# Translation of a node: operators in order, or None.
Chain = list[Operation] | None


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
        """Return an axis of the model's value as one of the example's; None for that of the batch."""
        axis %= len(self.shape)
        if self.axis is None or self.windows > 1:
            return axis
        return None if axis == self.axis else axis - (axis > self.axis)


@dataclass(frozen=True)
class Call:
    """ONNX node in a capture.

    ``values``: inputs that depend on the network's input, and ``constants``, both by position; ``output``: the output.
    ``inputs`` and ``shape`` are those of one example, channels first also if the model has them last
    (``channels_last``).
    """

    node: Node
    values: Mapping[int, Batched]
    constants: Mapping[int, Constant]
    output: Batched
    opset: int
    inputs: tuple[Shape, ...] = ()
    channels_last: bool = False

    @property
    def first(self) -> Batched:
        return next(iter(self.values.values()))

    @property
    def is_plain(self) -> bool:
        """True if the first axis of all inputs and of the output is the batch and nothing else."""
        return all(value.axis == 0 and value.windows == 1 for value in (*self.values.values(), self.output))

    @property
    def shape(self) -> Shape:
        shape = self.output.example
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
        inner_axis = self.settings(position, name)
        return None if inner_axis is None else [int(value) for value in inner_axis]

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def inner(self, axis: int) -> int:
        """Return an axis of the first input in the model as one of an example, channels first.

        Raises ``GraphError`` for that of the batch.
        """
        value = self.first.inner(axis)
        if value is None:
            raise GraphError(f"{self.node.op} works along the batch")
        return (1, 2, 0)[value] if self.channels_last and len(self.first.example) == 3 else value


def batch_of(node: Node, values: Mapping[int, Batched], shape: Shape, batch: int) -> Batched:
    """Return the place of the batch in a node's output, from its places in the inputs."""
    at, value = next(((at, value) for at, value in values.items() if value.axis is not None), (0, None))
    if value is None or value.axis is None:
        return Batched(shape, None)
    rule = _MOVES.get(node.op, _aligned_right)
    axis = rule(node, at, value, shape)
    if axis is None or not 0 <= axis < len(shape) or shape[axis] % batch:
        return Batched(shape, None)
    return Batched(shape, axis, shape[axis] // batch)


def _aligned_right(_: Node, __: int, value: Batched, shape: Shape) -> int | None:
    assert value.axis is not None
    # A product with a vector, or a determinant, has lost an axis behind that of the batch.
    return value.axis + max(0, len(shape) - len(value.shape))


def _moved(node: Node, _: int, value: Batched, shape: Shape) -> int | None:
    order: list[int] = node.attributes.get("perm") or [*range(len(shape))[::-1]]
    return order.index(value.axis or 0)


def _regrouped(_: Node, __: int, value: Batched, shape: Shape) -> int | None:
    """Return the axis with as many values before it as before the batch, else that of a folded or unfolded batch.

    It is folded behind other axes, or unfolded to behind its windows.
    """
    assert value.axis is not None
    before, batch = math.prod(value.shape[: value.axis]), value.shape[value.axis] // value.windows
    places = [axis for axis in range(len(shape)) if math.prod(shape[:axis]) == before]
    alone = [axis for axis in places if shape[axis] == batch and shape != value.shape]
    same = [axis for axis in places if shape[axis] == value.shape[value.axis]]
    inner_axis = next((axis for axis in alone or same or places if shape[axis] % batch == 0), None)
    return _folded(shape, before * value.windows, batch) if inner_axis is None else inner_axis


def _with_axes(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    """Beside new axes of one, which alone could be taken for a batch of one."""
    axes = node.attributes.get("axes")
    if axes is None or value.axis is None:
        return _regrouped(node, at, value, shape)
    new = {int(axis) % len(shape) for axis in axes}
    return [axis for axis in range(len(shape)) if axis not in new][value.axis]


def _folded(shape: Shape, before: int, batch: int) -> int | None:
    """Return the axis of a shape that holds a batch behind ``before`` values, alone or folded with some of them."""
    for axis, size in enumerate(shape):
        outside = math.prod(shape[:axis])
        if outside <= before < outside * size and before % outside == size % (before // outside * batch) == 0:
            return axis
    return None


def _reduced(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    assert value.axis is not None
    if len(shape) == len(value.shape):
        return value.axis
    axes = node.attributes.get("axes") or ([node.attributes["axis"]] if "axis" in node.attributes else None)
    if axes is None:
        return _regrouped(node, at, value, shape) if value.axis else 0
    rank, at_axis = len(value.shape), value.axis
    return at_axis - sum(int(axis) % rank < at_axis for axis in axes)


def _looked_up(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    assert value.axis is not None
    axis = node.attributes.get("axis", 0) % (len(value.shape) if at == 0 else len(shape))
    if at == 1:
        return int(axis) + value.axis
    if value.axis == axis:
        # Within an example where the batch is folded into that axis.
        return 0
    return value.axis if value.axis < axis else value.axis + len(shape) - len(value.shape)


def _recurrent(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    """Return the batch's axis in states of every step [steps, directions, batch, units] or the last ones.

    The latter are [directions, batch, units]; with ``layout`` 1 it is first everywhere.
    """
    if at != 0:
        return None
    return 0 if node.attributes.get("layout", 0) else len(shape) - 2


def _as_it_was(_: Node, __: int, value: Batched, ___: Shape) -> int | None:
    return value.axis


# Operators with a state, and reductions as ours, of which the first of two has ONNX's name.
RECURRENT = ("LSTM", "GRU", "RNN")
REDUCTIONS = {
    op: ours for ours, kind in reversed(OPERATORS.items()) if (op := getattr(kind, "onnx_op", "")).startswith("Reduce")
}
_MOVES: dict[str, Callable[[Node, int, Batched, Shape], int | None]] = {
    "Transpose": _moved,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze"), _regrouped),
    "Unsqueeze": _with_axes,
    **dict.fromkeys((*REDUCTIONS, "ArgMax", "ArgMin"), _reduced),
    "Gather": _looked_up,
    **dict.fromkeys(RECURRENT, _recurrent),
    "Einsum": lambda node, at, value, _: axis_after(node.attributes["equation"], at, value.axis or 0),
    **dict.fromkeys(("Conv", "DeformConv", "ConvTranspose", "MaxPool", "AveragePool", "Resize", "Gemm"), _as_it_was),
    **dict.fromkeys(("DFT", "Col2Im", "GatherND", "OneHot"), _as_it_was),
}
