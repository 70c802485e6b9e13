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
    """Go through the training split in its order as served inputs, and update lists, confidences and calibration.

    The weights, the rankers and the bytes of the tables stay. Accuracy before and after is of the test split.

    Example: slotool update-tables slo-nn --data digits -o slo-nn-now
    """
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output, table
    from slotool.data import DATASETS, load_dataset, load_multilabel
    from slotool.elastic.activators import assessment
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.activators.updates import TableUpdates
    from slotool.errors import InputError

    refuse_existing(out, force)
    opened = open_artifact(artifact, "slo-nn")
    model = SloNN.load(opened)
    dataset: Any = load_dataset(data) if data in (*DATASETS, "auto") else load_multilabel(data)
    if dataset.input_shape != model.input_shape or dataset.classes != model.classes:
        raise InputError(
            f"{model.name} takes inputs {model.input_shape} and knows {model.classes} classes, but {dataset.name} has "
            f"{dataset.input_shape} and {dataset.classes}"
        )
    output, train = Output(as_json=json), dataset.train
    updates = TableUpdates(model, half_life)
    batches = range(0, len(train), BATCH)
    with output.progress(f"following {dataset.name}", total=len(batches)) as progress:
        for start in batches:
            updates.observe(*_batch(train, start))
            progress.advance()
    now = updates.updated()
    config = {**opened.manifest["config"], "data": getattr(dataset, "source", dataset.name), "half_life": half_life}
    now.save(out, config=config, seed=opened.manifest.get("seed") or 0, parents=(opened,), force=force)
    before, after = (assessment.Answers.of(m, dataset.test).correct.mean(axis=0).tolist() for m in (model, now))
    rows = [
        {"point": point.key, "before": was, "after": is_now}
        for point, was, is_now in zip(model.points, before, after, strict=True)
    ]
    document = {"artifact": str(out), "data": dataset.name, "examples": len(dataset.test), "observed": len(train)}
    shown = table(
        f"{model.name} after {len(train):,} inputs: accuracy on {len(dataset.test):,} test examples of {dataset.name}",
        ["point", "before", "after"],
        [[row["point"], f"{row['before']:.4f}", f"{row['after']:.4f}"] for row in rows],
    )
    output.result("update-tables", {**document, "points": rows}, shown, f"wrote {out}")


def _batch(train: Any, start: int) -> tuple[Any, Any]:
    import numpy as np

    part = train.take(np.arange(start, min(start + BATCH, len(train))))
    return part.x, part.y
