"""The one form of each attribute: what is written in several ways is kept in one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators.kinds import REQUIRED, Attributes, OperatorType, Shape


def canonical(op: str, kind: OperatorType, attributes: Attributes) -> dict[str, Any]:
    foreign = [name for name in attributes if name not in kind.attributes]
    if foreign:
        raise GraphError(f"{op} has no attribute {foreign[0]!r}; it has {', '.join(kind.attributes) or 'none'}")
    kept = {}
    for name, default in kind.attributes.items():
        if name not in attributes:
            if default is REQUIRED:
                raise GraphError(f"{op} needs the attribute {name!r}")
            continue
        value = attributes[name]
        try:
            value = FORMS[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise GraphError(f"{op}: {name} cannot be {value!r}") from error
        if value != default:
            kept[name] = value
    return kept


def _whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or operator.index(value) < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return operator.index(value)


def _squarish(value: Any, least: int = 1) -> int | tuple[int, int]:
    if not isinstance(value, list | tuple):
        return _whole(value, least)
    height, width = (_whole(size, least) for size in value)
    return height if height == width else (height, width)


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
    "scale": _flag,
    "center": _flag,
    "keepdims": _flag,
    "fixed": _flag,
}
