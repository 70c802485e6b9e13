"""Errors that mean that memory ran out, whichever library raised them and however they were wrapped since."""

from __future__ import annotations

from collections.abc import Iterator

OUT_OF_MEMORY = "out-of-memory"

# Classes are told by name, so that no library is imported here, and one that was imported twice is known all the same:
# Python, torch and CuPy, TensorFlow.
_NAMES = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
# What libraries say in an error of a general class, in lower case.
_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "failed to allocate memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if ``error``, what caused it, what was being handled when it was raised, or one of a group of them is a lack
    of memory, of the host or of a device."""
    return any(_says_so(one) for one in _chain(error))


def _says_so(error: BaseException) -> bool:
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    words = str(error).lower()
    return any(phrase in words for phrase in _PHRASES)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it leads to, each once: chains may form a circle."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
