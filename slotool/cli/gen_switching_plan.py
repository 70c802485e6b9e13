"""``slotool gen-switching-plan``: up to which arrival rate each operating point keeps a deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    DataName,
    Force,
    Json,
    Out,
    Seed,
    data_source,
    panel,
    parse_duration,
    plots_folder,
)

_search = panel("Search")


def register(app: typer.Typer) -> None:
    app.command("gen-switching-plan")(gen_switching_plan)


def gen_switching_plan(
    artifact: Annotated[Path, typer.Argument(help="The artifact to serve.")],
    out: Out,
    outcomes: Annotated[Path, typer.Option("--outcomes", help="Its outcome table.")],
    latency: Annotated[Path, typer.Option("--latency", help="Its latency table, over batch sizes where it may batch.")],
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0.1, help="Deadline of every request.")],
    by: Annotated[
        str,
        typer.Option("--by", help="A point serves while it keeps the deadline at p99, or by effective-accuracy."),
    ] = "p99",
    configurations: Annotated[
        str | None,
        _search("--configurations", help="Replicas x threads to try: 1x1,2x1.", show_default="what the cores allow"),
    ] = None,
    device: Annotated[str, _search("--device", help="That the servers compute on: cpu, cuda or cuda:N.")] = "cpu",
    duration: Annotated[str, _search("--duration", help="How long each load test lasts.")] = "4s",
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    dry_run: Annotated[
        bool, _search("--dry-run", help="Print the number of load tests and the expected time; start no server.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", callback=plots_folder, help="Folder for plots (PNG) of the plan and of P99 by load."),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find by load tests which point may serve which load.

    Real servers are started to find up to which arrival rate each point keeps the deadline. By effective-accuracy a
    point serves as long as no less accurate one answers more requests correctly and in time. serve --policy switching
    --plan follows the plan.

    Example: slotool gen-switching-plan family --outcomes family-outcomes.parquet --latency family-latency.parquet
    --deadline-ms 20 -o plan.json
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output

    seconds = parse_duration(duration, "--duration")
    asked: dict[str, Any] = {
        "outcomes": outcomes,
        "latency": latency,
        "deadline_ms": deadline_ms,
        "by": by,
        "configurations": _configurations(configurations) if configurations else None,
        "device": device,
        "duration_s": 4.0 if seconds is None else seconds,
        "data": data_source(data, label, inputs, images),
    }
    output = Output(as_json=json)
    if dry_run:
        refuse_existing(out, force)
        output.show(slotool.switching_plan_cost(artifact, **asked))
        return
    output.show(
        slotool.gen_switching_plan(artifact, out, plots=plots, seed=seed, force=force, progress=output, **asked)
    )


def _configurations(text: str) -> tuple[tuple[int, int], ...]:
    """``1x1,2x1`` as ⟨replicas, threads⟩."""
    try:
        found = tuple((int(r), int(t)) for r, _, t in (part.partition("x") for part in text.split(",")))
    except ValueError:
        found = ((0, 0),)
    if min(min(configuration) for configuration in found) < 1:
        raise typer.BadParameter(
            f"{text!r} is no list like 1x1,2x1 (replicas x threads)", param_hint="--configurations"
        )
    return found
