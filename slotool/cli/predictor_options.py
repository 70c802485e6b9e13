"""What the commands that train predictors share: which rows to learn from, which predictors, which depths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import parse_numbers
from slotool.cli.profile_engine import ENGINES

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.predictors.base import Predictor
    from slotool.predictors.labels import LabelledGraphs
    from slotool.predictors.search import Search

Latency = Annotated[list[Path], typer.Argument(help="Latency tables (Parquet or CSV) of measured graphs.")]
Graphs = Annotated[list[Path], typer.Option("--graphs", "-g", help="Graph file (Parquet or .jsonl); repeatable.")]
Depths = Annotated[str, typer.Option("--depths", help="Numbers of hidden layers that the DNN tries.")]
SearchEngine = Annotated[
    str,
    typer.Option(
        "--engine", help="Where the DNN's depths are trained: local, or ray, on a cluster (pip install 'slotool[ray]')."
    ),
]
OnlyDevice = Annotated[str | None, typer.Option("--device", help="Only rows of this device.")]
OnlyBackend = Annotated[str | None, typer.Option("--backend", help="Only rows of this backend.")]
OnlyThreads = Annotated[int | None, typer.Option("--threads", min=1, help="Only rows of so many threads.")]
OnlyBatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Only rows of this batch size.")]
OnlyMachine = Annotated[str | None, typer.Option("--machine", help="Only rows of this machine id.")]


@dataclass(frozen=True)
class Choice:
    """Of predictors to train: their names or ``auto``, the depths that the DNN tries, and where its search trains."""

    model: str
    depths: str
    search: Search[Any]


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


def chosen_search(engine: str, address: str | None) -> AbstractContextManager[Search[Any]]:
    """Where the DNN's search trains its candidates."""
    if engine not in ENGINES:
        raise typer.BadParameter(f"{engine!r} is neither {' nor '.join(ENGINES)}", param_hint="--engine")
    if engine == "local":
        if address is not None:
            raise typer.BadParameter("an address is of use with --engine ray only", param_hint="--address")
        from slotool.predictors.search import one_by_one

        return nullcontext(one_by_one)
    from slotool.predictors.search import OnRay

    return OnRay(address or "auto")


def predictor_makers(
    names: Sequence[str], depths: Sequence[int], search: Search[Any] | None = None
) -> dict[str, Callable[[], Predictor]]:
    """By name, what makes a new predictor; the DNN searches ``depths``."""
    from slotool.predictors.dnn import DnnPredictor
    from slotool.predictors.registry import PREDICTORS
    from slotool.predictors.search import one_by_one

    def dnn() -> Predictor:
        return DnnPredictor(depths, search or one_by_one)

    return {name: dnn if name == DnnPredictor.name else PREDICTORS[name] for name in names}


def warn_unmatched(output: Output, labelled: LabelledGraphs) -> None:
    if labelled.graphs_without_label:
        output.warn(f"{labelled.graphs_without_label} graphs have no label and are left out")
    if labelled.labels_without_graph:
        output.warn(f"{labelled.labels_without_graph} measured subjects are none of the graphs and are left out")
