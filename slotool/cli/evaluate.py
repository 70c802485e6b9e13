"""``slotool evaluate``: an elastic model's outcome table, or a predictor's scores on measured networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.evaluate_beside import Asked, evaluate_beside
from slotool.cli.evaluate_predictor import evaluate_predictor
from slotool.cli.evaluate_sweeps import Found, SweepOptions, sweeps
from slotool.cli.options import Force, Json, cores_given, drawable, parse_numbers

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.elastic import ElasticModel

TARGETS = "0.8,0.9,0.95,0.97,0.99"


def register(app: typer.Typer) -> None:
    app.command()(evaluate)


def evaluate(
    artifact: Annotated[Path, typer.Argument(help="A network, family or SLO-NN; or a predictor.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the outcome table, or a predictor's predictions.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    split: Annotated[str, typer.Option("--split", help="test or validation.")] = "test",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed calls per example and point.")] = 3,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many examples.")] = None,
    targets: Annotated[
        str, typer.Option("--targets", help="Accuracy targets to sweep, for a model that can choose per input.")
    ] = TARGETS,
    metric: Annotated[
        str, typer.Option("--metric", help="What the error is the rest of: p@1, or of several labels p@5.")
    ] = "p@1",
    compare: Annotated[
        list[Path] | None,
        typer.Option("--compare", help="For an SLO-NN: others of the same data, by another ranker; repeatable."),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option("--plots", callback=drawable, help="For an SLO-NN: a folder for plots (PNG).")
    ] = None,
    allowed_loss: Annotated[
        float,
        typer.Option(
            "--allowed-loss", min=0, max=1, help="For an SLO-NN: say which k loses no more (0.002: 0.2 points)."
        ),
    ] = 0.002,
    confidence: Annotated[
        float | None,
        typer.Option("--confidence", help="With which that is promised.", show_default="as given to build-tables"),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Compute threads.")] = 1,
    device: Annotated[str, typer.Option("--device", help="cpu; or for an SLO-NN cuda:0, by PyTorch.")] = "cpu",
    beside: Annotated[
        str | None,
        typer.Option("--beside", help="Sweep deadlines on one core, alone and beside so many busy copies: 1 or 0,1,2."),
    ] = None,
    deadlines_us: Annotated[
        str | None,
        typer.Option(
            "--deadlines-us", help="With --beside: deadlines, µs.", show_default="up to the full network's and beyond"
        ),
    ] = None,
    quantile: Annotated[
        float, typer.Option("--quantile", help="With --beside: LCAO plans with this quantile of T(k, β).")
    ] = 0.95,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.05, help="With --beside: of each way of answering.")
    ] = 1.0,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="With --beside: LCAO is not told β but tells it from recent latencies.")
    ] = False,
    latency: Annotated[
        Path | None,
        typer.Option(
            "--latency", help="For a predictor: measured networks; with --beside: T(k, β), else it is measured first."
        ),
    ] = None,
    graphs: Annotated[
        list[Path] | None, typer.Option("--graphs", "-g", help="For a predictor: their graph files; repeatable.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Answer every held-out example at every operating point and write the outcome table; or score a predictor.

    Example: slotool evaluate slo-nn -o outcomes.parquet --split test

    Example: slotool evaluate slo-nn -o outcomes.parquet --compare slo-nn-clusters --plots plots

    Example: slotool evaluate slo-nn -o beside.parquet --beside 1

    Example: slotool evaluate predictor --latency latency.parquet --graphs graphs.parquet
    """
    from slotool.artifacts import open_artifact

    if confidence is not None and not 0 < confidence < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--confidence")
    opened = open_artifact(artifact)
    if opened.kind == "predictor":
        evaluate_predictor(opened, latency, graphs or [], out, force=force, json=json)
        return
    if beside is not None and device != "cpu":
        raise typer.BadParameter("--beside shares one core of the CPU among copies", param_hint="--device")
    if beside is not None and out is not None:
        wanted = None if targets == TARGETS else parse_numbers(targets, "--targets")
        asked = Asked(beside, deadlines_us, quantile, seconds, estimate, latency, data, wanted)
        evaluate_beside(opened, out, asked, force=force, json=json)
        return
    if latency or graphs:
        raise typer.BadParameter(f"{artifact} is no predictor but a {opened.kind}: it takes no --latency or --graphs")
    if out is None:
        raise typer.BadParameter("the outcome table needs a place to be written to", param_hint="--out")
    _evaluate_elastic(
        opened,
        out,
        SweepOptions(
            parse_numbers(targets, "--targets"), metric, tuple(compare or ()), plots, allowed_loss, confidence
        ),
        data=data,
        split=split,
        repeats=repeats,
        limit=limit,
        threads=threads,
        device=device,
        force=force,
        json=json,
    )


def _evaluate_elastic(
    opened: Artifact,
    out: Path,
    options: SweepOptions,
    *,
    data: str | None,
    split: str,
    repeats: int,
    limit: int | None,
    threads: int,
    device: str,
    force: bool,
    json: bool,
) -> None:
    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic import evaluation, load_model
    from slotool.machine import machine_id

    if split not in ("test", "validation"):
        raise typer.BadParameter(f"{split!r} is neither test nor validation", param_hint="--split")
    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    model = load_model(opened)
    answering, others = model.on(device), options.load(model)
    name, examples = held_out(model, data or opened.manifest["config"].get("data", "auto"), split, limit)
    output = Output(as_json=json)
    provenance: dict[str, Any] = {
        "subject": model.name,
        "kind": opened.kind,
        "artifact_id": opened.id,
        "data": name,
        "split": split,
        "metric": options.metric,
        "threads": threads,
        "device": device,
        "machine": machine_id(),
    }
    with output.progress(f"evaluating {model.name} on {name}", total=len(examples)) as progress:
        outcomes = evaluation.evaluate(
            answering,
            examples,
            repeats=repeats,
            metric=options.metric,
            provenance=provenance,
            progress=progress.advance,
        )
    outcomes.save(out)
    found = sweeps(model, others, examples, outcomes, options)
    _report(output, provenance, evaluation.summary(outcomes), found, len(examples), out)


def held_out(model: ElasticModel, data: str, split: str, limit: int | None) -> tuple[str, Any]:
    """The name of a data set, of one class or several labels per example, and its first examples of ``split``."""
    import numpy as np

    from slotool.data import DATASETS, load_dataset, load_multilabel
    from slotool.data.dataset import Split

    if data in (*DATASETS, "auto") or not (model.sparse or len(model.input_shape) == 1):
        dataset = load_dataset(data)
        whole = getattr(dataset, split)
        return dataset.name, Split(whole.x[:limit], whole.y[:limit])
    labelled = load_multilabel(data)
    chosen = getattr(labelled, split)
    return labelled.name, chosen if limit is None else chosen.take(np.arange(min(limit, len(chosen))))


def _report(
    output: Any, provenance: dict[str, Any], rows: list[dict[str, Any]], found: Found, n: int, out: Path
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
