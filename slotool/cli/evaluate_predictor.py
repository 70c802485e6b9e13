"""``slotool evaluate-predictor``: how far a predictor is off on networks that were measured elsewhere or later."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json
from slotool.cli.predictor_options import Graphs


def register(app: typer.Typer) -> None:
    app.command("evaluate-predictor")(evaluate_predictor)


def evaluate_predictor(
    predictor: Annotated[Path, typer.Argument(help="Predictor artifact, from train-predictor or adapt-predictor.")],
    latency: Annotated[
        list[Path], typer.Option("--latency", help="Latency table (Parquet or CSV) of measured networks; repeatable.")
    ],
    graphs: Graphs,
    device: Annotated[
        str | None, typer.Option("--device", help="Of a predictor of several settings, that of it.")
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="The same: what runs the networks.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", help="The same: such as amp.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="The same: number of threads.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, help="The same: batch size.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a table of measured and predicted latencies.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Score a predictor on measured networks.

    Prints errors, rank correlation, and how many labels its intervals cover. Of a table that mixes settings it takes
    the rows of the predictor's own.

    Example: slotool evaluate-predictor predictor --latency latency.parquet --graphs networks.parquet
    """
    from slotool.cli.output import Output

    found = slotool.evaluate_predictor(
        predictor,
        latency=latency,
        graphs=graphs,
        device=device,
        backend=backend,
        precision=precision,
        threads=threads,
        batch_size=batch_size,
        out=out,
        force=force,
    )
    Output(as_json=json).show(found)
