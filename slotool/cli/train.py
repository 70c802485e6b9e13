"""``slotool train``: small networks and families on a data set, each with its held-out accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import slotool
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    DataName,
    Force,
    Json,
    Out,
    Seed,
    TrainingThreads,
    data_source,
)
from slotool.cli.train_supernet import train_supernet
from slotool.cli.train_xmc import train_xmc

if TYPE_CHECKING:
    from slotool.api.result import Result

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
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: TrainingThreads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one ReLU MLP, by default of the pruned 112-112 shape.

    Example: slotool train mlp -o mlp --data digits
    """
    _show(
        slotool.train_mlp,
        out,
        json,
        hidden=_counts(hidden, "--hidden"),
        data=data_source(data, label, inputs, images),
        epochs=epochs,
        seed=seed,
        threads=threads,
        force=force,
    )


def train_cnn(
    out: Out,
    filters: Annotated[str, typer.Option("--filters", help="Channels of the 3×3 convolutions.")] = "32,64",
    hidden: Annotated[str, typer.Option("--hidden", help="Units of the hidden dense layers behind them.")] = "128",
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: TrainingThreads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train one small convolutional network: 3×3 convolutions with ReLU, each halved by max-pooling, then dense layers.

    Example: slotool train cnn -o cnn --data digits --filters 16,32
    """
    own = {"filters": _counts(filters, "--filters"), "hidden": _counts(hidden, "--hidden")}
    _show(
        slotool.train_cnn,
        out,
        json,
        **own,
        data=data_source(data, label, inputs, images),
        epochs=epochs,
        seed=seed,
        threads=threads,
        force=force,
    )


def _counts(text: str, option: str) -> list[int]:
    from slotool.cli.options import parse_numbers

    return [int(value) for value in parse_numbers(text, option)]


def train_family(
    out: Out,
    data: DataName = "auto",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    threads: TrainingThreads = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train three versions of one classifier of growing cost.

    Example: slotool train family -o family --data digits
    """
    _show(
        slotool.train_family,
        out,
        json,
        data=data_source(data, label, inputs, images),
        epochs=epochs,
        seed=seed,
        threads=threads,
        force=force,
    )


def _show(train: Callable[..., Result], out: Path, json: bool, **asked: Any) -> None:
    from slotool.cli.output import Output

    output = Output(as_json=json)
    output.show(train(out, progress=output, **asked))
