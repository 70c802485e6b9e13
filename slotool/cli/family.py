"""``slotool family``: versions of one service from models that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed, cores_given

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.tables import OutcomeTable


def register(app: typer.Typer) -> None:
    app.command()(family)


def family(
    versions: Annotated[
        list[str], typer.Argument(metavar="NAME=MODEL…", help="A name, and the file or URL of a model.")
    ],
    out: Out,
    data: Annotated[
        str, typer.Option("--data", help="Labelled examples that trained none of them: data.parquet:LABEL.")
    ],
    outcomes: Annotated[
        Path | None, typer.Option("--outcomes", help="Write the outcome table here, for gen-rules.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", help="Output tensor with the scores.", show_default="the only one")
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option("--scores", help="logits or probabilities.", show_default="by the output's name"),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="all, train, validation or test.")] = "all",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed calls per example and version.")] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Compute threads.")] = 1,
    copy: Annotated[bool, typer.Option("--copy", help="Keep copies of the model files in the artifact.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a family of versions from models of your own.

    Reads .onnx, .pt2, .keras, .skops, .ubj and .json (XGBoost), .txt (LightGBM), and models behind
    http://host/v2/models/NAME or grpc://host/NAME.

    Example: slotool family small=a.skops large=b.onnx --data wine.parquet:quality -o wine --outcomes outcomes.parquet
    """
    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.data import load_dataset
    from slotool.elastic.evaluation import summary
    from slotool.elastic.family_evaluation import evaluate_family
    from slotool.elastic.model_family import ModelFamily, common_signature
    from slotool.elastic.model_family_files import KIND, open_versions, save_family, some_inputs
    from slotool.machine import machine_id
    from slotool.models.tasks import make_task

    locations = _locations(versions)
    for path in (out, outcomes):
        if path is not None:
            refuse_existing(path, force)
    torch.set_num_threads(cores_given(threads))
    opened = open_versions(locations, threads)
    signature = common_signature([(version.name, model) for version, model in opened])
    dataset = load_dataset(data, tensors=signature.inputs)
    examples = _examples(dataset, split)
    task = make_task(signature, output=output, scores=scores)
    made = ModelFamily(out.name, opened, task, dataset.labels, some_inputs(examples.x))
    printer = Output(as_json=json)
    provenance: dict[str, Any] = {
        "subject": made.name,
        "kind": KIND,
        "data": dataset.name,
        "split": split,
        "threads": threads,
        "machine": machine_id(),
    }
    with printer.progress(f"evaluating {len(opened)} versions on {dataset.name}", total=len(examples)) as progress:
        table = evaluate_family(made, examples, repeats=repeats, provenance=provenance, progress=progress.advance)
    rows = _by_cost(summary(table))
    order = [row["version"] for row in rows]
    ordered = sorted(opened, key=lambda pair: order.index(pair[0].name))
    made = ModelFamily(out.name, ordered, task, dataset.labels, some_inputs(examples.x))
    save_family(made, out, config={"data": data, "split": split, "threads": threads}, seed=seed, copy=copy, force=force)
    if outcomes is not None:
        table.save(outcomes)
    _report(printer, made, table, rows, out, outcomes)


def _locations(versions: list[str]) -> dict[str, str]:
    """Location by name of NAME=MODEL."""
    found: dict[str, str] = {}
    for text in versions:
        name, equals, location = text.partition("=")
        if not equals or not name or not location:
            raise typer.BadParameter(f"{text!r} is not NAME=MODEL, such as small=small.onnx")
        if name in found:
            raise typer.BadParameter(f"two versions are called {name!r}")
        found[name] = location
    return found


def _examples(dataset: Any, split: str) -> Any:
    import numpy as np

    from slotool.data.dataset import Split
    from slotool.data.sequences import concatenated

    parts = dataset.splits
    if split in parts:
        return parts[split]
    if split != "all":
        raise typer.BadParameter(f"{split!r} is none of all, {', '.join(parts)}", param_hint="--split")
    each = [part.x for part in parts.values()]
    x: Any = np.concatenate(each) if isinstance(each[0], np.ndarray) else concatenated(each)
    return Split(x, np.concatenate([part.y for part in parts.values()]))


def _by_cost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fastest first, but the most accurate last; ``dominated``: another version is no slower and more accurate."""
    rows = sorted(rows, key=lambda row: row["median_latency_s"])
    best = max(rows, key=lambda row: (row["accuracy"], -row["median_latency_s"]))
    rows = [row for row in rows if row is not best] + [best]
    for row in rows:
        row["dominated"] = any(
            other["median_latency_s"] <= row["median_latency_s"] and other["accuracy"] > row["accuracy"]
            for other in rows
        )
    return rows


def _report(
    output: Output, made: Any, table: OutcomeTable, rows: list[dict[str, Any]], out: Path, outcomes: Path | None
) -> None:
    from slotool.cli.output import duration
    from slotool.cli.output import table as drawn

    examples = len(table.examples)
    document = {
        "artifact": str(out),
        "outcomes": None if outcomes is None else str(outcomes),
        "examples": examples,
        "input_shape": list(made.input_shape),
        "classes": list(made.labels),
        "task": made.task.document(),
        "versions": rows,
    }
    versions = drawn(
        f"{made.name}: {len(rows)} versions on {examples:,} examples",
        ["version", "accuracy", "± SE", "median latency", "mean latency", ""],
        [
            [
                row["version"],
                f"{row['accuracy']:.4f}",
                f"{row['standard_error']:.4f}",
                duration(row["median_latency_s"]),
                duration(row["mean_latency_s"]),
                "slower and less accurate than another" if row["dominated"] else "",
            ]
            for row in rows
        ],
    )
    written = [f"wrote {path}" for path in (out, outcomes) if path is not None]
    output.result("family", document, versions, *written)
