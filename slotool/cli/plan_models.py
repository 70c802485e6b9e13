"""The ``[[models]]`` of a file of ``slotool plan``: paths are relative to it, and the command line goes before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.cli.commands import beside_config, config_file, stated_in

# Options that go before those of a model where the command line states them, and keys of a model that are files.
_OF_ALL = (*("deadline_ms", "attainment", "min_accuracy", "arrivals", "rate", "policies", "data", "interference"),)
_FILES = ("artifact", "latency", "outcomes", "arrivals", "interference")


def prepare(options: dict[str, Any]) -> None:
    """Put the models of a file in order, as ``slotool.plan`` takes them."""
    file = config_file()
    if file is None or stated_in("models") != "DEFAULT_MAP":
        return
    for name in ("arrivals", "interference"):
        options[name] = beside_config(options[name], name)
    before = {name: options[name] for name in _OF_ALL if stated_in(name) == "COMMANDLINE"}
    options["models"] = [_model(model, file.parent, before) for model in options["models"] or ()]


def _model(model: Any, folder: Path, before: Mapping[str, Any]) -> Any:
    if not isinstance(model, Mapping):
        return model  # which slotool.plan refuses
    settings = {key.replace("-", "_"): value for key, value in model.items()}
    settings |= {key: _beside(folder, settings[key]) for key in _FILES if key in settings}
    if isinstance(data := settings.get("data"), str):  # PATH, PATH:LABEL, KIND:PATH:LABEL, or the name of a data set
        settings["data"] = ":".join(str(folder / part) if _is_file(folder, part) else part for part in data.split(":"))
    if before.keys() & {"arrivals", "rate"}:
        settings = {key: value for key, value in settings.items() if key not in ("arrivals", "rate")}
    return {**settings, **before}


def _beside(folder: Path, paths: Any) -> Any:
    if isinstance(paths, list):
        return [_beside(folder, each) for each in paths]
    return str(folder / paths) if isinstance(paths, str) else paths


def _is_file(folder: Path, part: str) -> bool:
    """True for a file, and for a folder only where it is written as one: data sets and artifacts may have one name."""
    return bool(part) and ((folder / part).is_file() or ("/" in part and (folder / part).is_dir()))
