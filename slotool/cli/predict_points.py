"""``slotool predict-points``: T(k, β) that was not measured, predicted from what was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Out, Seed, parse_numbers


def register(app: typer.Typer) -> None:
    app.command("predict-points")(predict_points)


def predict_points(
    artifact: Annotated[Path, typer.Argument(help="An SLO-NN, supernet, family or network.")],
    latency: Annotated[
        list[Path],
        typer.Option("--latency", help="Its solo latencies, and of a few points co-located with copies; repeatable."),
    ],
    out: Out,
    co_runners: Annotated[
        str, typer.Option("--co-runners", help="Numbers of busy copies to predict for: 1 or 0,1,2 or 0:3.")
    ],
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fill in T(point, β), the latency beside busy copies.

    It is the latency of each operating point with β copies of the model. Measured rows stay as they are. Missing ones
    are predicted from the point's solo latency and from the points that were measured co-located. They are marked as
    predicted, with the interval that holds 90 % of single calls. serve, evaluate-colocated and simulate read the table
    like a measured one.

    Example: slotool predict-points slo-nn --latency colocated-latency.parquet --co-runners 0:3 -o latency.parquet
    """
    from slotool.cli.output import Output

    copies = parse_numbers(co_runners, "--co-runners")
    if any(number != int(number) for number in copies):
        raise typer.BadParameter(
            f"{co_runners!r}: a number of co-runners is a whole number from 0 up", param_hint="--co-runners"
        )
    found = slotool.predict_points(artifact, latency, [int(copy) for copy in copies], out=out, seed=seed, force=force)
    Output(as_json=json).show(found)
