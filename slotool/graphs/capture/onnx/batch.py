"""Where the batch is in what an ONNX node makes, by where it is in what the node takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from slotool.graphs.capture.onnx.calls import Batched
from slotool.graphs.capture.onnx.reading import Node
from slotool.graphs.capture.onnx.recurrent import RECURRENT, recurrent_batch
from slotool.graphs.capture.subscripts import axis_after
from slotool.graphs.operators import Shape


def batch_of(node: Node, values: Mapping[int, Batched], shape: Shape, batch: int) -> Batched:
    """Where the batch is in what a node makes, by where it is in what the node takes."""
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
    return value.axis + len(shape) - len(value.shape)


def _multiplied(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    # A product with a vector has lost an axis behind that of the batch.
    return value.axis if len(shape) < len(value.shape) else _aligned_right(node, at, value, shape)


def _moved(node: Node, _: int, value: Batched, shape: Shape) -> int | None:
    order: list[int] = node.attributes.get("perm") or [*range(len(shape))[::-1]]
    return order.index(value.axis or 0)


def _regrouped(_: Node, __: int, value: Batched, shape: Shape) -> int | None:
    """The axis before which there are as many values as before the batch; else the one that the batch is folded into
    behind other axes, or unfolded to behind its windows."""
    assert value.axis is not None
    before, batch = math.prod(value.shape[: value.axis]), value.shape[value.axis] // value.windows
    places = [axis for axis in range(len(shape)) if math.prod(shape[:axis]) == before]
    alone = [axis for axis in places if shape[axis] == batch and shape != value.shape]
    same = [axis for axis in places if shape[axis] == value.shape[value.axis]]
    found = next((axis for axis in alone or same or places if shape[axis] % batch == 0), None)
    return _folded(shape, before * value.windows, batch) if found is None else found


def _with_axes(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    """Beside new axes of one, which alone could be taken for a batch of one."""
    axes = node.attributes.get("axes")
    if axes is None or value.axis is None:
        return _regrouped(node, at, value, shape)
    new = {int(axis) % len(shape) for axis in axes}
    return [axis for axis in range(len(shape)) if axis not in new][value.axis]


def _folded(shape: Shape, before: int, batch: int) -> int | None:
    """The axis of a shape that holds a batch behind ``before`` values, alone or folded with some of them."""
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


def _as_it_was(_: Node, __: int, value: Batched, ___: Shape) -> int | None:
    return value.axis


_MOVES: dict[str, Callable[[Node, int, Batched, Shape], int | None]] = {
    "MatMul": _multiplied,
    "Transpose": _moved,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze"), _regrouped),
    "Unsqueeze": _with_axes,
    **dict.fromkeys([f"Reduce{kind}" for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L2", "LogSumExp")], _reduced),
    **dict.fromkeys(("ArgMax", "ArgMin"), _reduced),
    "Gather": _looked_up,
    **dict.fromkeys(RECURRENT, recurrent_batch),
    "Einsum": lambda node, at, value, _: axis_after(node.attributes["equation"], at, value.axis or 0),
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Resize", "Gemm", "DFT", "Col2Im"), _as_it_was),
}
