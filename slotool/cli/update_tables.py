"""``slotool update-tables``: let a network's tables follow the inputs it is served now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    data_source,
)


def register(app: typer.Typer) -> None:
    app.command("update-tables")(update_tables)


def update_tables(
    artifact: Annotated[Path, typer.Argument(help="An SLO-NN, as build-tables writes it.")],
    out: Out,
    data: Annotated[str, typer.Option("--data", help="Data set of what is served now.")],
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    half_life: Annotated[
        int, typer.Option("--half-life", min=1, help="After so many inputs an input counts half as much.")
    ] = 4_096,
    force: Force = False,
    json: Json = False,
) -> None:
    """Update an SLO-NN's tables for the inputs served now.

    Weights, rankers and table size stay. The training split, in its order, stands for served inputs and moves the
    ranked lists. Confidence, calibration and promises are counted on the validation split. Accuracy before and after is
    of the test split.

    Example: slotool update-tables slo-nn --data digits -o slo-nn-now
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    source = data_source(data, label, inputs, images)
    output.show(slotool.update_tables(artifact, source, out, half_life=half_life, force=force, progress=output))
