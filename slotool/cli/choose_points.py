"""``slotool choose-points``: the subnets that a supernet offers on this machine."""

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
    Seed,
    Threads,
    optional_source,
)
from slotool.cli.train_supernet import Points


def register(app: typer.Typer) -> None:
    app.command("choose-points")(choose_points)


def choose_points(
    supernet: Annotated[Path, typer.Argument(help="A trained supernet.")],
    out: Out,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Latency table of some of its points, as profile writes it.")
    ] = None,
    predictor: Annotated[Path | None, typer.Option("--predictor", help="Predictor, in place of --latency.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Only rows of this device.", show_default="the only one")
    ] = None,
    points: Points = 8,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Choose other points of a supernet; the weights stay.

    They lie on the Pareto front of latency and accuracy. Latencies of all subnets are estimated from a profile of some
    (batch 1, solo), or from a predictor.

    Example: slotool choose-points supernet -o supernet-2 --latency supernet-latency.parquet --points 6
    """
    from slotool.cli.output import Output

    if (latency is None) == (predictor is None):
        raise typer.BadParameter("give either --latency or --predictor")
    output = Output(as_json=json)
    found = slotool.choose_points(
        supernet,
        out,
        latency=latency,
        predictor=predictor,
        device=device,
        points=points,
        data=optional_source(data, label, inputs, images),
        seed=seed,
        threads=threads,
        force=force,
        progress=output,
    )
    output.show(found)
