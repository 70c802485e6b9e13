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
# Hash of the sources of each file's functions, by file.
_stamps: dict[str, str] = {}
# Process and open lock file by cache folder. It stays open: closing it would release every lock in it.
_lock_files: dict[str, tuple[int, int]] = {}
# Per thread inside ``from_cache_only``: names missing from the cache.
_thread = threading.local()
# No function takes longer to compile, and whoever was stopped while compiling must not stop others for good.
_MAX_WAIT_S = 120.0


def njit(signature: Any = None, **options: Any) -> Callable[[_Function], _Function]:
    """Compile like ``numba.njit``; ``cache=True`` also notices changes of any source in this package that is used.

    A ``signature`` is the only one; it is compiled or loaded at the first call or use as a value (``compile_now``:
    now), so that a process that uses one policy of eight waits for one.

    Use it below the imports of a module, not in a function: imports are inspected when the first function is decorated.
    """
    decorate = numba.njit(**options)
    return lambda function: _compiled_once(decorate(_stamped(function)), signature)


def internal_njit(**options: Any) -> Callable[[_Function], _Function]:
    """Compile a function that only compiled functions call, with a cache: it has no wrapper for calls from Python.

    The wrappers take a sixth of the time of compiling the kernels of SLO-NNs.
    """
    return njit(cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)


def _stamped(function: _Function) -> _Function:
    """Return ``function`` with its file's stamp known."""
    file = function.__code__.co_filename
    if file not in _stamps:
        _stamps[file] = _stamp(file, function.__globals__)
    return function


def _compiled_once(dispatcher: Any, only: Any = None) -> Any:
    """Return ``dispatcher``, compiling what the cache lacks only while no other process compiles the same function.

    ``only``: the single signature, compiled at first use.
    """
    if not _compiles(dispatcher):
        return dispatcher
    function, compile_or_load, cache = dispatcher.py_func, dispatcher.compile, dispatcher._cache
    folder = getattr(cache, "cache_path", None)
    if folder:
        load_index = cache._cache_file._load_index
        cache._cache_file._load_index = lambda: _unless_outdated(load_index)

    def compile_once(declared: Any) -> Any:
        args, returned = normalize_signature(declared if only is None else only)
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
        # Numba compares later arguments with the signature; the first ones are compared here.
        if not dispatcher._search_new_conversions(*values):
            dispatcher._explain_matching_error(*values)
        return entry

    dispatcher.compile = compile_once
    if only is not None:
        dispatcher._compile_for_args = compile_for_first
    return dispatcher


def _unless_outdated(load_index: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """Return the index of a function, or an empty one if its stamp is old.

    Numba reads signatures before it compares stamps, and those before an upgrade may name types that no longer exist.
    """
    try:
        return load_index()
    except (AttributeError, ImportError):
        return {}


def compile_now(function: Any, signature: Any = None) -> None:
    """Compile, or load, what would be at its first use. ``signature``: for a function that was given none.

    Raises ``TypeError`` for a function that is not Numba's.
    """
    if _compiles(function) and not function.signatures:
        function.compile(signature)
    elif not _compiles(function) and not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise TypeError(f"{function!r} is not compiled")


def _compiles(function: Any) -> bool:
    """True if ``function`` is Numba's, False where its compiler is switched off."""
    return isinstance(function, Dispatcher)


class NotCachedError(RuntimeError):
    """A function would have to be compiled, where it is to come from the cache on disk."""


@contextmanager
def from_cache_only() -> Iterator[list[str]]:
    """Forbid compilation in this thread: a function missing from the cache on disk raises ``NotCachedError``.

    Yields the list of such functions' names, for callers that do not see the error.
    """
    before, _thread.missing = _missing(), []
    try:
        yield _thread.missing
    finally:
        _thread.missing = before


def _missing() -> list[str] | None:
    """Return the names of functions that the cache lacks, None where they may be compiled."""
    return getattr(_thread, "missing", None)


def _holds(cache: Any, signature: Any, target: Any) -> bool:
    """True if a function's ``cache`` has code for ``signature``; nothing is loaded."""
    try:
        return cache._index_key(signature, target.codegen()) in cache._cache_file._load_index()
    except OSError:
        return False


@contextmanager
def _locked(folder: str, function: str) -> Iterator[None]:
    """Lock ``function`` in this folder against other processes; no lock where the file system has none.

    Functions lock in the order in which they call each other, which has no cycles: no deadlock.
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
    """Open the lock file of the folder, one byte a function; a fork opens its own, as locks belong to a process."""
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
    """Return a hash of the file, of plain values in it, and of the files of everything it imports."""
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
    """Return a subclass of ``locator`` that accepts only stamped functions."""

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
    """Return ``np.searchsorted(ascending, most, side="right")``, which takes Numba .4 s to compile, when compiled."""
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
    """Set ``into[:] = values`` in compiled functions; Numba would compile its messages about shapes for seconds."""
    for i in range(len(into)):
        into[i] = values[i]
