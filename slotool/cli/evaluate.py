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
    data_source,
    optional_source,
    panel,
    parse_numbers,
    plots_folder,
)

_per_input = panel("For a model that chooses per input")
_slo_nn = panel("For an SLO-NN")
_live = panel("For live services")

_OF_ARTIFACTS = (
    "artifact", "repeats", "metric", "threads", "device", "targets", "compare", "plots", "allowed_loss", "confidence"
)  # fmt: skip
_OF_SERVICES = ("output", "scores", "prices", "budget", "max_requests", "rate", "concurrency")


def register(app: typer.Typer) -> None:
    app.command()(evaluate)


def evaluate(
    out: Out,
    artifact: Annotated[
        Path | None, typer.Argument(help="A network, family, SLO-NN or supernet; none with --endpoint.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="test or validation; of services also train, all.", show_default="test; all"),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed calls per example and point.")] = 3,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many examples.")] = None,
    metric: Annotated[str, typer.Option("--metric", help="1 minus the error: p@1, or for several labels p@5.")] = "p@1",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")] = "cpu",
    targets: Annotated[
        str | None,
        _per_input(
            "--targets", help="Accuracy targets to sweep, with --metric p@1.", show_default=",".join(map(str, TARGETS))
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        _slo_nn("--compare", help="Another SLO-NN of the same data; repeatable."),
    ] = None,
    plots: Annotated[Path | None, _slo_nn("--plots", callback=plots_folder, help="Folder for plots (PNG).")] = None,
    allowed_loss: Annotated[
        float | None,
        _slo_nn(
            "--allowed-loss",
            min=0,
            max=1,
            help="Print the k that loses no more.",
            show_default=str(ALLOWED_LOSS),
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        _slo_nn("--confidence", help="Confidence of that promise.", show_default="as given to build-tables"),
    ] = None,
    endpoint: Annotated[
        list[str] | None, _live("--endpoint", metavar="NAME=URL", help="One, as of family; repeatable.")
    ] = None,
    output: Annotated[str | None, _live("--output", help="Output tensor with the answers.")] = None,
    scores: Annotated[str | None, _live("--scores", help="It holds logits, probabilities or labels.")] = None,
    prices: Annotated[Path | None, _live("--prices", help="Price list, as of import-outcomes.")] = None,
    budget: Annotated[float | None, _live("--budget", help="What all calls may cost, with --prices.")] = None,
    max_requests: Annotated[int | None, _live("--max-requests", help="How many calls there may be.")] = None,
    rate: Annotated[float | None, _live("--rate", help="Calls of one service per second.")] = None,
    concurrency: Annotated[int, _live("--concurrency", help="Calls at the same time.")] = 1,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write the outcome table: held-out examples × points.

    Example: slotool evaluate slo-nn -o outcomes.parquet --compare slo-nn-clusters --plots plots

    Example: slotool evaluate --endpoint a=http://b/v2/models/m --data d.npz --budget 5 --prices p.toml -o o.parquet
    """
    from slotool.cli.commands import refuse_without_effect
    from slotool.cli.options import named_values
    from slotool.cli.output import Output

    shell = Output(as_json=json)
    if endpoint:
        refuse_without_effect(_OF_ARTIFACTS, "on live services")
        if data is None:
            raise typer.BadParameter("live services need labelled examples to answer", param_hint="--data")
        answered = slotool.evaluate_endpoints(
            named_values(endpoint, "URL", "small=http://host:8000/v2/models/small"),
            data_source(data, label, inputs, images),
            out,
            prices=prices,
            budget=budget,
            max_requests=max_requests,
            rate=rate,
            concurrency=concurrency,
            split=split or "all",
            limit=limit,
            output=output,
            scores=scores,
            force=force,
            progress=shell,
        )
        shell.show(answered)
        return
    refuse_without_effect(_OF_SERVICES, "without --endpoint")
    if artifact is None:
        raise typer.BadParameter("name an artifact, or live services with --endpoint", param_hint="artifact")
    found = slotool.evaluate(
        artifact,
        out,
        data=optional_source(data, label, inputs, images),
        split=split or "test",
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
        progress=shell,
    )
    shell.show(found)
