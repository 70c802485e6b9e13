"""``slotool evaluate-rules``: routing rules evaluated on held-out outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import Force, Json, drawable

Rules = Annotated[Path, typer.Argument(help="Rules, as gen-rules wrote them.")]
Outcomes = Annotated[Path, typer.Argument(help="Outcome table (Parquet or CSV) that the rules were not made from.")]


def register(app: typer.Typer) -> None:
    app.command("evaluate-rules")(evaluate_rules)


def evaluate_rules(
    rules: Rules,
    outcomes: Outcomes,
    folds: Annotated[
        int | None,
        typer.Option("--folds", min=2, help="Cross-validate: make rules of the same settings from all folds but one."),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="Price of a call: a list as of import-outcomes.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", callback=drawable, help="Plot (PNG) of tolerance against observed degradation."),
    ] = None,
    significance: Annotated[
        float,
        typer.Option(
            help="Level at which a violation is significant, over all tiers and folds; then the exit code is 1."
        ),
    ] = 0.05,
    force: Force = False,
    json: Json = False,
) -> None:
    """Replay every tier on held-out outcomes.

    Prints degradation against tolerance, and time and cost saved. Exit 1 on a significant violation: a tier's mean may
    exceed its tolerance on a sample although the tolerance holds.

    Example: slotool evaluate-rules rules.json fresh-outcomes.parquet

    Example: slotool evaluate-rules rules.json outcomes.parquet --folds 10
    """
    from slotool.cli.output import Output

    if plot is None:
        refuse_without_effect(("force",), "without --plot")
    output = Output(as_json=json)
    found = slotool.evaluate_rules(
        rules, outcomes, folds=folds, prices=prices, plot=plot, significance=significance, force=force, progress=output
    )
    output.show(found)
    if found.violations:
        raise typer.Exit(1)
