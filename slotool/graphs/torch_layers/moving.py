"""Views and copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.graphs.torch_layers.common import Builder, Function, of_one_batch, per_axis, plain

_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _reshape(operator: Operator, *_: object) -> nn.Module:
    return Function(partial(_reshaped, shape=operator.shape))


def _reshaped(x: Tensor, shape: Shape) -> Tensor:
    return x.reshape(len(x), *shape)


def _transpose(operator: Operator, *_: object) -> nn.Module:
    order = (0, *per_axis(operator.attributes, "axes"))
    return Function(lambda x: x.permute(order))


def _slice(operator: Operator, *_: object) -> nn.Module:
    attributes = operator.attributes
    axis, start, size = attributes["axis"] + 1, attributes.get("start", 0), attributes["size"]
    step = attributes.get("step", 1)
    if not attributes.get("keepdims", True):
        return Function(partial(torch.select, dim=axis, index=start))
    if step == 1:
        return Function(lambda x: x.narrow(axis, start, size))
    where = (*[slice(None)] * axis, slice(start, start + (size - 1) * step + 1, step))
    return Function(lambda x: x[where])


def _expand(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    new, shape = [1] * (len(operator.shape) - len(inputs[0])), operator.shape
    return Function(lambda x: x.reshape(len(x), *new, *x.shape[1:]).expand(len(x), *shape))


def _concatenate(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    axis = operator.attributes.get("axis", channel_axis(inputs[0])) + 1
    return Function(lambda *parts: torch.cat(tuple(of_one_batch(*parts)), dim=axis))


def _stack(operator: Operator, *_: object) -> nn.Module:
    axis = operator.attributes["axis"] + 1
    return Function(lambda *parts: torch.stack(tuple(of_one_batch(*parts)), dim=axis))


def _repeat(operator: Operator, *_: object) -> nn.Module:
    repeats = (1, *operator.attributes["repeats"])
    return Function(lambda x: x.repeat(repeats))


def _pad(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    pads, mode, rank = operator.attributes["pads"], operator.attributes.get("mode", "constant"), len(inputs[0])
    around = [(pads[axis], pads[rank + axis]) for axis in range(rank)]
    flat = [side for sides in reversed(around) for side in sides]
    if mode == "constant":
        return Function(lambda x: functional.pad(x, flat))
    return Function(partial(_padded, around=around, mode=_PAD_MODES[mode]))


def _padded(x: Tensor, around: Sequence[tuple[int, int]], mode: str) -> Tensor:
    """With values of its own, axis by axis: torch pads so at most the last three, and only behind two others."""
    for axis, sides in enumerate(around, start=1):
        if any(sides):
            last = x.movedim(axis, -1)
            flat = functional.pad(last.reshape(1, -1, last.shape[-1]), sides, mode=mode)
            x = flat.reshape(*last.shape[:-1], flat.shape[-1]).movedim(-1, axis)
    return x


def _roll(operator: Operator, *_: object) -> nn.Module:
    shifts, axes = operator.attributes["shifts"], per_axis(operator.attributes, "axes")
    return Function(lambda x: x.roll(shifts, axes))


def _flip(operator: Operator, *_: object) -> nn.Module:
    axes = per_axis(operator.attributes, "axes")
    return Function(lambda x: x.flip(axes))


def _gather(operator: Operator, *_: object) -> nn.Module:
    return Function(partial(_gathered, axis=operator.attributes["axis"]))


def _gathered(data: Tensor, places: Tensor, axis: int) -> Tensor:
    """Data [batch, *before, n, *after] by places [batch, *shape]; either may be the same for every example."""
    places = places.long()
    if len(places) == 1:
        found = data.index_select(axis + 1, places.flatten())
        return found.reshape(*data.shape[: axis + 1], *places.shape[1:], *data.shape[axis + 2 :])
    before, after = data.shape[1 : axis + 1], data.shape[axis + 2 :]
    if len(data) == 1:
        found = data[0].index_select(axis, places.flatten())
        return found.reshape(*before, *places.shape, *after).movedim(len(before), 0)
    flat = data.reshape(len(data), math.prod(before), -1, math.prod(after))
    rows = places.reshape(len(places), 1, -1, 1).expand(-1, flat.shape[1], -1, flat.shape[3])
    return flat.gather(2, rows).reshape(len(data), *before, *places.shape[1:], *after)


def _gather_elements(operator: Operator, *_: object) -> nn.Module:
    axis = operator.attributes["axis"] + 1

    def gathered(data: Tensor, places: Tensor) -> Tensor:
        data, places = of_one_batch(data, places)
        return data.gather(axis, places.long())

    return Function(gathered)


def _scatter(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    axis = operator.attributes.get("axis", 0) + 1
    if len(inputs) != 3 or inputs[1] != inputs[2] or len(inputs[0]) != len(inputs[1]):
        raise GraphError(f"operator {operator.name!r}: Scatter without a place for each value cannot be built in torch")

    def scattered(data: Tensor, places: Tensor, values: Tensor) -> Tensor:
        data, places, values = of_one_batch(data, places, values)
        return data.scatter(axis, places.long(), values.to(data.dtype))

    return Function(scattered)


def _copied(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


MOVING: dict[str, Builder] = {
    "Flatten": lambda *_: nn.Flatten(),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Expand": _expand,
    "Copy": plain(_copied),
    "Concatenate": _concatenate,
    "Stack": _stack,
    "Repeat": _repeat,
    "Pad": _pad,
    "Roll": _roll,
    "Flip": _flip,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Scatter": _scatter,
}
