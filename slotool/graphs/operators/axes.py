"""Shapes: which axis holds what, and how shapes stretch to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Any

from slotool.errors import GraphError

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]


def channel_axis(shape: Shape) -> int:
    """Which axis holds what normalisation and softmax work on: channels of an image, else the last."""
    return 0 if len(shape) == 3 else len(shape) - 1


def per_channel(shape: Shape) -> Shape:
    """The shape of an array of one number for each channel, which stretches over the rest: (channels, 1, 1)."""
    axis = channel_axis(shape)
    return (shape[axis], *[1] * (len(shape) - 1 - axis))


def stretches_as(shape: Shape, other: Shape) -> bool:
    """Whether arrays of these shapes broadcast alike: leading axes of one size do not count."""
    first, second = ([*dropwhile(lambda size: size == 1, sizes)] for sizes in (shape, other))
    return first == second


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that arrays of these shapes stretch to: of each axis, counted from the last, a size of one stretches
    to the others'. Raises ``GraphError`` for shapes that do not fit."""
    rank = max(map(len, shapes))
    sizes = [sorted(set(axis)) for axis in zip(*((*[1] * (rank - len(s)), *s) for s in shapes), strict=True)]
    if any(len(axis) > 2 or (len(axis) == 2 and axis[0] != 1) for axis in sizes):
        raise GraphError(f"inputs of shapes {list(map(list, shapes))} do not fit each other")
    return tuple(axis[-1] for axis in sizes)


def within(axis: int, rank: int) -> int:
    """An axis counted from the first, of one that may be counted from the last. Raises ``IndexError`` beyond both."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of {rank}")
    return axis % rank


def chosen_axis(attributes: Attributes, shape: Shape) -> int:
    """The attribute ``axis``, by default that of the channels."""
    axis: int = attributes.get("axis", channel_axis(shape))
    return axis


def chosen_axes(attributes: Attributes, shape: Shape) -> tuple[int, ...]:
    """The attribute ``axes``, by default that of the channels."""
    axes: tuple[int, ...] = attributes.get("axes", (channel_axis(shape),))
    return axes


def settle_axis(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Count ``axis`` from the first."""
    if "axis" in attributes:
        attributes["axis"] = within(attributes["axis"], len(inputs[0]))


def settle_channel_axis(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Count ``axis`` from the first, and leave it out where it is that of the channels."""
    settle_axis(attributes, inputs)
    if attributes.get("axis") == channel_axis(inputs[0]):
        del attributes["axis"]


def settle_axes(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Count ``axes`` from the first, in order, each once."""
    if "axes" in attributes:
        attributes["axes"] = tuple(sorted({within(axis, len(inputs[0])) for axis in attributes["axes"]}))


def settle_channel_axes(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """As ``settle_axes``, and leave them out where they are that of the channels alone."""
    settle_axes(attributes, inputs)
    if attributes.get("axes") == (channel_axis(inputs[0]),):
        del attributes["axes"]


def settle_order(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Count ``axes`` from the first, in the order given. Raises ``ValueError`` for one named twice."""
    axes = tuple(within(axis, len(inputs[0])) for axis in attributes["axes"])
    if len(set(axes)) != len(axes):
        raise ValueError("an axis is named twice")
    attributes["axes"] = axes
