"""The ``models`` of ``slotool.plan``: what each of several states of itself, its traffic and its promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from slotool.errors import ArgumentError

# Why a plan of several models has no tolerance tiers.
NO_RULES = (
    "how requests of tolerance tiers, each of which may call two versions, share workers with other models is not "
    "simulated; plan a model with rules by itself"
)
NO_FRONT_END = "what the front end takes of the cores is planned of one model alone"
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class PlannedModel(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """One of the ``models``: the keys of a service file's ``[[models]]``, and what is promised under which traffic.

    ``latency``: its latency table, or several, one per kind of worker; ``rate``: of
    Poisson arrivals, 0 for a model that is served without being planned for. The rest is as of ``slotool.plan``.
    """

    latency: Any
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    artifact: Any = None
    outcomes: Any = None
    subject: str | None = None
    deadline_ms: Annotated[float, msgspec.Meta(gt=0)]
    attainment: Share
    min_accuracy: Share
    arrivals: Any = None
    rate: Annotated[float, msgspec.Meta(ge=0)] | None = None
    policies: str | list[str]
    interference: Any = None
    data: Any


def models_by_name(models: Sequence[Mapping[str, Any]], left_out: Mapping[str, Any]) -> dict[str, PlannedModel]:
    """The models by name. Raises ``ArgumentError`` for a key that is unknown or missing, or a value of another kind."""
    from slotool.serving.service_file import sentence_of
    from slotool.tables import LatencyTable

    found: dict[str, PlannedModel] = {}
    for number, model in enumerate(models):
        own = {key.replace("_", "-"): value for key, value in model.items()}
        stated = {key.replace("_", "-"): value for key, value in left_out.items() if value is not None}
        if "arrivals" in own or "rate" in own:  # its own traffic, in place of all that the plan says
            stated = {key: value for key, value in stated.items() if key not in ("arrivals", "rate")}
        where = f"models[{number}]"
        try:
            entry = msgspec.convert({**stated, **own}, PlannedModel)
        except msgspec.ValidationError as error:
            raise ArgumentError("models", sentence_of(str(error), where, PlannedModel)) from None
        if not isinstance(entry.latency, str | Path | LatencyTable | list | tuple) or not entry.latency:
            raise ArgumentError("models", f"{where}.latency: a latency table or its file is expected, or several")
        given = entry.interference
        if isinstance(given, bool) or not isinstance(given, str | Path | LatencyTable | float | int | None):
            raise ArgumentError("models", f"{where}.interference: a table, predictor or ratio is expected")
        if (entry.arrivals is None) == (entry.rate is None):
            raise ArgumentError("models", f"{where}: give either arrivals or a rate")
        name = entry.name or (where if entry.artifact is None else Path(str(entry.artifact)).resolve().name)
        if name in found:
            raise ArgumentError("models", f"{where}.name: {name!r} is the name of another model; give each its own")
        found[name] = entry
    if len(found) < 2:
        there = "there is one" if found else "there is none"
        raise ArgumentError("models", f"two models at least are expected, and {there}; one is planned for without this")
    return found


def require_files(name: str, entry: PlannedModel) -> None:
    """A service file names files, so that all it is made from has to be one."""
    if entry.artifact is None or not Path(str(entry.artifact)).is_dir():
        problem = "is missing" if entry.artifact is None else f"there is no folder {entry.artifact}"
        raise ArgumentError("models", f"{name}: artifact: {problem}: the service file names what is to be served")
    several = entry.latency if isinstance(entry.latency, list | tuple) else [entry.latency]
    for key, given in (("latency", several), ("outcomes", [entry.outcomes])):
        if not all(each is None or isinstance(each, str | Path) for each in given):
            raise ArgumentError("models", f"{name}: {key}: a file is needed for out: the service file names it")


def file_part(name: str, number: int) -> str:
    """As part of a file's name, which is that of no other model's: of one with other signs its place too."""
    printable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return printable if printable == name else f"{printable}-{number + 1}"
