"""``slotool train``: small networks and families on a data set, each with its held-out accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import DataName, Force, Json, Out, Seed, Threads, cores_given
from slotool.cli.train_supernet import train_supernet
from slotool.cli.train_xmc import train_xmc

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data import Dataset
    from slotool.elastic.family import Family, Version
    from slotool.graphs import OperatorGraph

Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help="Passes over the data.", show_default="by its size")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Train a small network, or a family, on a data set.")
    group.command("mlp")(train_mlp)
    group.command("cnn")(train_cnn)
    group.command("family")(train_family)
    group.command("supernet")(train_supernet)
    group.command("xmc")(train_xmc)
    app.add_typer(group, name="train")


def train_mlp(
    out: Out,
    hidden: Annotated[str, typer.Option("--hidden", help="Units of the hidden ReLU layers.")] = "112,112",
    data: DataName = "auto",
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one ReLU MLP, by default of the pruned 112-112 shape.

    Example: slotool train mlp -o mlp --data digits
    """
    from slotool.data import load_dataset
    from slotool.elastic.training import mlp

    units = _counts(hidden, "--hidden")
    dataset = load_dataset(data)
    _train({"mlp": mlp(dataset, units)}, dataset, out, epochs, seed, threads, force, json)


def train_cnn(
    out: Out,
    filters: Annotated[str, typer.Option("--filters", help="Channels of the 3×3 convolutions.")] = "32,64",
    hidden: Annotated[str, typer.Option("--hidden", help="Units of the hidden dense layers behind them.")] = "128",
    data: DataName = "auto",
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one small convolutional network: 3×3 convolutions with ReLU, each halved by max-pooling, then dense layers.

    Example: slotool train cnn -o cnn --data digits --filters 16,32
    """
    from slotool.data import load_dataset
    from slotool.elastic.training import small_cnn

    dataset = load_dataset(data)
    graph = small_cnn(dataset, _counts(filters, "--filters"), _counts(hidden, "--hidden"))
    _train({"cnn": graph}, dataset, out, epochs, seed, threads, force, json)


def _counts(text: str, option: str) -> list[int]:
    from slotool.cli.options import parse_numbers

    counts = [int(value) for value in parse_numbers(text, option)]
    if min(counts) < 1:
        raise typer.BadParameter("a layer has at least 1 unit", param_hint=option)
    return counts


def train_family(
    out: Out,
    data: DataName = "auto",
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: Threads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train three versions of one classifier of growing cost.

    Example: slotool train family -o family --data digits
    """
    from slotool.data import load_dataset
    from slotool.elastic.training import family_graphs

    dataset = load_dataset(data)
    _train(family_graphs(dataset), dataset, out, epochs, seed, threads, force, json)


def _train(
    graphs: dict[str, OperatorGraph],
    dataset: Dataset,
    out: Path,
    epochs: int | None,
    seed: int,
    threads: int | None,
    force: bool,
    json: bool,
) -> None:
    import torch

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic.family import Family
    from slotool.elastic.training import default_epochs, train_version

    refuse_existing(out, force)
    torch.set_num_threads(cores_given(threads))
    epochs = epochs or default_epochs(dataset)
    output = Output(as_json=json)
    versions: list[Version] = []
    with output.progress(f"training on {dataset.name}", total=epochs * len(graphs)) as progress:
        for name, graph in graphs.items():
            progress.say(f"training {name} on {dataset.name}")
            versions.append(train_version(name, graph, dataset, epochs=epochs, seed=seed, progress=progress.advance))
    family = Family(out.name, versions)
    family.save(out, config={"data": dataset.name, "epochs": epochs}, seed=seed, force=force)
    _report(output, family, dataset, epochs, out)


def _report(output: Output, family: Family, dataset: Dataset, epochs: int, out: Path) -> None:
    from slotool.cli.output import table

    rows = [
        {"version": v.name, "parameters": v.graph.weights, "flops": v.graph.flops, **v.scores} for v in family.versions
    ]
    title = f"Trained on {dataset.name}: {len(dataset.train):,} examples, {epochs} epochs"
    columns = ["version", "parameters", "FLOPs", "validation accuracy", "test accuracy"]
    shown = [
        [
            row["version"],
            f"{row['parameters']:,}",
            f"{row['flops']:,}",
            f"{row['validation_accuracy']:.4f}",
            f"{row['test_accuracy']:.4f}",
        ]
        for row in rows
    ]
    document = {"artifact": str(out), "data": dataset.name, "epochs": epochs, "versions": rows}
    output.result("train", document, table(title, columns, shown), f"wrote {out}")
