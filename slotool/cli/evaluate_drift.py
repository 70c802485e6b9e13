"""``slotool evaluate-drift``: whether guarantees still hold, from labelled feedback in the order of arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.evaluate_rules import Rules
from slotool.cli.options import Json


def register(app: typer.Typer) -> None:
    app.command("evaluate-drift")(evaluate_drift)


def evaluate_drift(
    rules: Rules,
    feedback: Annotated[Path, typer.Argument(help="Outcome table of labelled requests, in the order of arrival.")],
    confidence: Annotated[
        float, typer.Option("--confidence", help="Probability of no alarm while all guarantees hold.")
    ] = 0.99,
    json: Json = False,
) -> None:
    """Watch every tier by a sequential test of feedback.

    Exit 1 when the guarantee of one no longer holds. "Confirmed": these requests alone show that it holds. You may look
    after every request.

    Example: slotool evaluate-drift rules.json feedback.parquet
    """
    from slotool.cli.output import Output

    found = slotool.evaluate_drift(rules, feedback, confidence=confidence)
    Output(as_json=json).show(found)
    if found.alarms:
        raise typer.Exit(1)
