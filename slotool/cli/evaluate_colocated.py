"""``slotool evaluate-colocated``: deadlines and accuracy, solo and co-located with busy copies on the same core."""

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
    optional_source,
    parse_duration,
    parse_numbers,
)


def register(app: typer.Typer) -> None:
    app.command("evaluate-colocated")(evaluate_colocated)


def evaluate_colocated(
    artifact: Annotated[Path, typer.Argument(help="A network, family, SLO-NN or supernet.")],
    out: Out,
    co_runners: Annotated[
        str, typer.Option("--co-runners", help="Numbers of busy copies on the same core: 1 or 0,1,2; 0 is always run.")
    ] = "0,1",
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Table of T(k, β).", show_default="measured first")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda or cuda:N, which the copies share; there without ACLO.")
    ] = "cpu",
    deadlines_us: Annotated[
        str | None,
        typer.Option("--deadlines-us", help="Deadlines, µs.", show_default="up to the full network's p95 and beyond"),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            help="For an SLO-NN: accuracy targets.",
            show_default="0.1, 0.03, 0.01 and 0.003 below the full network",
        ),
    ] = None,
    quantile: Annotated[float, typer.Option("--quantile", help="LCAO plans with this quantile of T(k, β).")] = 0.95,
    duration: Annotated[
        str, typer.Option("--duration", help="How long each strategy runs at each number of co-runners.")
    ] = "1s",
    estimate: Annotated[
        bool, typer.Option("--estimate", help="LCAO estimates β from recent latencies; without this it knows β.")
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure deadlines met beside busy copies on a core.

    Every policy runs solo and co-located. LCAO (the most accurate k within the deadline), ACLO (the fastest k for an
    accuracy target) and the full network take turns. The interference table goes to --out, T(k, β) to a file next to it
    unless --latency gives it.

    Example: slotool evaluate-colocated slo-nn -o colocated.parquet --co-runners 0,1
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.evaluate_colocated(
        artifact,
        out,
        co_runners=_copies(co_runners),
        data=optional_source(data, label, inputs, images),
        latency=latency,
        device=device,
        deadlines_us=parse_numbers(deadlines_us, "--deadlines-us") if deadlines_us else (),
        targets=parse_numbers(targets, "--targets") if targets else None,
        quantile=quantile,
        duration_s=parse_duration(duration, "--duration") or 1.0,
        estimate=estimate,
        seed=seed,
        force=force,
        progress=output,
    )
    output.show(found)


def _copies(text: str) -> list[int]:
    numbers = parse_numbers(text, "--co-runners")
    if any(number < 0 or number != int(number) for number in numbers):
        raise typer.BadParameter(f"{text!r} are no numbers of copies", param_hint="--co-runners")
    return [int(number) for number in numbers]
