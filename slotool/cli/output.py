"""The one output object: data on stdout, progress and remarks on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console

from slotool.cli import interrupts, terminal
from slotool.commands.display import CONSOLE, PLAIN_WIDTH, Part
from slotool.commands.result import DOCUMENT_VERSION, Result, plain
from slotool.printable import duration, printable
from slotool.progress import Callback, Progress, Steps, rich_bar

# Seconds between the lines of a phase where no bar is drawn.
LINE_S = 10.0


class Output:
    """Results for a person (tables) or, with ``--json``, for a machine (one document with a schema name)."""

    def __init__(self, *, as_json: bool = False):
        self.as_json = as_json
        self._quiet, self._moving = terminal.current().quiet, not terminal.current().no_progress
        self._stdout = _console(sys.stdout)
        self._stderr = _console(sys.stderr)

    def result(self, command: str, document: Mapping[str, Any], *human: Part) -> None:
        """End a command: print ``document`` as JSON, or what a person reads instead."""
        body = {"schema": f"slotool/{command}", "schema_version": DOCUMENT_VERSION, **document}
        self._print(plain(body), human)

    def show(self, result: Result) -> None:
        """End a command: print the result's warnings, and its document as JSON or what a person reads instead."""
        for sentence in result.warnings:
            self.warn(sentence)
        self._print(result.document, result.parts)
        for sentence in result.notes:
            self.note(sentence)

    def _print(self, document: Mapping[str, Any], human: Sequence[Part]) -> None:
        if self.as_json:
            print(json.dumps(document, allow_nan=False))
            return
        for part in human:
            self._stdout.print(printable(part, lines=True) if isinstance(part, str) else part)

    def note(self, text: str) -> None:
        """Print a remark on stderr, one line: a name with a line end in it must not look like a line of its own."""
        if self._quiet:
            return
        self._stderr.print(printable(text), style="dim")

    def warn(self, text: str) -> None:
        """Print a remark that should not be missed, on stderr."""
        self._stderr.print(printable(f"warning: {text}"), style="yellow")

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Progress]:
        """Show a bar with ETA on stderr if it is a terminal, else, or if no bar is wanted, lines of the same."""
        if self._draws:
            with self.short_phase(text, total) as steps:
                yield steps
            return
        self.note(text if total is None else f"{text} ({total})")
        yield _Checking(Steps(text, total, _lines(self.note)))

    @contextmanager
    def short_phase(self, text: str, total: int | None = None) -> Iterator[Progress]:
        """Show ``progress``, but nothing where no bar is drawn."""
        if not self._draws:
            yield _Checking(Steps(text, total))
            return
        with rich_bar(self._stderr, text, total) as bar:
            yield _Checking(bar)

    @property
    def _draws(self) -> bool:
        return not self.as_json and not self._quiet and self._moving and sys.stderr.isatty()


def _console(stream: TextIO) -> Console:
    """Return a console; a pipe has no width, and rich would assume a narrow one."""
    width = None if stream.isatty() else PLAIN_WIDTH
    color = terminal.current().color
    return Console(
        file=stream,
        width=width,
        **CONSOLE,
        force_terminal=True if color == "always" else None,
        no_color=True if color == "never" else None,
    )


def _lines(note: Callable[[str], None]) -> Callback:
    """Return a function that prints what is done and the time that is left, at most every ``LINE_S``."""
    began_s = printed_s = time.monotonic()

    def print_line(text: str, done: int, total: int | None) -> None:
        nonlocal printed_s
        now_s = time.monotonic()
        if total and done and now_s - printed_s >= LINE_S:
            left = f", {duration((now_s - began_s) * (total - done) / done)} left" if done < total else ""
            note(f"{text}: {done:,} of {total:,}{left}")
            printed_s = now_s

    return print_line


class _Checking:
    """A phase that ends at Ctrl-C, also one that a library swallowed."""

    def __init__(self, steps: Progress):
        self._steps = steps

    def advance(self, steps: int = 1) -> None:
        interrupts.check()
        self._steps.advance(steps)

    def say(self, text: str) -> None:
        interrupts.check()
        self._steps.say(text)
