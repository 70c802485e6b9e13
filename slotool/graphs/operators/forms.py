"""The one form of each attribute: what is written in several ways is kept in one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from slotool.graphs.operators.axes import Shape

MAX_WINDOW_AXES = 3
DTYPES = (
    *("float32", "float16", "bfloat16", "float64", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def _whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or operator.index(value) < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return operator.index(value)


def _squarish(value: Any, least: int = 1) -> int | tuple[int, ...]:
    """One number for each axis of a window, of one, two or three axes."""
    if not isinstance(value, list | tuple):
        return _whole(value, least)
    sizes = tuple(_whole(size, least) for size in value)
    if not 1 <= len(sizes) <= MAX_WINDOW_AXES:
        raise ValueError(f"a window has one to {MAX_WINDOW_AXES} axes, not {len(sizes)}")
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _padding(value: Any) -> Any:
    if isinstance(value, str):
        if value not in ("same", "valid"):
            raise ValueError(f"{value!r} is neither 'same' nor 'valid'")
        return value
    if isinstance(value, list | tuple) and len(value) == 4:
        around = tuple(_whole(size, 0) for size in value)
        return around if around[0] != around[1] or around[2] != around[3] else _squarish(around[::2], 0)
    return _squarish(value, 0)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _shape(value: Any) -> Shape:
    if isinstance(value, str) or not value:
        raise ValueError("a shape is a list of sizes")
    return tuple(_whole(size) for size in value)


def _activation(value: Any) -> str | None:
    if not isinstance(value, str | None) or value == "":
        raise ValueError(f"{value!r} is not the name of an activation")
    return None if value == "linear" else value


def _signed(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return operator.index(value)


def _listed(value: Any, form: Callable[[Any], int]) -> tuple[int, ...]:
    if isinstance(value, str) or not value:
        raise ValueError("expected a list of whole numbers")
    return tuple(form(each) for each in value)


def _axis(value: Any) -> int | None:
    return None if value is None else _signed(value)


def _axes(value: Any) -> tuple[int, ...] | None:
    return None if value is None else _listed([value] if isinstance(value, int) else value, _signed)


def _signed_list(value: Any) -> tuple[int, ...]:
    return _listed([value] if isinstance(value, int) else value, _signed)


def _size(value: Any) -> int | tuple[int, ...]:
    return _listed(value, _whole) if isinstance(value, list | tuple) else _whole(value)


def _count(value: Any) -> int:
    return _whole(value, 0)


def _from_zero(value: Any) -> int | tuple[int, ...]:
    return _squarish(value, 0)


def _dtype(value: Any) -> str:
    if value not in DTYPES:
        raise ValueError(f"{value!r} is none of {', '.join(DTYPES)}")
    return str(value)


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a name")
    return value


FORMS: dict[str, Callable[[Any], Any]] = {
    "shape": _shape,
    "units": _whole,
    "filters": _whole,
    "groups": _whole,
    "multiplier": _whole,
    "kernel": _squarish,
    "stride": _squarish,
    "dilation": _squarish,
    "padding": _padding,
    "cropping": _padding,
    "activation": _activation,
    "bias": _flag,
    "biases": _whole,
    "scale": _flag,
    "center": _flag,
    "keepdims": _flag,
    "fixed": _flag,
    "axis": _axis,
    "axes": _axes,
    "bidirectional": _flag,
    "causal": _flag,
    "ceil": _flag,
    "count_padding": _flag,
    "dtype": _dtype,
    "factor": _whole,
    "flops": _count,
    "function": _word,
    "indices": _flag,
    "in_place": _flag,
    "k": _whole,
    "layers": _whole,
    "projection": _count,
    "mode": _word,
    "output_padding": _from_zero,
    "pads": _signed_list,
    "repeats": _shape,
    "shared": _flag,
    "shifts": _signed_list,
    "size": _size,
    "start": _count,
    "step": _whole,
    "vocabulary": _whole,
    "weights": _count,
}
