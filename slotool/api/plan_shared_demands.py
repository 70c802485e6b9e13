"""Of ``slotool.plan`` of several models: what each is to serve, on workers that are the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slotool.api.inputs import as_list, loaded
from slotool.api.plan_inputs import DURATION_S, of_shares
from slotool.api.plan_interference import placement_of
from slotool.api.plan_models import PlannedModel
from slotool.api.progress import Reporter
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    import numpy as np

    from slotool.planning.interference import Placement
    from slotool.planning.shared import Demand
    from slotool.planning.worker import WorkerType
    from slotool.planning.worker_types import Named
    from slotool.tables import OutcomeTable


def demands_of(
    entries: Mapping[str, PlannedModel],
    prices: Mapping[str, float],
    confidence: float,
    machine_cores: int | None,
    seed: int,
    reporter: Reporter,
    **conditions: Any,
) -> list[Demand]:
    """Of the models, with what is known of workers under these ``conditions``."""
    from slotool.planning.promise import Judge, Promise
    from slotool.planning.shared import Demand
    from slotool.tables import OutcomeTable

    arrivals = _arrivals(entries, seed, reporter)
    demands: list[Demand] = []
    kinds: dict[_Kind, str] = {}
    for name, entry in entries.items():
        outcomes = None if entry.outcomes is None else of_shares(loaded(OutcomeTable, entry.outcomes), None, reporter)
        workers = _workers(name, entry, outcomes, kinds, reporter, **conditions)
        try:
            promise = Promise(entry.deadline_ms * 1e3, entry.attainment, entry.min_accuracy, confidence)
        except ArgumentError as error:
            raise ArgumentError("models", f"{name}: {error.argument.replace('_', '-')}: {error.problem}") from None
        if entry.rate != 0:  # asked for, so that too few are no reason to leave its promise out
            try:
                Judge(promise, outcomes).require_enough(len(arrivals[name]))
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
        placement = _placement(name, entry, workers, machine_cores, conditions["quantile"], reporter)
        demands.append(Demand(name, arrivals[name], promise, workers, as_list(entry.policies), outcomes, placement))
    return _priced(demands, prices)


def _placement(
    name: str,
    entry: PlannedModel,
    workers: Mapping[str, WorkerType],
    machine_cores: int | None,
    quantile: float,
    reporter: Reporter,
) -> Placement | None:
    """How workers that share machines slow down calls of this model, whatever the others compute."""
    if entry.interference is None:
        return None
    try:
        return placement_of(
            entry.interference, machine_cores, list(workers.values()), quantile, entry.artifact, reporter, f"{name}: "
        )
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except ArgumentError as error:
        raise ArgumentError("models", f"{name}: {error.argument}: {error.problem}") from None


def _workers(
    name: str,
    entry: PlannedModel,
    outcomes: OutcomeTable | None,
    kinds: dict[_Kind, str],
    reporter: Reporter,
    **conditions: Any,
) -> dict[str, WorkerType]:
    """Types of workers with this model's latencies, by name. ``kinds``: names by kind of the first model's, which this
    fills; other models' workers of the same kind are called alike."""
    from slotool.planning.worker_types import Named, worker_types
    from slotool.tables import LatencyTable

    sources = list(entry.latency) if isinstance(entry.latency, list | tuple) else [entry.latency]
    tables = [Named(loaded(LatencyTable, source), source) for source in sources]
    try:
        workers, remarks = worker_types(tables, outcomes, None, prices={}, subject=entry.subject, **conditions)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    for remark in remarks:
        reporter.warn(f"{name}: {remark}")
    own = _kinds(workers, tables)
    if not kinds:
        kinds.update(own)
        return {worker.name: worker for worker in workers}
    same = _paired(own, kinds)
    found = {}
    for worker in workers:
        called = f"{worker.name} of {name}" if worker.name in kinds.values() else worker.name
        called = same.get(worker.name, called)
        found[called] = replace(worker, name=called)
    return found


class _Kind(NamedTuple):
    """What workers are: of which device, with how many threads, and on which machines their latencies were measured;
    ``place``: among those of a model that are alike in all of this."""

    device: str
    threads: int
    machines: tuple[str, ...]
    place: int


def _kinds(workers: Sequence[WorkerType], tables: Sequence[Named]) -> dict[_Kind, str]:
    """Names of a model's workers by kind."""
    machines = {id(source): tuple(sorted(set(table.rows["machine"]))) for table, source in tables}
    found: dict[_Kind, str] = {}
    for worker in workers:
        alike = worker.device, worker.threads, machines[id(worker.source)]
        found[_Kind(*alike, sum(kind[:3] == alike for kind in found))] = worker.name
    return found


def _paired(own: Mapping[_Kind, str], others: Mapping[_Kind, str]) -> dict[str, str]:
    """By name of one's ``own`` workers those of the ``others`` that are the same: of the same machine first, then, as
    each model may have been measured on a machine of its own, those left of the same device and threads in order."""
    found = {name: others[kind] for kind, name in own.items() if kind in others}
    left = [(kind, name) for kind, name in others.items() if name not in found.values()]
    for kind, name in own.items():
        if name not in found and (same := [each for each in left if each[0][:2] == kind[:2]]):
            found[name] = same[0][1]
            left.remove(same[0])
    return found


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def why_none(demands: Sequence[Demand]) -> str:
    """What keeps latency tables from being of the same workers."""
    devices = {demand.name: {worker.device for worker in demand.workers.values()} for demand in demands}
    threads = {demand.name: {worker.threads for worker in demand.workers.values()} for demand in demands}
    if not set.intersection(*devices.values()):
        of = "; ".join(f"{name}: {', '.join(sorted(own))}" for name, own in devices.items())
        return f"are of different devices ({of})"
    if not set.intersection(*threads.values()):
        of = "; ".join(f"{name}: {', '.join(map(_threads, sorted(own)))}" for name, own in threads.items())
        return f"have no number of threads in common ({of})"
    of = "; ".join(
        f"{demand.name}: {', '.join(f'{_threads(each.threads)} on {each.device}' for each in demand.workers.values())}"
        for demand in demands
    )
    return f"have no number of threads of the same device in common ({of})"


def _priced(demands: Sequence[Demand], prices: Mapping[str, float]) -> list[Demand]:
    """With these prices of workers. Raises ``ArgumentError`` for one of no type, or that is not above 0."""
    there = list(dict.fromkeys(name for demand in demands for name in demand.workers))
    for name, price in prices.items():
        if name not in there:
            raise ArgumentError("prices", f"there is no worker type {name!r}; there are {'; '.join(there)}")
        if not price > 0:
            raise ArgumentError("prices", f"the price of {name} is {price:g}; one above 0 is expected")
    return [
        replace(
            demand,
            workers={
                name: replace(worker, price=prices.get(name, worker.price)) for name, worker in demand.workers.items()
            },
        )
        for demand in demands
    ]


def _arrivals(entries: Mapping[str, PlannedModel], seed: int, reporter: Reporter) -> dict[str, np.ndarray]:
    """By model, all over the same time: the shortest that is given, or a minute. Drawn ones are independent."""
    import numpy as np

    from slotool.workloads import ArrivalTable, Poisson

    given = {
        name: loaded(ArrivalTable, entry.arrivals).times_s
        for name, entry in entries.items()
        if entry.arrivals is not None
    }
    spans_s = {name: float(times_s[-1]) for name, times_s in given.items()}
    until_s = min(spans_s.values(), default=DURATION_S)
    found, drawn = {}, 0
    for name, entry in entries.items():
        if name in given:
            found[name] = given[name][given[name] <= until_s]
            if len(found[name]) < 0.99 * len(given[name]):
                reporter.warn(
                    f"{name}: of {spans_s[name]:.4g} s of arrivals the first {until_s:.4g} s count, as another model "
                    "has no more"
                )
        elif entry.rate:
            try:
                found[name] = Poisson(entry.rate).times(until_s, seed + drawn)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error
            drawn += 1
        else:
            found[name] = np.zeros(0)
    return found
