"""Amount of terminal output: the settings ``--quiet``, ``--verbose``, ``--no-progress`` and ``--color``."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass, replace

import typer

COLORS = ("auto", "always", "never")
DEBUG_VARIABLE = "SLOTOOL_DEBUG"


@dataclass(frozen=True)
class Terminal:
    """Settings of the terminal.

    ``quiet``: no remarks and no progress, only results, warnings and errors. ``verbose``: errors with their stack
    trace. ``no_progress``: lines instead of a moving bar. ``color``: when to print colours.
    """

    quiet: bool = False
    verbose: bool = False
    no_progress: bool = False
    color: str = "auto"


_current: ContextVar[Terminal] = ContextVar("terminal", default=Terminal())  # noqa: B039 (it is frozen)


def current() -> Terminal:
    return _current.get()


def change(**settings: bool | str) -> None:
    """Set some of the options above; a usage error for a combination without meaning."""
    changed = replace(current(), **settings)  # type: ignore[arg-type]  # names and types are the options' own
    if changed.color not in COLORS:
        raise typer.BadParameter(f"{changed.color!r} is not one of {', '.join(COLORS)}", param_hint="--color")
    if changed.quiet and changed.verbose:
        raise typer.BadParameter("it contradicts --quiet; give one of them", param_hint="--verbose")
    _current.set(changed)


def reset() -> None:
    """Back to the defaults, for a process that runs several commands."""
    _current.set(Terminal())


def shows_stack_traces() -> bool:
    return current().verbose or bool(os.environ.get(DEBUG_VARIABLE))
