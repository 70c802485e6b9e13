"""Which axis of a shape holds what: channels of an image stand first, else features last."""

from __future__ import annotations

from itertools import dropwhile

from slotool.graphs.operators.kinds import Shape


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
