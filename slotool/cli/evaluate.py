"""``slotool evaluate``: the outcome table of an elastic model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.evaluate_sweeps import SweepOptions, SweepReport, sweeps
from slotool.cli.options import Force, Json, Out, cores_given, panel, parse_numbers, plots_folder

if TYPE_CHECKING:
    from slotool.elastic import ElasticModel

TARGETS = (0.8, 0.9, 0.95, 0.97, 0.99)
ALLOWED_LOSS = 0.002
_per_input = panel("For a model that chooses per input")
_slo_nn = panel("For an SLO-NN")


def register(app: typer.Typer) -> None:
    app.command()(evaluate)


def evaluate(
    artifact: Annotated[Path, typer.Argument(help="A network, family, SLO-NN or supernet.")],
    out: Out,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
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
    import torch

    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic import evaluation, load_model
    from slotool.machine import machine_id

    if confidence is not None and not 0 < confidence < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--confidence")
    if split not in ("test", "validation"):
        raise typer.BadParameter(f"{split!r} is neither test nor validation", param_hint="--split")
    opened = open_artifact(artifact)
    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    model = load_model(opened)
    _require_effect(model, metric, targets, allowed_loss, confidence)
    wanted = TARGETS if targets is None else parse_numbers(targets, "--targets")
    loss = ALLOWED_LOSS if allowed_loss is None else allowed_loss
    options = SweepOptions(wanted, metric, tuple(compare or ()), plots, loss, confidence)
    on_device, others = model.on(device), options.load(model)
    name, examples = held_out(model, data or opened.manifest["config"].get("data", "auto"), split, limit)
    output = Output(as_json=json)
    provenance: dict[str, Any] = {
        "subject": model.name,
        "kind": opened.kind,
        "artifact_id": opened.id,
        "data": name,
        "split": split,
        "metric": metric,
        "threads": threads,
        "device": device,
        "machine": machine_id(),
    }
    with output.progress(f"evaluating {model.name} on {name}", total=len(examples)) as progress:
        outcomes = evaluation.evaluate(
            on_device, examples, repeats=repeats, metric=metric, provenance=provenance, progress=progress.advance
        )
    outcomes.save(out)
    found = sweeps(model, others, examples, outcomes, options)
    _report(output, provenance, evaluation.summary(outcomes), found, len(examples), out)


def _require_effect(
    model: ElasticModel, metric: str, targets: str | None, allowed_loss: float | None, confidence: float | None
) -> None:
    """Refuses options that this model or metric would ignore."""
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.evaluation import METRICS

    own = isinstance(model, SloNN) and metric == METRICS[0]
    for option, value in (("--allowed-loss", allowed_loss), ("--confidence", confidence), ("--targets", targets)):
        if value is not None and not own:
            raise typer.BadParameter(
                f"has an effect only on an SLO-NN with --metric {METRICS[0]}; this is {model.name}, {metric}",
                param_hint=option,
            )


def held_out(model: ElasticModel, data: str, split: str, limit: int | None) -> tuple[str, Any]:
    """The name of a data set, of one class or several labels per example, and its first examples of ``split``."""
    import numpy as np

    from slotool.elastic.queries import dataset_of

    dataset = dataset_of(model, data)
    chosen = getattr(dataset, split)
    return dataset.name, chosen if limit is None else chosen.take(np.arange(min(limit, len(chosen))))


def _report(
    output: Any, provenance: dict[str, Any], rows: list[dict[str, Any]], found: SweepReport, n: int, out: Path
) -> None:
    from slotool.cli.output import duration, table

    what = {"p@1": "accuracy"}.get(provenance["metric"], provenance["metric"])
    points = table(
        f"{provenance['subject']} on {n:,} {provenance['split']} examples of {provenance['data']}",
        ["point", what, "± SE", "confidence", "median latency", "mean latency"],
        [
            [
                r["version"],
                f"{r['accuracy']:.4f}",
                f"{r['standard_error']:.4f}",
                f"{r['confidence']:.3f}",
                duration(r["median_latency_s"]),
                duration(r["mean_latency_s"]),
            ]
            for r in rows
        ],
    )
    document = {**provenance, "examples": n, "outcomes": str(out), "points": rows, **found.document}
    output.result("evaluate", document, points, *found.human, f"wrote {out}")
