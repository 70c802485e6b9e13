"""How long work says how far it is: ``progress=`` of every function that takes longer than a moment.

==============  ========================================================================================
``"auto"``      the default: a bar where a person types (a notebook, interactive Python), else nothing
``True``        a bar, also in a script
``None``        nothing
a function      called as ``function(text, done, total)`` after each step; ``total`` is None where unknown
a ``Reporter``  an object of one's own, told of every phase, remark and warning
==============  ========================================================================================

Bars and remarks go to stderr: by rich on a terminal, else as one line that rewrites itself, as notebooks show it.
Warnings are Python warnings of the class ``SlotoolWarning``, whatever ``progress`` is.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from slotool.errors import SlotoolWarning
from slotool.printable import printable

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

BAR_WIDTH = 20
REDRAW_S = 0.1


class Progress(Protocol):
    """What a long job calls: ``advance`` per finished item, ``say`` to change the line's text."""

    def advance(self, steps: int = 1) -> None: ...

    def say(self, text: str) -> None: ...


@runtime_checkable
class Reporter(Protocol):
    """Hears of a long job: its phases, each ``total`` steps (None: nobody knows), remarks, and warnings."""

    def progress(self, text: str, total: int | None = None) -> AbstractContextManager[Progress]: ...

    def note(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


Callback = Callable[[str, int, int | None], None]
Reporting = Reporter | Callback | bool | Literal["auto"] | None


def reporter_of(wanted: Reporting) -> Reporter:
    """The reporter that ``progress=wanted`` means. Raises ``TypeError`` for anything else."""
    if wanted == "auto":
        wanted = _in_notebook() or hasattr(sys, "ps1")
    if wanted is None or wanted is False:
        return Quiet()
    if wanted is True:
        return OnTerminal() if sys.stderr.isatty() else OneLine()
    if isinstance(wanted, Reporter):
        return wanted
    if callable(wanted):
        return Calling(wanted)
    raise TypeError(f'progress is "auto", True, None, a function or a Reporter, not {wanted!r}')


def short_phase(reporter: Reporter, text: str, total: int | None = None) -> AbstractContextManager[Progress]:
    """A phase of seconds that most calls have. A reporter may have a ``short_phase`` of its own, as that of the command
    line has, which draws a bar on a terminal and prints no line elsewhere."""
    phase: Callable[[str, int | None], AbstractContextManager[Progress]]
    phase = getattr(reporter, "short_phase", reporter.progress)
    return phase(text, total)


class Quiet:
    """Passes on warnings only."""

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        yield _Steps(text, total)

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
        yield _Steps(text, total, self._function)


class OneLine(Quiet):
    """One line on stderr per phase, rewritten as it goes on."""

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        line = _Line()
        steps = _Steps(text, total, line)
        line(text, 0, total)
        try:
            yield steps
        finally:
            line.end(steps.text, steps.done, total)

    def note(self, text: str) -> None:
        print(printable(text), file=sys.stderr)


class OnTerminal(OneLine):
    """A bar of rich on stderr per phase."""

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        from rich.console import Console

        with rich_bar(Console(stderr=True), text, total) as bar:
            yield bar


@contextmanager
def rich_bar(console: Console, text: str, total: int | None) -> Iterator[Progress]:
    """A bar with the time left where the total is known, gone when its phase is."""
    from rich import progress as bars

    columns: list[bars.ProgressColumn] = [
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [bars.TextColumn("left", markup=False), bars.TimeRemainingColumn()]
    with bars.Progress(*columns, console=console, transient=True) as live:
        yield _Bar(live, live.add_task(printable(text), total=total))


class _Bar:
    def __init__(self, live: Any, task: Any):
        self._live, self._task = live, task

    def advance(self, steps: int = 1) -> None:
        self._live.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._live.update(self._task, description=printable(text))


class _Steps:
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


class _Line:
    """``text:  30% ██████-------------- 12/40 [0:12 < 0:28]``, drawn ten times a second at most."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._due, self._width = 0.0, 0

    def __call__(self, text: str, done: int, total: int | None) -> None:
        if (now := time.monotonic()) >= self._due:
            self._due = now + REDRAW_S
            self._write(text, done, total)

    def end(self, text: str, done: int, total: int | None) -> None:
        self._write(text, done, total, end="\n")

    def _write(self, text: str, done: int, total: int | None, end: str = "") -> None:
        line = f"{printable(text)}: {_how_far(done, total, time.monotonic() - self._begun)}"
        padding = " " * max(0, self._width - len(line))
        self._width = len(line)
        print(f"\r{line}{padding}", end=end, file=sys.stderr, flush=True)


def _how_far(done: int, total: int | None, elapsed_s: float) -> str:
    if not total:
        return f"{done} [{_clock(elapsed_s)}]"
    filled = BAR_WIDTH * min(done, total) // total
    bar = "█" * filled + "-" * (BAR_WIDTH - filled)
    left = f" < {_clock(elapsed_s * (total - done) / done)}" if 0 < done < total else ""
    return f"{done / total:4.0%} {bar} {done}/{total} [{_clock(elapsed_s)}{left}]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
