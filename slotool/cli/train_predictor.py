"""``slotool train-predictor``: learn latency from measured networks, and say how well on networks held out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    Depths,
    Graphs,
    Latency,
    SearchAddress,
    SearchEngine,
    TrainingDevice,
    listed,
    parse_depths,
    picks_rows,
)


def register(app: typer.Typer) -> None:
    app.command("train-predictor")(train_predictor)


@picks_rows
def train_predictor(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="The one to keep, such as graph or dnn; of several with commas, or auto, the one of lowest dev MAE. "
            "The baselines linear and three-term are always trained too. settings: one of every setting in the tables.",
        ),
    ] = "auto",
    depths: Depths = None,
    engine: SearchEngine = "local",
    address: SearchAddress = None,
    training_device: TrainingDevice = "cpu",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Train predictors of solo latency, score all, keep one.

    Its interval for other kinds of networks comes from holding out each kind of the training networks in turn.
    train-colocation-predictor learns from a co-located table, adapt-predictor from a few labels.

    Example: slotool train-predictor latency.parquet --graphs networks.parquet -o predictor
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.train_predictor(
        latency,
        graphs=graphs,
        out=out,
        model=listed(model),
        depths=parse_depths(depths),
        engine=engine,
        address=address,
        training_device=training_device,
        rows=picked,
        seed=seed,
        force=force,
        progress=output,
    )
    output.show(found)
