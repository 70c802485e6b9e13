"""``slotool update-tables``: let a network's tables follow the inputs it is served now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    data_source,
)

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.elastic.activators.slo_nn import SloNN

BATCH = 256


def register(app: typer.Typer) -> None:
    app.command("update-tables")(update_tables)


def update_tables(
    artifact: Annotated[Path, typer.Argument(help="An SLO-NN, as build-tables writes it.")],
    out: Out,
    data: Annotated[str, typer.Option("--data", help="Data set of what is served now.")],
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    half_life: Annotated[
        int, typer.Option("--half-life", min=1, help="After so many inputs an input counts half as much.")
    ] = 4_096,
    force: Force = False,
    json: Json = False,
) -> None:
    """Update an SLO-NN's tables for the inputs that are served now.

    Weights, rankers and table size stay. The training split, in its order, stands for served inputs and moves the
    ranked lists. Confidence, calibration and promises are counted on the validation split. Accuracy before and after is
    of the test split.

    Example: slotool update-tables slo-nn --data digits -o slo-nn-now
    """
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.activators.updates import TableUpdates
    from slotool.elastic.queries import dataset_of
    from slotool.errors import InputError

    refuse_existing(out, force)
    opened = open_artifact(artifact, "slo-nn")
    model = SloNN.load(opened)
    dataset: Any = dataset_of(model, data_source(data, label, inputs, images))
    if dataset.input_shape != model.input_shape or dataset.classes != model.classes:
        raise InputError(
            f"{model.name} takes inputs {model.input_shape} and knows {model.classes} classes, but {dataset.name} has "
            f"{dataset.input_shape} and {dataset.classes}"
        )
    output, updates = Output(as_json=json), TableUpdates(model, half_life)
    ranked, counted = (range(0, len(split), BATCH) for split in (dataset.train, dataset.validation))
    with output.progress(f"following {dataset.name}", total=len(ranked) + len(counted)) as progress:
        for start in ranked:
            updates.rank(_batch(dataset.train, start)[0])
            progress.advance()
        for start in counted:
            updates.count(*_batch(dataset.validation, start))
            progress.advance()
    now = updates.updated()
    config = {**opened.manifest["config"], "data": getattr(dataset, "source", dataset.name), "half_life": half_life}
    now.save(out, config=config, seed=opened.manifest.get("seed") or 0, parents=(opened,), force=force)
    _report(output, model, now, dataset, out)


def _report(output: Output, model: SloNN, now: SloNN, dataset: Any, out: Path) -> None:
    from slotool.cli.output import table
    from slotool.elastic.activators.assessment import PointPredictions

    evidence, test = now.calibration.evidence_by_point, dataset.test
    examples = evidence.examples if evidence else 0
    before, after = (PointPredictions.of(m, test).correct.mean(axis=0).tolist() for m in (model, now))
    rows = [
        {"point": point.key, "before": was, "after": is_now}
        for point, was, is_now in zip(model.points, before, after, strict=True)
    ]
    document = {
        "artifact": str(out),
        "data": dataset.name,
        "examples": len(test),
        "observed": len(dataset.train),
        "promised_by": examples,
        "points": rows,
    }
    promised = f"promises are counted on {examples:,} validation examples, none of which moved a list"
    shown = table(
        f"{model.name} after {len(dataset.train):,} inputs: accuracy on {len(test):,} test examples of {dataset.name}",
        ["point", "before", "after"],
        [[row["point"], f"{row['before']:.4f}", f"{row['after']:.4f}"] for row in rows],
    )
    output.result("update-tables", document, shown, promised, f"wrote {out}")


def _batch(split: Any, start: int) -> tuple[Any, Any]:
    import numpy as np

    part = split.take(np.arange(start, min(start + BATCH, len(split))))
    return part.x, part.y
