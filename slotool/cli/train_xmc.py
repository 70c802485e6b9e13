"""``slotool train xmc``: the 128-hidden network on an extreme-classification set, with its P@1 and P@5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import Force, Json, Out, Seed, Threads, cores_given

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import MultiLabelDataset
    from slotool.elastic.family import Version


def train_xmc(
    out: Out,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="A folder with train.txt and test.txt (.gz) in the Extreme Classification Repository's format, or "
            "with FMA's features.csv and tracks.csv; or the name of one in $SLOTOOL_DATA_DIR/xmc.",
        ),
    ],
    hidden: Annotated[int, typer.Option("--hidden", min=1, help="Units of the hidden ReLU layer.")] = 128,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over the data.")] = 12,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one hidden ReLU layer between very many sparse features and very many labels.

    A tenth of the training examples, always the same, is held out as the validation split. Nothing is downloaded.

    Example: slotool train xmc --data tate-16k -o tate
    """
    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import load_multilabel
    from slotool.elastic.family import Family
    from slotool.elastic.multilabel_training import steps, train_multilabel

    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    torch.set_flush_denormal(True)
    output = Output(as_json=json)
    dataset = load_multilabel(data)
    if dataset.unlabelled:
        output.note(f"{dataset.name}: {dataset.unlabelled:,} examples without labels are left out")
    text = f"training on {dataset.name} for {epochs} epochs, batches"
    with output.progress(text, total=steps(dataset, epochs)) as progress:
        version = train_multilabel(
            out.name, dataset, hidden_units=hidden, epochs=epochs, seed=seed, progress=progress.advance
        )
    config = {"data": dataset.source, "hidden": hidden, "epochs": epochs}
    Family(out.name, [version]).save(out, config=config, seed=seed, force=force)
    _report(output, version, dataset, epochs, out)


def _report(output: Output, version: Version, dataset: MultiLabelDataset, epochs: int, out: Path) -> None:
    from slotool.cli.output import table

    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    document = {
        "artifact": str(out),
        "data": dataset.name,
        "features": dataset.input_shape[0],
        "labels": dataset.classes,
        "examples": {name: len(part) for name, part in parts.items()},
        "unlabelled": dataset.unlabelled,
        "epochs": epochs,
        "parameters": version.graph.weights,
        "scores": dict(version.scores),
    }
    ks = sorted({int(name.rpartition("_")[2]) for name in version.scores})
    rows = [
        [name, f"{len(parts[name]):,}", *(f"{version.scores[f'{name}_precision_at_{k}']:.4f}" for k in ks)]
        for name in ("validation", "test")
    ]
    title = (
        f"{dataset.name}: {dataset.input_shape[0]:,} features, {dataset.classes:,} labels, {len(dataset.train):,} "
        f"training examples; {version.graph.weights:,} parameters, {epochs} epochs"
    )
    output.result(
        "train-xmc", document, table(title, ["split", "examples", *(f"P@{k}" for k in ks)], rows), f"wrote {out}"
    )
