"""``slotool doctor``: facts of this machine, what is installed, and what makes measurements noisy."""

from __future__ import annotations

import typer

import slotool
from slotool.cli.options import Json


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(json: Json = False) -> None:
    """Print machine, versions, plugins, and what is missing.

    Plugins are imported, to say which cannot be used. Exit code 1 when something that slotool needs is missing.

    Example: slotool doctor --json
    """
    from slotool.cli.output import Output

    found = slotool.doctor()
    Output(as_json=json).show(found)
    if not found.ok:
        raise typer.Exit(1)
