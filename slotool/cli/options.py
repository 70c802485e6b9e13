"""Options of commands that are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from slotool.api.values import duration, duration_or_zero

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="File or folder to write.")]


def panel(title: str) -> Callable[..., Any]:
    """``typer.Option`` of options that the help shows under ``title``."""
    return partial(typer.Option, rich_help_panel=title)


def parse_duration(text: str | None, option: str, *, may_be_zero: bool = False) -> float | None:
    """Return the seconds in ``20ms``, ``90s``, ``2min``, ``1.5h`` or a bare number; None stays None."""
    if text is None:
        return None
    try:
        return duration_or_zero(text) if may_be_zero else duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
