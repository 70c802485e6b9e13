"""``slotool compare-predictors``: every predictor under every protocol, beside the noise floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

import slotool
from slotool.cli import interrupts
from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import (
    Depths,
    Graphs,
    Latency,
    listed,
    parse_depths,
    picks_rows,
    whole_numbers,
)


def register(app: typer.Typer) -> None:
    app.command("compare-predictors")(compare_predictors)


@picks_rows
def compare_predictors(
    latency: Latency,
    graphs: Graphs,
    out: Out,
    protocols: Annotated[
        str, typer.Option("--protocols", help="How to hold networks out: random, depth, width, family.")
    ] = "random",
    models: Annotated[
        str, typer.Option("--models", help="Predictors to compare, such as linear,dnn,graph.", show_default="every one")
    ] = "",
    curve: Annotated[
        str, typer.Option("--curve", help="Learning curve: numbers of networks to learn from, and all.")
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="So many splits and trainings, averaged.")] = 1,
    depths: Depths = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Score every predictor on the same held-out networks.

    Each is trained anew under every protocol. Interrupted, the same command goes on where it was. Reports draw the
    result.

    Example: slotool compare-predictors latency.parquet --graphs mlps.parquet --graphs cnns.parquet -o study

    Example: slotool compare-predictors latency.csv -g cells.jsonl -o study --protocols random,depth --curve 500,all
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    with interrupts.explaining(output.note):
        found = slotool.compare_predictors(
            latency,
            graphs=graphs,
            out=out,
            protocols=listed(protocols),
            models=listed(models) if models else None,
            curve=_points(curve),
            seeds=seeds,
            depths=parse_depths(depths),
            rows=picked,
            seed=seed,
            force=force,
            progress=output,
        )
    output.show(found)


def _points(curve: str) -> list[int | None]:
    """Numbers of networks, None for all."""
    parts = [part.strip() for part in curve.split(",") if part.strip()]
    numbers = ",".join(part for part in parts if part != "all")
    what = "a point of the learning curve is a whole number of networks"
    points: list[int | None] = [*whole_numbers(numbers, "--curve", least=1, what=what)] if numbers else []
    return [*points, None] if "all" in parts else points
