"""Annotations of functions: members of unions, and bounds of numbers in ``Annotated``."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from slotool.commands.values import Bounds
from slotool.errors import ArgumentError


class _Named(type):
    """Metaclass that stands for classes that only type checkers import."""

    def __getattr__(cls, name: str) -> type:
        return _Named(name, (), {}) if not name.startswith("__") else type.__getattribute__(cls, name)


class _Scope(dict[str, Any]):
    """Names in the annotations of a function; a name that is not imported at run time becomes a class."""

    def __init__(self, module: Mapping[str, Any]):
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        if name in self._module:
            return self._module[name]
        return getattr(builtins, name, None) or _Named(name, (), {})


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotation of each parameter, evaluated."""
    scope = _Scope(vars(sys.modules[inspect.unwrap(function).__module__]))
    stated = {name: text.annotation for name, text in inspect.signature(function).parameters.items()}
    return {name: eval(text, {}, scope) if isinstance(text, str) else text for name, text in stated.items()}


def alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union or annotated union, without None."""
    if get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from alternatives(member)
    elif annotation not in (None, type(None)):
        yield annotation


def bounds_of(annotation: Any) -> Bounds | None:
    """Return the bounds of a parameter; None without any."""
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, Bounds):
            return mark
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return next(filter(None, map(bounds_of, members)), None)


def require_bounds(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise ``ArgumentError`` for an argument, or a member of one, beyond the bounds that its annotation states."""
    for name, bounds in _bounds_by_parameter(function).items():
        value = arguments.get(name)
        for number in value if isinstance(value, Iterable) else (value,):
            if isinstance(number, Real) and not bounds.hold(float(number)):
                raise ArgumentError(name, f"{number:g} {bounds.problem}")


@cache
def _bounds_by_parameter(function: Callable[..., Any]) -> dict[str, Bounds]:
    bounds = {name: bounds_of(annotation) for name, annotation in annotations_of(function).items()}
    return {name: limits for name, limits in bounds.items() if limits is not None}
