"""Numba's ``njit`` with a cache on disk that knows every source a function was compiled from.

Numba looks at the file a function stands in and no other, but what that function calls, and the constants it uses, are
compiled into it. After an upgrade in place that changed a layout in one file, machine code from the cache would go on
reading memory by the old one.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import caching

# The type checker takes what is compiled for what was written: the same arguments, the same result.
_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE = __name__.partition(".")[0]
_PLAIN = (bool, int, float, str, bytes, tuple, np.generic)
# By file: a hash of what functions in it are compiled from.
_stamps: dict[str, str] = {}


def njit(*signature: Any, **options: Any) -> Callable[[_Function], _Function]:
    """As ``numba.njit``; with ``cache=True`` code is compiled again when any source of this package in it has changed.

    Below the imports of a module, and not in a function: what is imported is looked at when the first is decorated.
    """
    decorate = numba.njit(*signature, **options)
    return lambda function: decorate(_stamped(function))


def _stamped(function: _Function) -> _Function:
    """``function``, whose file's stamp is then known."""
    file = function.__code__.co_filename
    if file not in _stamps:
        _stamps[file] = _stamp(file, function.__globals__)
    return function


def _stamp(file: str, names: dict[str, Any]) -> str:
    """Of the file, of plain values it holds, imported or not, and of files that what it holds comes from."""
    parts = [_content(file)]
    for name, value in sorted(names.items()):
        if isinstance(value, set | frozenset):
            parts.append(f"{name}={sorted(map(repr, value))}")
        elif isinstance(value, np.ndarray):
            parts.append(f"{name}={value.dtype}{value.tolist()}")
        elif isinstance(value, _PLAIN) and not name.startswith("__"):
            parts.append(f"{name}={value!r}")
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        other = sys.modules.get(module) if isinstance(module, str) and module.partition(".")[0] == _PACKAGE else None
        other_file = getattr(other, "__file__", None)
        if other_file and other_file != file:
            parts.append(_stamps.get(other_file) or _content(other_file))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _content(file: str) -> str:
    with open(file, "rb") as source:
        return hashlib.sha256(source.read()).hexdigest()


def _knowing(locator: type[Any]) -> type[Any]:
    """A place for the cache, as ``locator`` finds it, for functions that were stamped."""

    class Knowing(locator):  # type: ignore[misc]
        @classmethod
        def from_function(cls, function: Any, file: str) -> Any:
            return super().from_function(function, file) if file in _stamps else None

        def get_source_stamp(self) -> Any:
            return super().get_source_stamp(), _stamps[self._py_file]

    return Knowing


# Before Numba's own, which are left to everybody else's functions.
_LOCATORS = (caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator)
caching.CacheImpl._locator_classes[:0] = [_knowing(locator) for locator in _LOCATORS]
