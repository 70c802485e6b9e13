"""Models of a plan: tables, traffic and promises, stated for each or for all, as demands of a planner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from slotool.errors import ArgumentError, InputError
from slotool.progress import Reporter
from slotool.sources import loaded

if TYPE_CHECKING:
    import numpy as np

    from slotool.planning.fleet import WorkerType
    from slotool.planning.interference import Placement
    from slotool.planning.model_on_workers import Demand
    from slotool.planning.tiers import Tiers
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable

# Tried where nobody names any; and those that are tried where these need more workers than the rate does, as they take
# seconds to compile.
POLICIES, SLOW_POLICIES = ("slackfit", "maxacc", "fixed"), ("value-iteration",)
# Length of drawn traffic.
DURATION_S = 60.0


class PlannedModel(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """Model of a plan: the keys of a service file's ``[[models]]``, its promise and its traffic.

    ``latency``: its latency table, or several, one per kind of worker; ``rate``: of Poisson arrivals. The rest is as of
    ``slotool.plan``.
    """

    latency: Any = None
    name: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    artifact: Any = None
    outcomes: Any = None
    subject: str | None = None
    deadline_ms: float | None = None
    attainment: float
    min_accuracy: float
    arrivals: Any = None
    rate: float | None = None
    policies: str | list[str] | None = None
    interference: Any = None
    data: Any

    @property
    def tables(self) -> list[Any]:
        """Latency tables, or their files."""
        return list(self.latency) if isinstance(self.latency, list | tuple) else [self.latency]

    def require(self) -> None:
        """Raise ``ArgumentError`` for what is missing or contradicts itself."""
        from slotool.scheduling.batching.registry import policies_named
        from slotool.tables import LatencyTable

        if not isinstance(self.latency, str | Path | LatencyTable | list | tuple) or not self.tables:
            raise ArgumentError("latency", "a latency table or its file is expected, or several models")
        if self.deadline_ms is None:
            raise ArgumentError("deadline_ms", "it is needed: the promise is about it")
        if (self.arrivals is None) == (self.rate is None):
            raise ArgumentError("arrivals", "give either arrivals or a rate")
        if self.rate is not None and not self.rate > 0:
            raise ArgumentError("rate", f"{self.rate:g} is not above 0")
        if isinstance(self.interference, bool):
            raise ArgumentError("interference", "a table or ratio is expected")
        policies_named(self.policies or POLICIES)

    def require_files(self, rules: Any) -> None:
        """Raise ``ArgumentError`` for what is no file: a service file names all that it is made from."""
        if self.artifact is None:
            raise ArgumentError("artifact", "is needed for out: the service file names what is to be served")
        if not Path(str(self.artifact)).is_dir():
            raise ArgumentError("artifact", f"there is no folder {self.artifact}; an artifact is expected")
        for name, sources in (("latency", self.tables), ("outcomes", [self.outcomes]), ("rules", [rules])):
            if not all(each is None or isinstance(each, str | Path) for each in sources):
                raise ArgumentError(name, "a file is needed for out: the service file names it")


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


def models_by_name(models: Sequence[Mapping[str, Any]], of_all: Mapping[str, Any]) -> dict[str, PlannedModel]:
    """Return the models by name, each with what it leaves out from ``of_all``.

    Raises ``ArgumentError`` for fewer than two, a key that is unknown or missing, or a value of another kind.
    """
    from slotool.serving.operations.service_file import sentence_of

    by_name: dict[str, PlannedModel] = {}
    for number, model in enumerate(models):
        where = f"models[{number}]"
        if not isinstance(model, Mapping):
            raise ArgumentError("models", f"{where}: a table is expected, as each [[models]] of a file of options is")
        settings = {key.replace("-", "_"): value for key, value in model.items()}
        stated = {key: value for key, value in of_all.items() if value is not None}
        if settings.keys() & {"arrivals", "rate"}:  # its own traffic, in place of all that the plan says
            stated = {key: value for key, value in stated.items() if key not in ("arrivals", "rate")}
        entry = {key.replace("_", "-"): value for key, value in {**stated, **settings}.items()}
        try:
            read = msgspec.convert(entry, PlannedModel)
        except msgspec.ValidationError as error:
            raise ArgumentError("models", sentence_of(str(error), where, PlannedModel)) from None
        name = read.name or (where if read.artifact is None else Path(str(read.artifact)).resolve().name)
        if name in by_name:
            raise ArgumentError("models", f"{where}.name: {name!r} is the name of another model; give each its own")
        by_name[name] = read
    if len(by_name) < 2:
        hint = "there is one" if by_name else "there is none"
        raise ArgumentError("models", f"two models at least are expected, and {hint}; one is planned for without this")
    return by_name


def demands_of(
    entries: Mapping[str, PlannedModel],
    rules: tuple[Any, Tiers] | None,
    prices: Mapping[str, float],
    confidence: float,
    machine_cores: int | None,
    seed: int,
    reporter: Reporter,
    **conditions: Any,
) -> list[Demand]:
    """Return the demand for each model, with what is known of workers under these ``conditions``.

    Args:
        entries: Models by name.
        rules: Rules by which requests of the only model are answered, or their file, and what requests ask for.
        prices: Price of a worker, by type.
        confidence: Confidence of each promise.
        machine_cores: Cores of a machine that workers share; None: of this one.
        seed: Seed of drawn arrivals.
        reporter: Reporter of remarks and warnings.
        conditions: Rows of the latency tables that count, as of ``worker_types``.
    """
    from slotool.planning.model_on_workers import Demand
    from slotool.planning.promise import Promise
    from slotool.planning.worker_types import Named, named_alike, worker_types
    from slotool.scheduling.batching.registry import policies_named
    from slotool.tables import LatencyTable, OutcomeTable

    path, tiers = (None, None) if rules is None else rules
    rule_set = None if tiers is None else tiers.rules
    arrivals = _arrivals(entries, seed, reporter)
    demands: list[Demand] = []
    for name, entry in entries.items():
        of, files = f"{name}: " if name else "", {"artifact": entry.artifact, "outcomes": entry.outcomes, "rules": path}
        outcome_table = None if entry.outcomes is None else loaded(OutcomeTable, entry.outcomes)
        tables = [Named(loaded(LatencyTable, source), source) for source in entry.tables]
        with of_model(name):
            promise = Promise(1e3 * (entry.deadline_ms or 0.0), entry.attainment, entry.min_accuracy, confidence)
            outcomes = None if outcome_table is None else _of_shares(outcome_table, rule_set, reporter)
            workers, remarks = worker_types(tables, outcomes, rule_set, subject=entry.subject, **conditions)
            if promise.accuracy:
                remarks += dict.fromkeys(text for worker in workers for text in worker.profile.grid.unknown_accuracy)
            for remark in remarks:
                reporter.warn(f"{of}{remark}")
            named = named_alike(workers, list(demands[0].workers.values()) if demands else [], name)
            priced = {key: replace(worker, price=prices.get(key, worker.price)) for key, worker in named.items()}
            placement = _placement(entry, priced, machine_cores, conditions["quantile"], of, reporter)
        demands.append(
            Demand(
                name, arrivals[name], promise, priced, policies_named(entry.policies or POLICIES),
                outcomes, placement, tiers, {key: Path(str(file)) for key, file in files.items() if file is not None},
                entry.data, () if entry.policies else SLOW_POLICIES if tiers is None else (),
            )
        )  # fmt: skip
    keys = list(dict.fromkeys(key for demand in demands for key in demand.workers))
    for key, price in prices.items():
        if key not in keys:
            raise ArgumentError("prices", f"there is no worker type {key!r}; there are {'; '.join(keys)}")
        if not price > 0:
            raise ArgumentError("prices", f"the price of {key} is {price:g}; one above 0 is expected")
    return demands


def _of_shares(outcomes: OutcomeTable, rules: RuleSet | None, reporter: Reporter) -> OutcomeTable:
    """Return ``outcomes`` with errors of at most 1, so that accuracy is 1 − error.

    Larger ones become shares of the greatest that the rules allow. Raises ``InputError`` for larger ones without rules,
    and for rules of other models.
    """
    if rules is not None and (changed := rules.changed_words(outcomes.models)):
        raise InputError(f"{outcomes.source}: the rules were {changed}")
    errors = outcomes.matrix("error")
    if (worst := float(errors.max(initial=0.0))) <= 1:
        return outcomes
    if rules is None:
        raise InputError(
            f"{outcomes.source}: error {worst:g} is above 1, so that no accuracy follows from it; plan with rules, or "
            "give errors from 0 to 1"
        )
    rules.require_errors(outcomes)
    reporter.note(f"accuracy is 1 − error / {rules.max_error:g}, the greatest error that the rules were made for")
    return outcomes.with_errors(errors / rules.max_error)


def _placement(
    entry: PlannedModel,
    workers: Mapping[str, WorkerType],
    machine_cores: int | None,
    quantile: float,
    of: str,
    reporter: Reporter,
) -> Placement | None:
    """Return the placement of workers on machines, or None if each is as if alone.

    Warns of points and batch sizes for which others stand in.
    """
    from slotool.machine import usable_cores
    from slotool.planning.interference import Interference, Placement
    from slotool.tables import LatencyTable

    stated = entry.interference
    if stated is None:
        return None
    source = stated if isinstance(stated, int | float) else loaded(LatencyTable, stated)
    effects = {name: Interference.of(source, worker, quantile) for name, worker in workers.items()}
    for name, worker in workers.items():
        for remark in effects[name].remarks(worker.profile):
            reporter.warn(f"{of}{name}: {remark}" if len(workers) > 1 else f"{of}{remark}")
    return Placement(usable_cores() if machine_cores is None else machine_cores, effects)


def _arrivals(entries: Mapping[str, PlannedModel], seed: int, reporter: Reporter) -> dict[str, np.ndarray]:
    """Return arrivals by model over the same time: the shortest given, or a minute. Drawn ones are independent."""
    import pandas as pd

    from slotool.workloads import ArrivalTable, Poisson

    recorded = {}
    for name, entry in entries.items():
        if entry.arrivals is not None:
            table = entry.arrivals
            if hasattr(table, "dtype"):  # instants, of which the table says what is wrong
                table = ArrivalTable(pd.DataFrame({"arrival_s": table}))
            recorded[name] = loaded(ArrivalTable, table).times_s
    until_s = min((float(times_s[-1]) for times_s in recorded.values()), default=DURATION_S)
    arrivals: dict[str, np.ndarray] = {}
    for name, entry in entries.items():
        if entry.rate is not None:
            with of_model(name):
                arrivals[name] = Poisson(entry.rate).times(until_s, seed + len(arrivals.keys() - recorded.keys()))
            continue
        arrivals[name] = recorded[name][recorded[name] <= until_s]
        if len(arrivals[name]) < 0.99 * len(recorded[name]):
            reporter.warn(
                f"{name}: of {recorded[name][-1]:.4g} s of arrivals the first {until_s:.4g} s count, as another model "
                "has no more"
            )
    return arrivals


def require_served(demands: Sequence[Demand], *, with_data: bool) -> None:
    """Raise ``ArgumentError`` for a latency table that is not of the artifact, or lacks a point: policies need each.

    ``with_data``: Raise ``DataError`` for data of which no requests can be made.
    """
    from slotool.artifacts.bundle import MANIFEST
    from slotool.elastic import load_served
    from slotool.elastic.queries import dataset_of
    from slotool.planning.verified_plan import examples_sent

    for demand in demands:
        artifact = demand.files["artifact"]
        if not (artifact / MANIFEST).is_file():  # the server says what it is
            continue
        model = load_served(str(artifact), mapped=True)
        if with_data:
            with of_model(demand.name):
                split = examples_sent(demand.outcomes, demand.data)
                dataset_of(model, demand.data, needs_labels=False).examples(split)
        for worker in demand.workers.values() if demand.tiers is None else ():
            if (subject := worker.profile.subject) != model.name:
                raise ArgumentError(
                    "latency",
                    f"{worker.source} has latencies of {subject}, and {artifact} is called {model.name}, so that it "
                    f"could not be served by them: slotool profile points {quote(str(artifact))}, or slotool predict "
                    f"--family {quote(model.name)}",
                )
            profiled = {point.key for point, _ in worker.profile.samples_us}
            if lacking := [point.key for point in model.points if point.key not in profiled]:
                raise ArgumentError(
                    "latency",
                    f"{worker.source} has no latencies of {', '.join(lacking)}, so that {artifact} could not be served "
                    f"by it: slotool profile points {quote(str(artifact))}",
                )
