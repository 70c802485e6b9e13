"""What the commands that train predictors share: rows to learn from, predictors to train, depths of the DNN."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from slotool.cli.commands import refuse_without_effect
from slotool.cli.options import panel, parse_numbers
from slotool.cli.profile_engine import ENGINES

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.plugins import Registry
    from slotool.predictors.base import Asked, Predictor
    from slotool.predictors.labels import Labelled
    from slotool.predictors.search import Search
    from slotool.predictors.splits import RowSplit
    from slotool.predictors.training import TrainingRun
    from slotool.tables import LatencyTable

ROWS, SEARCH = "Rows of the latency table", "Search of the DNN"
Latency = Annotated[list[Path], typer.Argument(help="Latency tables (Parquet or CSV) of measured graphs.")]
Graphs = Annotated[list[Path], typer.Option("--graphs", "-g", help="Graph file (Parquet or .jsonl); repeatable.")]
Depths = Annotated[str, typer.Option("--depths", help="Numbers of hidden layers to try.", rich_help_panel=SEARCH)]
SearchEngine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where depths are trained: local, or ray, on a cluster (pip install 'slotool[ray]').",
        rich_help_panel=SEARCH,
    ),
]
SearchAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="The ray cluster: host:port, or auto for the one this machine is in.",
        show_default="auto",
        rich_help_panel=SEARCH,
    ),
]
_rows = panel(ROWS)
_ROW_FILTERS: dict[str, Any] = {
    "device": Annotated[str | None, _rows("--device", help="Only rows of this device.")],
    "backend": Annotated[str | None, _rows("--backend", help="Only rows of this backend.")],
    "threads": Annotated[int | None, _rows("--threads", min=1, help="Only rows of so many threads.")],
    "batch_size": Annotated[int | None, _rows("--batch-size", min=1, help="Only rows of this batch size.")],
    "machine": Annotated[str | None, _rows("--machine", help="Only rows of this machine id.")],
}


def picks_rows(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command with a last parameter ``picked`` have an option per column to pick rows by, and get what was given.

    typer reads options from signatures, where the same five would stand in that of every command.
    """
    own, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    taken = [p.replace(annotation=hints[name]) for name, p in own.parameters.items() if name != "picked"]
    taken += [
        own.parameters["picked"].replace(name=name, annotation=a, default=None) for name, a in _ROW_FILTERS.items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        command(picked={name: given.pop(name) for name in _ROW_FILTERS}, **given)

    run.__signature__ = own.replace(parameters=taken)  # type: ignore[attr-defined]  # typer looks for it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return run


@dataclass(frozen=True)
class Choice:
    """Predictors to train: their names or ``auto``, the depths that the DNN tries, and where its search trains."""

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


def chosen_names(text: str, known: Sequence[str], option: str, *, plugins: Registry[Any] | None = None) -> list[str]:
    """Names of a comma list, each once. One that is neither known nor a plugin's is a usage error."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known and not (plugins and name in plugins.plugins):
            others = plugins.plugins if plugins else []
            raise typer.BadParameter(f"{name!r} is none of {', '.join([*known, *others])}", param_hint=option)
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
    names: Sequence[str], depths: Sequence[int], search: Search[Any] | None = None, *, colocated: bool = False
) -> dict[str, Callable[[], Predictor[Any]]]:
    """By name, what makes a new predictor; the DNN searches ``depths``."""
    from slotool.predictors.dnn import DnnPredictor
    from slotool.predictors.registry import predictor_class
    from slotool.predictors.search import one_by_one

    def dnn() -> Predictor[Any]:
        return DnnPredictor(depths, search or one_by_one)

    return {name: dnn if name == DnnPredictor.name else predictor_class(name, colocated=colocated) for name in names}


@dataclass(frozen=True)
class Source:
    """Where labels come from: latency tables and graph files, and the rows ``picked`` by values of their columns."""

    latency: Sequence[Path]
    graphs: Sequence[Path]
    picked: Mapping[str, Any]

    def config(self) -> dict[str, Any]:
        """For the artifact's manifest."""
        return {"latency": [str(path) for path in self.latency], "graphs": [str(path) for path in self.graphs]}

    def table(self) -> LatencyTable:
        from slotool.tables import LatencyTable

        return LatencyTable.load_all(self.latency)

    def read_graphs(self) -> Iterator[OperatorGraph]:
        from slotool.graphs.store import read_graphs

        return (graph for path in self.graphs for graph in read_graphs(path))

    def labelled(self, output: Output) -> Labelled[OperatorGraph]:
        """The measured graphs with their solo latencies."""
        from slotool.predictors.colocated_labels import is_colocated
        from slotool.predictors.labels import join_labels

        table = self.table()
        if is_colocated(table):
            raise typer.BadParameter("its rows are co-located: use train-colocation-predictor", param_hint="LATENCY")
        labelled = join_labels(table, self.read_graphs(), self.picked)
        warn_unmatched(output, labelled)
        return labelled


def trained_and_scored(
    output: Output,
    candidates: Sequence[Predictor[Asked]],
    labelled: Labelled[Asked],
    split: RowSplit,
    protocols: Mapping[str, Sequence[RowSplit]] | None = None,
    *,
    model: str | Sequence[str],
    seed: int,
) -> TrainingRun[Asked]:
    """``train_and_score`` with a progress line."""
    from slotool.predictors.training import train_and_score

    text = f"training on {len(split.train)} {'networks' if protocols is None else 'co-locations'}"
    # Of networks alone the last step holds out kinds of them for the interval of the one that is kept.
    extra = 1 if protocols is None else len(protocols) * len(candidates)
    with output.progress(text, total=extra + sum(candidate.fit_steps for candidate in candidates)) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        return train_and_score(candidates, labelled, split, protocols, model=model, seed=seed, progress=finished)


def refuse_search(model: str) -> None:
    """A usage error for options of the DNN's search where no DNN is trained."""
    if not {"auto", "dnn"} & {name.strip() for name in model.split(",")}:
        refuse_without_effect(("depths", "engine", "address"), f"on --model {model}, which trains no DNN")


def warn_unmatched(output: Output, labelled: Labelled[OperatorGraph]) -> None:
    if labelled.graphs_without_label:
        output.warn(f"{labelled.graphs_without_label} graphs have no label and are left out")
    if labelled.labels_without_graph:
        output.warn(f"{labelled.labels_without_graph} measured subjects are none of the graphs and are left out")
