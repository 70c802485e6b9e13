"""``slotool choose-labels``: which answered requests are worth a label."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.evaluate_rules import Rules
from slotool.cli.options import Force, Json, Out, Seed


def register(app: typer.Typer) -> None:
    app.command("choose-labels")(choose_labels)


def choose_labels(
    rules: Rules,
    answers: Annotated[
        Path, typer.Argument(help="Answers without truth: CSV or Parquet of example,version,answer,confidence.")
    ],
    out: Out,
    labels: Annotated[
        int | None, typer.Option("--labels", min=1, help="Number of labels there may be.", show_default="all useful")
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Name the requests whose labels bear on a guarantee.

    Where every tier answers as the best version does, a request counts without a label. Writes
    example,order,differs,truth in random order: 0 needs no label, the others get their truth there, for
    evaluate-drift --labels.

    Example: slotool choose-labels rules.json answers.csv --labels 200 -o to-label.csv
    """
    from slotool.cli.output import Output

    Output(as_json=json).show(slotool.choose_labels(rules, answers, out, labels=labels, seed=seed, force=force))
