"""The one output object: data on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slotool.cli import interrupts, terminal
from slotool.printable import printable

DOCUMENT_VERSION = 1
PIPE_COLUMNS = 120
_NUMBER = re.compile(r"–$|[-−+±<>≤≥]?\s?\d")


class Progress(Protocol):
    """What a long job calls: ``advance`` per finished item, ``say`` to change the line's text."""

    def advance(self, steps: int = 1) -> None: ...

    def say(self, text: str) -> None: ...


class Output:
    """Results for a person (tables) or, with ``--json``, for a machine (one document with a schema name)."""

    def __init__(self, *, as_json: bool = False):
        self.as_json = as_json
        self._quiet, self._moving = terminal.current().quiet, not terminal.current().no_progress
        self._stdout = _console(sys.stdout)
        self._stderr = _console(sys.stderr)

    def result(self, command: str, document: Mapping[str, Any], *human: Table | str) -> None:
        """End a command: print ``document`` as JSON, or what a person reads instead."""
        if self.as_json:
            body = {"schema": f"slotool/{command}", "schema_version": DOCUMENT_VERSION, **document}
            print(json.dumps(_plain(body), allow_nan=False))
        else:
            for part in human:
                self._stdout.print(printable(part, lines=True) if isinstance(part, str) else part)

    def note(self, text: str) -> None:
        """A remark on stderr, one line: a name with a line end in it must not look like a line of its own."""
        if self._quiet:
            return
        self._stderr.print(printable(text), style="dim")

    def warn(self, text: str) -> None:
        """A remark that should not be missed, on stderr."""
        self._stderr.print(printable(f"warning: {text}"), style="yellow")

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        """A bar with ETA on stderr when it is a terminal; one line at the start when it is not or none is wanted."""
        if self.as_json or self._quiet or not self._moving or not sys.stderr.isatty():
            self.note(text if total is None else f"{text} ({total})")
            yield _Silent()
            return
        from rich import progress as bars

        columns = (
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TextColumn("left", markup=False),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=self._stderr, transient=True) as live:
            yield _Bar(live, live.add_task(printable(text), total=total))


def _console(stream: TextIO) -> Console:
    """A terminal has a width of its own; a pipe has none, and rich would assume a narrow one. Nothing that is printed
    is markup: names come from files, and ``[/red]`` or ``:net:`` may be one."""
    width = None if stream.isatty() else PIPE_COLUMNS
    color = terminal.current().color
    return Console(
        file=stream,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        force_terminal=True if color == "always" else None,
        no_color=True if color == "never" else None,
    )


class _Silent:
    def advance(self, steps: int = 1) -> None:
        interrupts.check()

    def say(self, text: str) -> None:
        interrupts.check()


class _Bar:
    def __init__(self, live: Any, task: Any):
        self._live, self._task = live, task

    def advance(self, steps: int = 1) -> None:
        interrupts.check()
        self._live.advance(self._task, steps)

    def say(self, text: str) -> None:
        self._live.update(self._task, description=printable(text))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A rich table; a column is right-aligned when every cell of it begins like a number."""
    texts = [[printable(number(cell) if isinstance(cell, float) else str(cell)) for cell in row] for row in rows]
    built = Table(title=Text(printable(title), style="bold"), title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        numeric = bool(texts) and all(_NUMBER.match(row[i]) for row in texts)
        built.add_column(Text(printable(name)), justify="right" if numeric else "left")
    for row in texts:
        built.add_row(*map(Text, row))
    return built


def number(value: float) -> str:
    """Four significant digits, without exponent where a person would not use one."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """``1.234 ms``, ``56.7 µs``, ``2.3 s``: the unit a person would choose."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as JSON's own types; NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
