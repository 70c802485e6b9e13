"""Demands of the models of ``slotool.plan``, on workers that are the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from slotool.commands.inputs import as_list, loaded
from slotool.commands.planning.plan_interference import placement_of
from slotool.commands.planning.plan_models import PlannedModel, of_model
from slotool.commands.progress import Reporter
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    import numpy as np

    from slotool.planning.fleet import WorkerType
    from slotool.planning.planner import Demand
    from slotool.planning.tiers import Tiers
    from slotool.planning.worker_types import Named
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable

# Of traffic that is drawn.
DURATION_S = 60.0


def demands_of(
    entries: Mapping[str, PlannedModel],
    tiers: Tiers | None,
    prices: Mapping[str, float],
    confidence: float,
    machine_cores: int | None,
    seed: int,
    reporter: Reporter,
    **conditions: Any,
) -> list[Demand]:
    """Return the demand for each model, with what is known of workers under these ``conditions``.

    ``tiers``: of the only model, where requests are answered by rules.
    """
    from slotool.planning.planner import Demand
    from slotool.planning.promise import Judge, Promise
    from slotool.tables import OutcomeTable

    rules = None if tiers is None else tiers.rules
    arrivals = _arrivals(entries, seed, reporter)
    demands: list[Demand] = []
    kinds: dict[_Kind, str] = {}
    for name, entry in entries.items():
        with of_model(name):
            promise = Promise(entry.deadline_ms * 1e3, entry.attainment, entry.min_accuracy, confidence)
        known = None if entry.outcomes is None else loaded(OutcomeTable, entry.outcomes)
        outcomes = None if known is None else _of_shares(known, rules, reporter)
        with of_model(name):
            workers = _workers(name, entry, outcomes, rules, kinds, reporter, **conditions)
            Judge(promise, outcomes).require_enough(len(arrivals[name]))
            # Where other models state interference, the cores of a machine are no option of this one.
            cores = machine_cores if len(entries) == 1 or entry.interference is not None else None
            placement = placement_of(
                entry.interference, cores, list(workers.values()), conditions["quantile"], reporter,
                f"{name}: " if name else "",
            )  # fmt: skip
        policies = list(dict.fromkeys(as_list(entry.policies)))
        demands.append(Demand(name, arrivals[name], promise, workers, policies, outcomes, placement, tiers))
    return _priced(demands, prices)


def _of_shares(outcomes: OutcomeTable, rules: RuleSet | None, reporter: Reporter) -> OutcomeTable:
    """Return ``outcomes`` with errors of at most 1, so that an accuracy is 1 − error: larger ones as shares of the
    greatest that the rules allow. Raises ``InputError`` for larger ones without rules, and for rules of other
    models."""
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


def _workers(
    name: str,
    entry: PlannedModel,
    outcomes: OutcomeTable | None,
    rules: RuleSet | None,
    kinds: dict[_Kind, str],
    reporter: Reporter,
    **conditions: Any,
) -> dict[str, WorkerType]:
    """Types of workers with this model's latencies, by name. ``kinds``: names by kind of the first model's, which this
    fills; other models' workers of the same kind are called alike."""
    from slotool.planning.worker_types import Named, worker_types
    from slotool.tables import LatencyTable

    tables = [Named(loaded(LatencyTable, source), source) for source in entry.tables]
    workers, remarks = worker_types(tables, outcomes, rules, subject=entry.subject, **conditions)
    for remark in remarks:
        reporter.warn(f"{name}: {remark}" if name else remark)
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
    """Kind of workers: device, threads, and the machines on which their latencies were measured;
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
    """Pair ``own`` workers, by name, with those of the ``others`` that are the same: of one machine first, then, as
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
    """Explain what keeps latency tables from being of the same workers."""
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
    """Give workers these prices. Raises ``ArgumentError`` for one of no type, or that is not above 0."""
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
    """Return arrivals by model over the same time: the shortest given, or a minute. Drawn ones are independent."""
    from slotool.workloads import ArrivalTable, Poisson

    given = {
        name: loaded(ArrivalTable, _as_table(entry.arrivals)).times_s
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
        elif entry.rate is not None:
            with of_model(name):
                found[name] = Poisson(entry.rate).times(until_s, seed + drawn)
            drawn += 1
    return found


def _as_table(arrivals: Any) -> Any:
    """Instants in an array as a table, which says what is wrong with them."""
    import pandas as pd

    from slotool.workloads import ArrivalTable

    return ArrivalTable(pd.DataFrame({"arrival_s": arrivals})) if hasattr(arrivals, "dtype") else arrivals
