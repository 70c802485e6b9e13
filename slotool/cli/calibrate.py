"""``slotool calibrate``: measure a few networks on this machine, and leave a predictor that ``predict`` uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.options import Force, Json, Seed, Threads


def register(app: typer.Typer) -> None:
    app.command()(calibrate)


def calibrate(
    graphs: Annotated[
        list[Path] | None,
        typer.Argument(help="Graph files of your own networks to choose from.", show_default="random networks"),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="Finish within so many minutes.")] = 2.0,
    backend: Annotated[
        str, typer.Option("--backend", help="What runs the networks: torch, keras, onnx, or module:Class.")
    ] = "torch",
    threads: Threads = None,
    samples: Annotated[
        int, typer.Option("--samples", min=3, help="Networks to measure; fewer when the time is up.")
    ] = 60,
    base: Annotated[
        Path | None,
        typer.Option("--base", help="Predictor artifact to start from.", show_default="the shipped one"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write the predictor here.", show_default="where predict looks: $XDG_CACHE_HOME/slotool"
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    keep_anyway: Annotated[
        bool, typer.Option("--keep-anyway", help="Keep it also if noisy or no better, as measured before if it was.")
    ] = False,
    json: Json = False,
) -> None:
    """Make the predictor of this machine, for predict.

    It measures MLPs, CNNs and transformers, those that tell a predictor of another machine most. After an interruption
    the same command goes on where it was. Exit 1, and nothing kept, when the machine was too noisy or the predictor is
    no better than the shipped one.

    Example: slotool calibrate

    Example: slotool calibrate own.jsonl --backend onnx --threads 1 --minutes 1
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.calibrate(
        graphs or None,
        minutes=minutes,
        backend=backend,
        threads=threads,
        samples=samples,
        predictor=base,
        out=out,
        seed=seed,
        force=force,
        keep_anyway=keep_anyway,
        progress=output,
    )
    output.show(found)
    if found.out is None:
        raise typer.Exit(1)
