"""``slotool adapt-predictor``: take a predictor to another device, backend or thread count by a few labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.options import Force, Json, Out, Seed
from slotool.cli.predictor_options import Graphs, Latency, picks_rows


def register(app: typer.Typer) -> None:
    app.command("adapt-predictor")(adapt_predictor)


@picks_rows
def adapt_predictor(
    base: Annotated[Path, typer.Argument(help="Predictor artifact of another device, backend …")],
    latency: Latency,
    graphs: Graphs,
    out: Out,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", min=3, help="Adapt to this many labels, chosen to tell most, and score on the others."
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    *,
    picked: Mapping[str, Any],
) -> None:
    """Adapt a predictor to a new setting by 3 to 200 labels.

    Several ways of adapting are scored on labels held out; the weighted mean of all is kept, or the best one where it
    is clearly better. profile solo --for measures the labels that tell most.

    Example: slotool adapt-predictor predictor few.parquet --graphs cnns.parquet -o adapted
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    output.show(
        slotool.adapt_predictor(
            base, latency, graphs=graphs, out=out, samples=samples, rows=picked, seed=seed, force=force, progress=output
        )
    )
