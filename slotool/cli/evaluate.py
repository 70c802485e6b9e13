"""``slotool evaluate``: the outcome table of an elastic model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.api.evaluate import ALLOWED_LOSS, TARGETS
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    optional_source,
    panel,
    parse_numbers,
    plots_folder,
)

_per_input = panel("For a model that chooses per input")
_slo_nn = panel("For an SLO-NN")


def register(app: typer.Typer) -> None:
    app.command()(evaluate)


def evaluate(
    artifact: Annotated[Path, typer.Argument(help="A network, family, SLO-NN or supernet.")],
    out: Out,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    split: Annotated[str, typer.Option("--split", help="test or validation.")] = "test",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed calls per example and point.")] = 3,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many examples.")] = None,
    metric: Annotated[
        str, typer.Option("--metric", help="The error is 1 minus this: p@1, or for several labels p@5.")
    ] = "p@1",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu; or for an SLO-NN cuda:0, by PyTorch.")] = "cpu",
    targets: Annotated[
        str | None,
        _per_input(
            "--targets", help="Accuracy targets to sweep, with --metric p@1.", show_default=",".join(map(str, TARGETS))
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        _slo_nn("--compare", help="Other SLO-NNs of the same data, such as of another ranker; repeatable."),
    ] = None,
    plots: Annotated[Path | None, _slo_nn("--plots", callback=plots_folder, help="Folder for plots (PNG).")] = None,
    allowed_loss: Annotated[
        float | None,
        _slo_nn(
            "--allowed-loss",
            min=0,
            max=1,
            help="Print the k that loses no more accuracy (0.002: 0.2 points).",
            show_default=str(ALLOWED_LOSS),
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        _slo_nn("--confidence", help="Confidence of that promise.", show_default="as given to build-tables"),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the outcome table: each held-out example at each point.

    Example: slotool evaluate slo-nn -o outcomes.parquet --split test

    Example: slotool evaluate slo-nn -o outcomes.parquet --compare slo-nn-clusters --plots plots
    """
    from slotool.cli.output import Output

    output = Output(as_json=json)
    found = slotool.evaluate(
        artifact,
        out,
        data=optional_source(data, label, inputs, images),
        split=split,
        repeats=repeats,
        limit=limit,
        metric=metric,
        threads=threads,
        device=device,
        targets=None if targets is None else parse_numbers(targets, "--targets"),
        compare=compare or (),
        plots=plots,
        allowed_loss=allowed_loss,
        confidence=confidence,
        force=force,
        progress=output,
    )
    output.show(found)
