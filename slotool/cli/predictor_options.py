"""What the commands that train predictors share: which rows to learn from, which predictors, which depths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli.options import parse_numbers

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.base import Predictor
    from slotool.predictors.labels import LabelledGraphs

Latency = Annotated[list[Path], typer.Argument(help="Latency tables (Parquet or CSV) of measured graphs.")]
Graphs = Annotated[list[Path], typer.Option("--graphs", "-g", help="Graph file (Parquet or .jsonl); repeatable.")]
Depths = Annotated[str, typer.Option("--depths", help="Numbers of hidden layers that the DNN tries.")]
OnlyDevice = Annotated[str | None, typer.Option("--device", help="Only rows of this device.")]
OnlyBackend = Annotated[str | None, typer.Option("--backend", help="Only rows of this backend.")]
OnlyThreads = Annotated[int | None, typer.Option("--threads", min=1, help="Only rows of so many threads.")]
OnlyBatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Only rows of this batch size.")]
OnlyMachine = Annotated[str | None, typer.Option("--machine", help="Only rows of this machine id.")]


def whole_numbers(text: str, option: str, *, least: int, what: str) -> list[int]:
    """Numbers as ``parse_numbers`` reads them, each whole and at least ``least``."""
    numbers = parse_numbers(text, option)
    if not all(number >= least and number == int(number) for number in numbers):
        raise typer.BadParameter(f"{what}, at least {least}", param_hint=option)
    return [int(number) for number in numbers]


def parse_depths(text: str) -> list[int]:
    return whole_numbers(text, "--depths", least=1, what="a depth is a whole number of hidden layers")


def chosen_names(text: str, known: Sequence[str], option: str) -> list[str]:
    """Names of a comma list, each once. One that is not known is a usage error."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return names


def predictor_makers(names: Sequence[str], depths: Sequence[int]) -> dict[str, Callable[[], Predictor]]:
    """By name, what makes a new predictor; the DNN searches ``depths``."""
    from slotool.predictors.dnn import DnnPredictor
    from slotool.predictors.registry import PREDICTORS

    return {name: (lambda: DnnPredictor(depths)) if name == DnnPredictor.name else PREDICTORS[name] for name in names}


def warn_unmatched(output: Output, labelled: LabelledGraphs) -> None:
    if labelled.graphs_without_label:
        output.warn(f"{labelled.graphs_without_label} graphs have no label and are left out")
    if labelled.labels_without_graph:
        output.warn(f"{labelled.labels_without_graph} measured subjects are none of the graphs and are left out")
