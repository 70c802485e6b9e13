"""Layout of values in memory by torch: which are stored channels last, and which are read across their rows.

A value of a graph has strides as a tensor has, of a batch of one: per axis, the batch first, how many values apart two
neighbours lie. Views only change
strides; a convolution of an image stored channels last answers in that order and takes other kernels; arithmetic on
values laid out unlike takes slower loops.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import OPERATORS, Operator, Shape

Strides = tuple[int, ...]
CHANNELS_LAST = (1, 2, 0)


class Layout(NamedTuple):
    """Layout of an operator: True for a first input stored channels last; True for an input read in another order."""

    channels_last: bool
    reordered: bool


def distinct_layouts(graphs: Sequence[OperatorGraph]) -> tuple[list[tuple[Operator, Layout]], list[int]]:
    """Return distinct operators, names apart, with their layouts, and the index of every operator in turn.

    Networks of a kind share most of theirs.
    """
    kinds: dict[Hashable, int] = {}
    kind_of: dict[int, int] = {}
    indices: dict[tuple[int, tuple[Strides, ...]], int] = {}
    result: list[tuple[Operator, Layout]] = []
    outputs: list[Strides] = []
    numbers = []
    for graph in graphs:
        strides: dict[str, Strides] = {}
        for operator in graph.operators:
            kind = kind_of.get(id(operator))
            if kind is None:
                kind = kind_of[id(operator)] = kinds.setdefault(_unnamed(operator), len(kinds))
            input_strides = tuple([strides[name] for name in operator.inputs])
            number = indices.setdefault((kind, input_strides), len(result))
            if number == len(result):
                inputs = list(zip(operator.input_shapes, input_strides, strict=True))
                output = _strides(operator, inputs)
                last = bool(inputs) and _is_channels_last(*inputs[0])
                result.append((operator, Layout(last, _is_reordered(operator, inputs, output))))
                outputs.append(output)
            strides[operator.name] = outputs[number]
            numbers.append(number)
    return result, numbers


def _unnamed(operator: Operator) -> Hashable:
    """Return all of it but names; itself alone where an attribute, of an unknown operator, cannot be looked up."""
    costs = (operator.weights, operator.flops, operator.moved, operator.calls)
    unnamed = (operator.op, operator.shape, operator.input_shapes, costs, tuple(operator.attributes.items()))
    try:
        hash(unnamed)
    except TypeError:
        return id(operator)
    return unnamed


def _layout_of_type(operator: Operator) -> str:
    return OPERATORS[operator.op].layout if operator.op in OPERATORS else ""


def _strides(operator: Operator, inputs: Sequence[tuple[Shape, Strides]]) -> Strides:
    """Return the strides of its output."""
    shape = operator.shape
    viewed = _of_view(operator, *inputs[0]) if inputs else _dense(shape)
    if viewed is not None:
        return viewed
    kind = _layout_of_type(operator)
    if kind == "values":
        same = [strides for each, strides in inputs if each == shape and any(strides[1:])]
        return _without_gaps(shape, same[0]) if same else _dense(shape)
    if kind == "image" or (operator.op == "Concatenate" and len(shape) == 3):
        last = all(_is_channels_last(*each) for each in inputs)
        return _dense(shape, CHANNELS_LAST) if last and len(shape) == 3 else _dense(shape)
    if operator.op == "LayerNormalization" and len(shape) == 3 and "axes" not in operator.attributes:
        return _dense(shape, CHANNELS_LAST)
    if operator.op == "ScaledDotProductAttention" and len(shape) > 2:
        # torch keeps [length, heads, dim] in memory.
        rank = len(shape)
        return _dense(shape, (*range(rank - 3), rank - 2, rank - 3, rank - 1))
    return _dense(shape)


def _of_view(operator: Operator, first: Shape, input_strides: Strides) -> Strides | None:
    """Return the strides of an operator that moves nothing; None for one that does."""
    shape, attributes = operator.shape, operator.attributes
    if operator.moved:
        return None
    if operator.op == "Transpose":
        return (input_strides[0], *(input_strides[axis + 1] for axis in attributes["axes"]))
    if operator.op in ("Reshape", "Flatten"):
        return _as_shape(first, input_strides, shape)
    if operator.op == "Slice":
        dropped = attributes["axis"] + 1 if len(shape) < len(first) else None
        remaining = tuple(stride for axis, stride in enumerate(input_strides) if axis != dropped)
        return remaining if len(remaining) == len(shape) + 1 else None
    if operator.op == "Expand" and len(first) == len(shape):
        return (
            input_strides[0],
            *(s if a == b else 0 for a, b, s in zip(first, shape, input_strides[1:], strict=True)),
        )
    return None


def _dense(shape: Shape, order: Iterable[int] | None = None) -> Strides:
    """Return the strides of values without gaps, axes from slowest to fastest in this ``order``."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(list(range(len(shape)) if order is None else order)):
        strides[axis] = step
        step *= shape[axis]
    return (step, *strides)


def _without_gaps(shape: Shape, strides: Strides) -> Strides:
    """Without gaps, axes in the order of these strides; those of one value first."""
    return _dense(shape, sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -strides[axis + 1])))


def _as_shape(shape: Shape, strides: Strides, new: Shape) -> Strides | None:
    """Return the strides of the same memory in another shape, or None if that takes a copy.

    Source: ATen, ``computeStride``, in which strides of axes of size one matter too.
    """
    sizes, target = (1, *shape), (1, *new)
    result, axis = [0] * len(target), len(target) - 1
    step, size, covered = strides[-1], 1, 1
    for place in reversed(range(len(sizes))):
        size *= sizes[place]
        if place and (sizes[place - 1] == 1 or strides[place - 1] == size * step):
            continue
        while axis >= 0 and (covered < size or target[axis] == 1):
            result[axis] = covered * step
            covered *= target[axis]
            axis -= 1
        if covered != size:
            return None
        step, size, covered = strides[max(0, place - 1)], 1, 1
    return tuple(result) if axis < 0 else None


def _is_channels_last(shape: Shape, strides: Strides) -> bool:
    """True as for ATen's ``is_channels_last_strides_2d``: axes grow in that order, the batch the slowest."""
    if len(shape) != 3 or shape[0] == 1 or math.prod(shape[1:]) == 1 or strides[1] == 0:
        return False
    sizes, least = (1, *shape), 0
    for axis in (1, 3, 2, 0):
        if strides[axis] < least:
            return False
        least = strides[axis] * max(1, sizes[axis])
    return True


def _is_reordered(operator: Operator, inputs: Sequence[tuple[Shape, Strides]], output: Strides) -> bool:
    if not operator.moved:
        return False
    kind = _layout_of_type(operator)
    if kind == "rows":
        return any(not _is_in_rows(*each) for each in inputs)
    if kind == "image":
        return any(not _is_in_rows(*each) and not _is_channels_last(*each) for each in inputs)
    same = [strides for shape, strides in inputs if shape == operator.shape]
    return any(_without_gaps(operator.shape, strides) != _without_gaps(operator.shape, output) for strides in same)


def _is_in_rows(shape: Shape, strides: Strides) -> bool:
    return all(size == 1 or a == b for size, a, b in zip((1, *shape), strides, _dense(shape), strict=True))
