"""Attributes of operators: the axes of shapes that they name, and the one form in which each is kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import dropwhile
from typing import Any

from slotool.errors import GraphError

Shape = tuple[int, ...]
Attributes = Mapping[str, Any]


def channel_axis(shape: Shape) -> int:
    """Return the axis along which normalisation and softmax work: the channels of an image, else the last."""
    return 0 if len(shape) == 3 else len(shape) - 1


def per_channel(shape: Shape) -> Shape:
    """Return the shape of an array of one number for each channel, which stretches over the rest: (channels, 1, 1)."""
    axis = channel_axis(shape)
    return (shape[axis], *[1] * (len(shape) - 1 - axis))


def stretches_as(shape: Shape, other: Shape) -> bool:
    """True if arrays of these shapes broadcast alike: leading axes of size one do not count."""
    first, second = ([*dropwhile(lambda size: size == 1, sizes)] for sizes in (shape, other))
    return first == second


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that these shapes broadcast to. Raises ``GraphError`` if they do not fit."""
    rank = max(map(len, shapes))
    sizes = [sorted(set(axis)) for axis in zip(*((*[1] * (rank - len(s)), *s) for s in shapes), strict=True)]
    if any(len(axis) > 2 or (len(axis) == 2 and axis[0] != 1) for axis in sizes):
        raise GraphError(f"inputs of shapes {list(map(list, shapes))} do not fit each other")
    return tuple(axis[-1] for axis in sizes)


def within(axis: int, rank: int) -> int:
    """Return an axis counted from the first, also for a negative one. Raises ``IndexError`` out of range."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of {rank}")
    return axis % rank


def chosen_axis(attributes: Attributes, shape: Shape) -> int:
    """Return the attribute ``axis``, by default that of the channels."""
    axis: int | None = attributes.get("axis")
    return channel_axis(shape) if axis is None else axis


def chosen_axes(attributes: Attributes, shape: Shape) -> tuple[int, ...]:
    """Return the attribute ``axes``, by default that of the channels."""
    axes: tuple[int, ...] | None = attributes.get("axes")
    return (channel_axis(shape),) if axes is None else axes


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
    """Count ``axes`` as ``settle_axes`` does, and leave them out where they are that of the channels alone."""
    settle_axes(attributes, inputs)
    if attributes.get("axes") == (channel_axis(inputs[0]),):
        del attributes["axes"]


def settle_order(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Count ``axes`` from the first, in the order given. Raises ``ValueError`` for one named twice."""
    axes = tuple(within(axis, len(inputs[0])) for axis in attributes["axes"])
    if len(set(axes)) != len(axes):
        raise ValueError("an axis is named twice")
    attributes["axes"] = axes


MAX_WINDOW_AXES = 3
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or operator.index(value) < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return operator.index(value)


def _squarish(value: Any, least: int = 1) -> int | tuple[int, ...]:
    """Return one number for each axis of a window of one, two or three axes."""
    if not isinstance(value, list | tuple):
        return whole(value, least)
    sizes = tuple(whole(size, least) for size in value)
    if not 1 <= len(sizes) <= MAX_WINDOW_AXES:
        raise ValueError(f"a window has one to {MAX_WINDOW_AXES} axes, not {len(sizes)}")
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _padding(value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise ValueError(f"{value!r} is neither 'same' nor 'valid'")
        return value
    if isinstance(value, list | tuple) and len(value) == 4:
        around = tuple(whole(size, 0) for size in value)
        return around if around[0] != around[1] or around[2] != around[3] else _squarish(around[::2], 0)
    return _squarish(value, 0)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _shape(value: Any) -> Shape:
    if isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no shape; expected a list of sizes")
    return tuple(whole(size) for size in value)


def _activation(value: Any) -> str | None:
    if not isinstance(value, str | None) or value == "":
        raise ValueError(f"{value!r} is not the name of an activation")
    return None if value == "linear" else value


def signed(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return operator.index(value)


def _listed(value: Any, form: Callable[[Any], int]) -> tuple[int, ...]:
    if isinstance(value, str) or not value:
        raise ValueError("expected a list of whole numbers")
    return tuple(form(each) for each in value)


def _axis(value: Any) -> int | None:
    return None if value is None else signed(value)


def _signed_list(value: Any) -> tuple[int, ...]:
    return _listed([value] if isinstance(value, int) else value, signed)


def _axes(value: Any) -> tuple[int, ...] | None:
    return None if value is None else _signed_list(value)


def _size(value: Any) -> int | tuple[int, ...]:
    return _listed(value, whole) if isinstance(value, list | tuple) else whole(value)


def _count(value: Any) -> int:
    return whole(value, 0)


def _dtype(value: Any) -> str:
    if value not in DTYPES:
        raise ValueError(f"{value!r} is none of {', '.join(DTYPES)}")
    return str(value)


def word(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a name")
    return value


FORMS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("biases", "factor", "filters", "groups", "k", "layers", "multiplier"), whole),
    **dict.fromkeys(("step", "units", "vocabulary"), whole),
    **dict.fromkeys(("flops", "projection", "start", "weights"), _count),
    **dict.fromkeys(("bias", "bidirectional", "causal", "ceil", "center", "count_padding", "fixed"), flag),
    **dict.fromkeys(("in_place", "indices", "keepdims", "scale", "shared"), flag),
    **dict.fromkeys(("function", "mode"), word),
    **dict.fromkeys(("shape", "repeats"), _shape),
    **dict.fromkeys(("pads", "shifts"), _signed_list),
    **dict.fromkeys(("kernel", "stride", "dilation"), _squarish),
    "output_padding": partial(_squarish, least=0),
    **dict.fromkeys(("padding", "cropping"), _padding),
    "activation": _activation,
    "axis": _axis,
    "axes": _axes,
    "dtype": _dtype,
    "size": _size,
}
