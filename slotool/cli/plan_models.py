"""The ``[[models]]`` of a file of ``slotool plan``: paths are relative to it, and the command line goes before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from slotool.cli.commands import beside_config, config_file, refuse_without_effect, stated_in
from slotool.commands.planning.plan_models import NO_RULES

# Options that go before those of a model where the command line states them, and keys of a model that are files.
_OF_ALL = (*("deadline_ms", "attainment", "min_accuracy", "arrivals", "rate", "policies", "data", "interference"),)
_FILES = ("artifact", "latency", "outcomes", "arrivals", "interference")


def prepare(given: dict[str, Any]) -> None:
    """Check the options of ``slotool plan``, and put the models of its file in order."""
    if given["rules"] is not None:
        refuse_without_effect(("policies",), "with --rules")
    if given["models"] is None and stated_in("models") != "DEFAULT_MAP":
        if given["deadline_ms"] is None:
            problem = "it is needed, as the promise is about it: such as --deadline-ms 30"
            raise typer.BadParameter(problem, param_hint="--deadline-ms")
        return
    refuse_without_effect(
        ("latency", "artifact", "outcomes", "subject"), "with [[models]], each of which states its own"
    )
    refuse_without_effect(("rules", "tolerance", "objective"), f"with [[models]]: {NO_RULES}")
    for name in ("arrivals", "interference"):
        given[name] = beside_config(given[name], name)
    given["models"] = _models_of(given["models"] or [], {name: given[name] for name in _OF_ALL})


def _models_of(given: Sequence[Any], of_all: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The models as ``slotool.plan`` takes them. ``of_all``: by option, what goes before them where the command line
    states it."""
    file = config_file()
    if file is None:
        raise typer.BadParameter("models are listed in a file: --config plan.toml", param_hint="--models")
    before = {name: value for name, value in of_all.items() if stated_in(name) == "COMMANDLINE"}
    found = []
    for model in given:
        if not isinstance(model, Mapping):
            raise typer.BadParameter(f"{file}: models: tables are expected, each as [[models]]", param_hint="--config")
        own = {key.replace("-", "_"): value for key, value in model.items()}
        own |= {key: _beside(file.parent, own[key]) for key in _FILES if key in own}
        own |= {"data": _data_beside(file.parent, own["data"])} if "data" in own else {}
        if before.keys() & {"arrivals", "rate"}:
            own = {key: value for key, value in own.items() if key not in ("arrivals", "rate")}
        found.append({**own, **before})
    return found


def _beside(folder: Path, given: Any) -> Any:
    if isinstance(given, list):
        return [_beside(folder, each) for each in given]
    return str(folder / given) if isinstance(given, str) else given


def _data_beside(folder: Path, given: Any) -> Any:
    """Of ``PATH``, ``PATH:LABEL`` or ``KIND:PATH:LABEL`` what lies beside the file; names of data sets stay."""
    if not isinstance(given, str):
        return given
    parts = given.split(":")
    return ":".join(str(folder / part) if _is_beside(folder, part) else part for part in parts)


def _is_beside(folder: Path, part: str) -> bool:
    """A folder only where it is written as one: data sets and artifacts may have one name."""
    return bool(part) and ((folder / part).is_file() or ("/" in part and (folder / part).is_dir()))
