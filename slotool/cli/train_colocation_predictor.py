"""``slotool train-colocation-predictor``: learn how co-located networks slow each other down."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    ROWS,
    Depths,
    Graphs,
    Latency,
    SearchAddress,
    SearchEngine,
    TrainingDevice,
    parse_depths,
    picks_rows,
)


def register(app: typer.Typer) -> None:
    app.command("train-colocation-predictor")(train_colocation_predictor)


@picks_rows
def train_colocation_predictor(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    solo: Annotated[
        Path | None,
        typer.Option("--solo", help="Predictor of solo latencies to put into the artifact, for networks not measured."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="The one to keep: linear, dnn, ridge, sharing; or auto, of lowest dev MAE.")
    ] = "auto",
    depths: Depths = None,
    engine: SearchEngine = "local",
    address: SearchAddress = None,
    training_device: TrainingDevice = "cpu",
    placement: Annotated[
        str | None,
        typer.Option("--placement", help="Only rows of this placement, shared or split.", rich_help_panel=ROWS),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Train predictors of co-located latency, keep one.

    It learns from a table of profile colocated how co-located networks slow each other down, for predict --co-runners.
    The artifact also holds the measured solo latencies, and with --solo a predictor of those of other networks.

    Example: slotool train-colocation-predictor colocated.parquet --graphs cnns.parquet --solo predictor -o both
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.train_colocation_predictor(
        latency,
        graphs=graphs,
        out=out,
        solo=solo,
        model=model,
        depths=parse_depths(depths),
        engine=engine,
        address=address,
        training_device=training_device,
        rows={**picked, "placement": placement},
        seed=seed,
        force=force,
        progress=output,
    )
    output.show(found)
