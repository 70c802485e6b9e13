"""Detection of errors by lack of memory, from any library and however wrapped."""

from __future__ import annotations

from collections.abc import Iterator

OUT_OF_MEMORY = "out-of-memory"

# Names of classes of Python, torch and CuPy, TensorFlow: no library is imported here, and one imported twice is found.
_NAMES = {"MemoryError", "OutOfMemoryError", "ResourceExhaustedError"}
# Phrases in messages of general classes, in lower case.
_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "failed to allocate memory",
    "cudaerrormemoryallocation",
    "status_alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """True if ``error``, its causes and contexts, or members of a group are a lack of host or device memory."""
    return any(_says_so(one) for one in _chain(error))


def _says_so(error: BaseException) -> bool:
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    words = str(error).lower()
    return any(phrase in words for phrase in _PHRASES)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all that it leads to, each once: chains may form a cycle."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
