"""``slotool update-tables``: let a network's tables follow the inputs it is served now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out

BATCH = 256


def register(app: typer.Typer) -> None:
    app.command("update-tables")(update_tables)


def update_tables(
    artifact: Annotated[Path, typer.Argument(help="An SLO-NN, as build-tables writes it.")],
    out: Out,
    data: Annotated[str, typer.Option("--data", help="Data set of what is served now.")],
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
    from slotool.cli.output import Output, table
    from slotool.elastic.activators import assessment
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.activators.updates import TableUpdates
    from slotool.elastic.queries import dataset_of
    from slotool.errors import InputError

    refuse_existing(out, force)
    opened = open_artifact(artifact, "slo-nn")
    model = SloNN.load(opened)
    dataset: Any = dataset_of(model, data)
    if dataset.input_shape != model.input_shape or dataset.classes != model.classes:
        raise InputError(
            f"{model.name} takes inputs {model.input_shape} and knows {model.classes} classes, but {dataset.name} has "
            f"{dataset.input_shape} and {dataset.classes}"
        )
    output, train = Output(as_json=json), dataset.train
    updates = TableUpdates(model, half_life)
    ranked, counted = (range(0, len(split), BATCH) for split in (train, dataset.validation))
    with output.progress(f"following {dataset.name}", total=len(ranked) + len(counted)) as progress:
        for start in ranked:
            updates.rank(_batch(train, start)[0])
            progress.advance()
        for start in counted:
            updates.count(*_batch(dataset.validation, start))
            progress.advance()
    now = updates.updated()
    evidence = now.calibration.evidence_by_point
    examples = evidence.examples if evidence else 0
    config = {**opened.manifest["config"], "data": getattr(dataset, "source", dataset.name), "half_life": half_life}
    now.save(out, config=config, seed=opened.manifest.get("seed") or 0, parents=(opened,), force=force)
    before, after = (
        assessment.PointPredictions.of(m, dataset.test).correct.mean(axis=0).tolist() for m in (model, now)
    )
    rows = [
        {"point": point.key, "before": was, "after": is_now}
        for point, was, is_now in zip(model.points, before, after, strict=True)
    ]
    document = {"artifact": str(out), "data": dataset.name, "examples": len(dataset.test), "observed": len(train)}
    promised = f"promises are counted on {examples:,} validation examples, none of which moved a list"
    shown = table(
        f"{model.name} after {len(train):,} inputs: accuracy on {len(dataset.test):,} test examples of {dataset.name}",
        ["point", "before", "after"],
        [[row["point"], f"{row['before']:.4f}", f"{row['after']:.4f}"] for row in rows],
    )
    document |= {"promised_by": examples, "points": rows}
    output.result("update-tables", document, shown, promised, f"wrote {out}")


def _batch(split: Any, start: int) -> tuple[Any, Any]:
    import numpy as np

    part = split.take(np.arange(start, min(start + BATCH, len(split))))
    return part.x, part.y
