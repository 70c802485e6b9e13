"""Exit codes, messages and advice for exceptions."""

from __future__ import annotations

import errno
import sys
import traceback
from dataclasses import dataclass

from slotool.cli import terminal
from slotool.errors import (
    AlreadyExistsError,
    InputError,
    PluginError,
    PromiseBroken,
    RunError,
    SlotoolError,
    TimedOut,
)
from slotool.extras import missing_package
from slotool.plugins import package_that_raised
from slotool.printable import printable
from slotool.regular_files import LOOP

INTERRUPTED = 130


@dataclass(frozen=True)
class Failure:
    exit_code: int
    hint: str = ""


# First match wins, so the more special class stands above its base.
_FAILURES: tuple[tuple[type[BaseException], Failure], ...] = (
    (AlreadyExistsError, Failure(2, "add --force to replace it")),
    (InputError, Failure(2)),
    (PromiseBroken, Failure(1)),
    (TimedOut, Failure(124)),
    (RunError, Failure(3)),
    (SlotoolError, Failure(3)),
    (KeyboardInterrupt, Failure(INTERRUPTED)),
    (MemoryError, Failure(3, "use a smaller model, batch or table, or a machine with more memory")),
)

_SYSTEM_SENTENCES = {
    errno.ENOSPC: ("no space left on the disk", "free some space and run the same command again"),
    errno.EDQUOT: ("the disk quota is used up", "free some space and run the same command again"),
    errno.EACCES: ("permission denied", ""),
    errno.EPERM: ("operation not permitted", ""),
    errno.EADDRINUSE: ("the address is in use", "choose another --port, or 0 for any free one"),
    errno.ENOENT: ("no such file or folder", ""),
    errno.ELOOP: (LOOP, ""),
    errno.EISDIR: ("this is a folder, a file was expected", ""),
    errno.ENOTDIR: ("this is a file, a folder was expected", ""),
    errno.EROFS: ("the file system is read-only", ""),
}


def report_failure(error: BaseException) -> int:
    """Print one sentence for ``error`` on stderr and return the exit code. A stack trace only with --verbose."""
    if terminal.shows_stack_traces():
        traceback.print_exception(error)
    sentence, failure = _explain(error)
    print(printable(f"slotool: {sentence}" + (f"; {failure.hint}" if failure.hint else "")), file=sys.stderr)
    return failure.exit_code


def _explain(error: BaseException) -> tuple[str, Failure]:
    for kind, failure in _FAILURES:
        if isinstance(error, kind):
            return _sentence(error), failure
    if isinstance(error, OSError) and error.errno in _SYSTEM_SENTENCES:
        sentence, hint = _SYSTEM_SENTENCES[error.errno]
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{sentence}", Failure(3 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 2, hint)
    if isinstance(error, ModuleNotFoundError):
        return str(missing_package(str(error.name).partition(".")[0])), Failure(3)
    sentence = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return sentence, Failure(3, f"this is a fault of {_author(error)}; --verbose shows where")


def _author(error: BaseException) -> str:
    """Return the name of whose code raised ``error``: that of a package of plugins, or slotool."""
    try:
        package = package_that_raised(error)
    except PluginError:
        package = None
    return "slotool" if package is None else f"{package}, which adds plugins"


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was finished is kept"
    if isinstance(error, MemoryError):
        return "out of memory"
    return str(error)
