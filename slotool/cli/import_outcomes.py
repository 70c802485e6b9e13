"""``slotool import-outcomes``: an outcome table from answers that other tools recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Out, panel


def register(app: typer.Typer) -> None:
    app.command("import-outcomes")(import_outcomes)


_columns, _meaning = map(panel, ("Columns", "What answers cost and mean"))


def import_outcomes(
    answers: Annotated[Path, typer.Argument(help="CSV (also .csv.gz) or Parquet: a row per answer, or per example.")],
    out: Out,
    columns: Annotated[
        str,
        _columns("--columns", metavar="KEY=COLUMN,…", help="What it calls example, version, error, truth and so on."),
    ] = "",
    versions: Annotated[
        str, _columns("--versions", help="A row per example: the services whose answers stand side by side.")
    ] = "",
    pattern: Annotated[
        str, _columns("--pattern", help="How the columns of a service are then named.")
    ] = "{version}_{column}",
    keep: Annotated[str, _columns("--keep", help="Further columns to keep: numbers or text known of an example.")] = "",
    prices: Annotated[
        Path | None, _meaning("--prices", help="Price list: TOML, or CSV version,price[,per calls].")
    ] = None,
    abstain: Annotated[str, _meaning("--abstain", help="Answers that count as missing, such as unknown.")] = "",
    missing_error: Annotated[float, _meaning("--missing-error", min=0.0, help="Error of a missing answer.")] = 1.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make an outcome table from answers of any services.

    Columns: example, version, error (or answer and truth), confidence, and where known latency_s and cost.

    Example: slotool import-outcomes answers.csv --columns version=service,truth=label --prices prices.toml -o o.parquet
    """
    from slotool.cli.output import Output

    found = slotool.import_outcomes(
        answers,
        out,
        columns=_pairs(columns),
        versions=versions,
        pattern=pattern,
        prices=prices,
        abstain=abstain,
        missing_error=missing_error,
        keep=keep,
        force=force,
    )
    Output(as_json=json).show(found)


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not equals or not name.strip() or not column.strip() for name, equals, column in pairs):
        raise typer.BadParameter(f"{text!r} is not KEY=COLUMN,… such as version=service", param_hint="--columns")
    return {name.strip(): column.strip() for name, _, column in pairs}
