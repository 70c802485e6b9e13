"""``slotool train xmc``: the 128-hidden network on an extreme-classification set, with its P@1 and P@5."""

from __future__ import annotations

from typing import Annotated

import typer

import slotool
from slotool.cli.options import DataInputs, DataLabel, Force, Json, Out, Seed, Threads, data_source


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
    label: DataLabel = None,
    inputs: DataInputs = None,
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
    from slotool.cli.output import Output

    output = Output(as_json=json)
    output.show(
        slotool.train_xmc(
            data_source(data, label, inputs),
            out,
            hidden=hidden,
            epochs=epochs,
            seed=seed,
            threads=threads,
            force=force,
            progress=output,
        )
    )
