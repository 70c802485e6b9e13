"""Progress of work: ``progress=`` of every function that takes longer than a moment.

==============  ========================================================================================
``"auto"``      the default: a bar where a person types (a notebook, interactive Python), else nothing
``True``        a bar, also in a script
``None``        nothing
a function      called as ``function(text, done, total)`` after each step; ``total`` is None where unknown
a ``Reporter``  an object of one's own, told of every phase, remark and warning
==============  ========================================================================================

Bars and remarks go to stderr; where that is no terminal, a bar is one line that rewrites itself, as notebooks show it.
Warnings are Python warnings of the class ``SlotoolWarning``, whatever ``progress`` is.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from slotool.errors import SlotoolWarning
from slotool.printable import printable

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

# Time after which a step that usually takes a moment is named.
SLOW_S = 2.0


class Progress(Protocol):
    """Steps of a phase: ``advance`` per finished item, ``say`` to change the line's text."""

    def advance(self, steps: int = 1) -> None: ...

    def say(self, text: str) -> None: ...


@runtime_checkable
class Reporter(Protocol):
    """Receiver of the phases of a long job, each of ``total`` steps (None: unknown), its remarks and warnings."""

    def progress(self, text: str, total: int | None = None) -> AbstractContextManager[Progress]: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


Callback = Callable[[str, int, int | None], None]
Reporting = Reporter | Callback | bool | Literal["auto"] | None


def reporter_of(shown: Reporting) -> Reporter:
    """Return the reporter that ``progress=wanted`` means. Raises ``TypeError`` for anything else."""
    if shown == "auto":
        shown = _in_notebook() or hasattr(sys, "ps1")
    if shown is None or shown is False:
        return Quiet()
    if shown is True:
        return Drawing()
    if isinstance(shown, Reporter):
        return shown
    if callable(shown):
        return Calling(shown)
    raise TypeError(f'progress is "auto", True, None, a function or a Reporter, not {shown!r}')


def short_phase(reporter: Reporter, text: str, total: int | None = None) -> AbstractContextManager[Progress]:
    """Return a phase of seconds that most calls have.

    A reporter may have a ``short_phase`` of its own, as that of the command line, which draws a bar on a terminal and
    prints no line elsewhere.
    """
    phase: Callable[[str, int | None], AbstractContextManager[Progress]]
    phase = getattr(reporter, "short_phase", reporter.progress)
    return phase(text, total)


@contextmanager
def named_if_slow(note: Callable[[str], None], text: str) -> Iterator[None]:
    """Pass ``text`` and the time of the start to ``note``, from a thread, if the block takes longer than ``SLOW_S``."""
    timer = Timer(SLOW_S, note, [f"{text} since {time.strftime('%H:%M:%S')}"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def stepping(steps: Progress, text: str) -> Callable[[str], None]:
    """Return a function that states what was finished behind ``text``, and advances by one step."""

    def finished(what: str) -> None:
        steps.say(f"{text}; {what}")
        steps.advance()

    return finished


class Quiet:
    """Passes on warnings only."""

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        yield Steps(text, total)

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        # Of whoever called the function: the first line outside slotool.
        frame: FrameType | None = sys._getframe()
        level = 1
        while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "slotool":
            frame, level = frame.f_back, level + 1
        warnings.warn(printable(text), SlotoolWarning, stacklevel=level)


class Calling(Quiet):
    """Calls a function after each step."""

    def __init__(self, function: Callback):
        self._function = function

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        yield Steps(text, total, self._function)


class Drawing(Quiet):
    """A bar of rich on stderr per phase; where that is no terminal, as in a notebook, its line stays."""

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        from rich.console import Console

        console = Console(file=sys.stderr, force_terminal=True, force_jupyter=False)
        with rich_bar(console, text, total, stays=not sys.stderr.isatty()) as bar:
            yield bar

    def note(self, text: str) -> None:
        print(printable(text), file=sys.stderr)


@contextmanager
def rich_bar(console: Console, text: str, total: int | None, *, stays: bool = False) -> Iterator[Progress]:
    """Draw a bar with the time left where the total is known; it goes when its phase is over, unless it ``stays``."""
    from rich import progress as bars

    columns: list[bars.ProgressColumn] = [
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [bars.TextColumn("left", markup=False), bars.TimeRemainingColumn()]
    shown = bars.Progress(
        *columns, console=console, transient=not stays, redirect_stdout=not stays, redirect_stderr=not stays
    )
    with shown as live:
        yield _Bar(live, live.add_task(printable(text), total=total))


class _Bar:
    def __init__(self, live: Any, task: Any):
        self._live, self._task = live, task

    def advance(self, steps: int = 1) -> None:
        self._live.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._live.update(self._task, description=printable(text))


class Steps:
    """Counts, and calls ``function`` with the count."""

    def __init__(self, text: str, total: int | None, function: Callback | None = None):
        self.text, self.done, self._total, self._function = text, 0, total, function

    def advance(self, steps: int = 1) -> None:
        self.done += steps
        self._call()

    def say(self, text: str) -> None:
        self.text = text
        self._call()

    def _call(self) -> None:
        if self._function is not None:
            self._function(self.text, self.done, self._total)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
