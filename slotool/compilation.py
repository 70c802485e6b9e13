"""Numba's ``njit`` with a cache on disk that knows every source a function was compiled from.

Processes that start together, such as workers of a server, compile a function once: one compiles, the others wait and
load what it left in the cache.

Numba looks at the file a function stands in and no other, but what that function calls, and the constants it uses, are
compiled into it. After an upgrade in place that changed a layout in one file, machine code from the cache would go on
reading memory by the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.core import caching
from numba.core.dispatcher import Dispatcher
from numba.core.sigutils import normalize_signature
from numba.core.typing.templates import signature as typed

# The type checker takes what is compiled for what was written: the same arguments, the same result.
_Function = TypeVar("_Function", bound=Callable[..., Any])

_PACKAGE = __name__.partition(".")[0]
_PLAIN = (bool, int, float, str, bytes, tuple, np.generic)
# By file: a hash of what functions in it are compiled from.
_stamps: dict[str, str] = {}
# By folder of a cache: the process and its open file of locks. It stays open: closing it would end every lock in it.
_lock_files: dict[str, tuple[int, int]] = {}
# Of a thread that is ``from_cache_only``: what the cache lacked.
_thread = threading.local()
# No function takes longer to compile, and whoever was stopped while compiling must not stop others for good.
_MAX_WAIT_S = 120.0


def njit(signature: Any = None, **options: Any) -> Callable[[_Function], _Function]:
    """As ``numba.njit``; with ``cache=True`` code is compiled again when any source of this package in it has changed.

    A function with a ``signature`` is for that alone, and compiled, or loaded, when it is first called or passed on
    (``compile_now``: now): a process that uses one policy of eight waits for that one.

    Below the imports of a module, and not in a function: what is imported is looked at when the first is decorated.
    """
    decorate = numba.njit(**options)
    return lambda function: _compiled_once(decorate(_stamped(function)), signature)


def internal_njit(**options: Any) -> Callable[[_Function], _Function]:
    """Compile a function that only compiled functions call, with a cache: it has no wrapper for calls from Python.

    The wrappers take a sixth of the time of compiling the kernels of SLO-NNs.
    """
    return njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def _stamped(function: _Function) -> _Function:
    """``function``, whose file's stamp is then known."""
    file = function.__code__.co_filename
    if file not in _stamps:
        _stamps[file] = _stamp(file, function.__globals__)
    return function


def _compiled_once(dispatcher: Any, only: Any = None) -> Any:
    """``dispatcher``, which compiles what the cache lacks only while no other process compiles the same function.

    ``only``: the signature that it has at its first use, and no other.
    """
    if not _compiles(dispatcher):
        return dispatcher
    function, compile_or_load, cache = dispatcher.py_func, dispatcher.compile, dispatcher._cache
    folder = getattr(cache, "cache_path", None)
    if folder:
        load_index = cache._cache_file._load_index
        cache._cache_file._load_index = lambda: _unless_outdated(load_index)

    def compile_once(wanted: Any) -> Any:
        args, returned = normalize_signature(wanted if only is None else only)
        # A constant is an int64 as any other: Numba would compile the function again for every one.
        args = tuple(map(types.unliteral, args))
        if args in dispatcher.overloads:
            return dispatcher.overloads[args].entry_point
        signature = args if returned is None else typed(returned, *args)
        with _locked(folder, f"{function.__module__}.{function.__qualname__}") if folder else nullcontext():
            if folder and (missing := _missing()) is not None and not _holds(cache, signature, dispatcher.targetctx):
                missing.append(function.__qualname__)
                raise NotCachedError(f"{function.__qualname__} is not compiled for {signature}")
            entry = compile_or_load(signature)
        if only is not None:
            dispatcher.disable_compile()
        return entry

    def compile_for_first(*values: Any) -> Any:
        entry = compile_once(only)
        # What comes next is compared with the signature by Numba; what came first is now.
        if not dispatcher._search_new_conversions(*values):
            dispatcher._explain_matching_error(*values)
        return entry

    dispatcher.compile = compile_once
    if only is not None:
        dispatcher._compile_for_args = compile_for_first
    return dispatcher


def _unless_outdated(load_index: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What a function's index holds. Numba reads its signatures before it looks at the stamp: one of before an upgrade
    may name types that are no longer there."""
    try:
        return load_index()
    except (AttributeError, ImportError):
        return {}


def compile_now(function: Any, signature: Any = None) -> None:
    """Compile, or load, what would be at its first use. ``signature``: for a function that was given none."""
    if _compiles(function) and not function.signatures:
        function.compile(signature)


def _compiles(function: Any) -> bool:
    """Whether it is a function of Numba's: not where its compiler is switched off."""
    return isinstance(function, Dispatcher)


class NotCachedError(RuntimeError):
    """A function would have to be compiled, where it is to come from the cache on disk."""


@contextmanager
def from_cache_only() -> Iterator[list[str]]:
    """In this thread functions with ``cache=True`` are compiled no more: what the cache on disk lacks raises
    ``NotCachedError``. The names of such functions are added to the list, for callers that other code keeps from the
    error."""
    before, _thread.missing = _missing(), []
    try:
        yield _thread.missing
    finally:
        _thread.missing = before


def _missing() -> list[str] | None:
    """Names of functions that the cache lacks, None where they may be compiled."""
    return getattr(_thread, "missing", None)


def _holds(cache: Any, signature: Any, target: Any) -> bool:
    """Whether a function's ``cache`` has its code for a signature; it is not loaded."""
    try:
        return cache._index_key(signature, target.codegen()) in cache._cache_file._load_index()
    except OSError:
        return False


@contextmanager
def _locked(folder: str, function: str) -> Iterator[None]:
    """No other process holds the lock of ``function`` in this folder; without a lock where none is to be had.

    Functions lock in the order in which they call each other, which has no circles: nobody waits for ever.
    """
    file, byte = -1, zlib.crc32(function.encode())
    with suppress(OSError):
        file = _lock_file(folder)
        _wait_for(file, byte)
    try:
        yield
    finally:
        if file >= 0:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def _lock_file(folder: str) -> int:
    """The folder's open file of locks, one byte a function; a fork opens its own, as locks are of a process."""
    process, file = _lock_files.get(folder, (0, -1))
    if process != os.getpid():
        os.makedirs(folder, exist_ok=True)
        file = os.open(os.path.join(folder, "compiling.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _lock_files[folder] = os.getpid(), file
    return file


def _wait_for(file: int, byte: int) -> None:
    until = time.monotonic() + _MAX_WAIT_S
    while time.monotonic() < until:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return


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


@njit(cache=True)
def count_until(ascending: Any, most: Any) -> int:
    """In compiled functions ``np.searchsorted(ascending, most, side="right")``, which takes Numba .4 s to compile."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= most:
            low = middle + 1
        else:
            high = middle
    return low


@njit(inline="always")
def copy(values: Any, into: Any) -> None:
    """In compiled functions ``into[:] = values``, with which Numba would compile sentences about shapes for seconds."""
    for i in range(len(into)):
        into[i] = values[i]
