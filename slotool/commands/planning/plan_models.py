"""Models of ``slotool.plan``: their tables, traffic and promises, stated for each or for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.planning.planner import Demand

# Why a plan of several models has no tolerance tiers.
NO_RULES = (
    "how requests of tolerance tiers, each of which may call two versions, share workers with other models is not "
    "simulated; plan a model with rules by itself"
)
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class PlannedModel(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """One of the ``models``: the keys of a service file's ``[[models]]``, and what is promised under which traffic.

    ``latency``: its latency table, or several, one per kind of worker; ``rate``: of Poisson arrivals. The rest is as of
    ``slotool.plan``.
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
    rate: Annotated[float, msgspec.Meta(gt=0)] | None = None
    policies: str | list[str]
    interference: Any = None
    data: Any

    @property
    def tables(self) -> list[Any]:
        """Latency tables, or their files."""
        return list(self.latency) if isinstance(self.latency, list | tuple) else [self.latency]


@contextmanager
def of_model(name: str) -> Iterator[None]:
    """Put the name of a model before its errors; a model that is planned alone has none."""
    try:
        yield
    except ArgumentError as error:
        if not name:
            raise
        raise ArgumentError("models", f"{name}: {error.argument.replace('_', '-')}: {error.problem}") from None
    except InputError as error:
        if not name:
            raise
        raise InputError(f"{name}: {error}") from error


def models_by_name(models: Sequence[Mapping[str, Any]], left_out: Mapping[str, Any]) -> dict[str, PlannedModel]:
    """The models by name. Raises ``ArgumentError`` for a key that is unknown or missing, or a value of another kind."""
    from slotool.serving.operations.service_file import sentence_of
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
            raise ArgumentError("models", f"{where}.interference: a table or ratio is expected")
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


def only_model(given: Mapping[str, Any]) -> PlannedModel:
    """Return the only model of a plan, from the arguments of ``slotool.plan``."""
    if given["latency"] is None:
        raise ArgumentError("latency", "a latency table is expected, or several models")
    if given["deadline_ms"] is None:
        raise ArgumentError("deadline_ms", "it is needed: the promise is about it")
    if (given["arrivals"] is None) == (given["rate"] is None):
        raise ArgumentError("arrivals", "give either arrivals or a rate")
    if given["rate"] is not None and not given["rate"] > 0:
        raise ArgumentError("rate", f"{given['rate']:g} is not above 0")
    return PlannedModel(**given)


def require_files(entries: Mapping[str, PlannedModel], rules: Any = None) -> None:
    """Raise ``ArgumentError`` for what is no file: a service file names all that it is made from."""
    for model, entry in entries.items():
        with of_model(model):
            if entry.artifact is None:
                raise ArgumentError("artifact", "is needed for out: the service file names what is to be served")
            if not Path(str(entry.artifact)).is_dir():
                raise ArgumentError("artifact", f"there is no folder {entry.artifact}; an artifact is expected")
            for name, given in (("latency", entry.tables), ("outcomes", [entry.outcomes]), ("rules", [rules])):
                if not all(each is None or isinstance(each, str | Path) for each in given):
                    raise ArgumentError(name, "a file is needed for out: the service file names it")


def require_points(entries: Mapping[str, PlannedModel], demands: Sequence[Demand]) -> None:
    """Raise ``ArgumentError`` for a point of an artifact that a latency table lacks: it could not be served."""
    from slotool.artifacts.bundle import MANIFEST
    from slotool.elastic import load_served

    for demand in demands:
        artifact = Path(str(entries[demand.name].artifact))
        if not (artifact / MANIFEST).is_file():  # the server says what it is
            continue
        points = load_served(str(artifact), mapped=True).points
        for worker in demand.workers.values():
            known = {point.key for point, _ in worker.profile.samples_us}
            if lacking := [point.key for point in points if point.key not in known]:
                raise ArgumentError(
                    "latency",
                    f"{worker.source} has no latencies of {', '.join(lacking)}, so that {artifact} could not be served "
                    f"by it: slotool profile points {artifact}",
                )


def file_part(name: str, number: int) -> str:
    """Return a part of a file's name that no other model has: of a name with other signs its place too."""
    printable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return printable if printable == name else f"{printable}-{number + 1}"
