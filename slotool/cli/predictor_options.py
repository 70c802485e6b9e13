"""Options that the commands that train predictors share: rows to learn from, depths of the DNN."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from slotool.cli.options import panel, parse_numbers

ROWS, SEARCH = "Rows of the latency table", "Search of the DNN"
Latency = Annotated[list[Path], typer.Argument(help="Latency tables (Parquet or CSV) of measured graphs.")]
Graphs = Annotated[list[Path], typer.Option("--graphs", "-g", help="Graph file (Parquet or .jsonl); repeatable.")]
Depths = Annotated[
    str | None,
    typer.Option("--depths", help="Numbers of hidden layers to try.", show_default="1:20", rich_help_panel=SEARCH),
]
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
TrainingDevice = Annotated[
    str, typer.Option("--training-device", help="Where the DNN and the graph network train: cpu, cuda or cuda:N.")
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


def whole_numbers(text: str, option: str, *, least: int, what: str) -> list[int]:
    """Numbers as ``parse_numbers`` reads them, each whole and at least ``least``."""
    numbers = parse_numbers(text, option)
    if not all(number >= least and number == int(number) for number in numbers):
        raise typer.BadParameter(f"{what}, at least {least}", param_hint=option)
    return [int(number) for number in numbers]


def parse_depths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    return whole_numbers(text, "--depths", least=1, what="a depth is a whole number of hidden layers")


def listed(text: str) -> list[str]:
    """Names of a comma list."""
    return [name.strip() for name in text.split(",")]
