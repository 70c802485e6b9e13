"""``slotool.plan`` of several models: the cheapest workers that they share, beside a fleet for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.inputs import as_list, devices_of, loaded, name_of
from slotool.api.plan_inputs import DURATION_S, of_shares, require_any_here, require_points, why_not_here
from slotool.api.plan_models import PlannedModel, models_by_name, require_files
from slotool.api.planned_shared import SharedPlan, apart_row, shared_row, why_shared
from slotool.api.progress import Reporter
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    import numpy as np

    from slotool.planning.fleet import Found
    from slotool.planning.shared import Demand, SharedFleetSearch, SharedFound
    from slotool.planning.worker import WorkerType
    from slotool.tables import OutcomeTable


def shared_plan(
    models: Sequence[Mapping[str, Any]],
    *,
    left_out: Mapping[str, Any],
    confidence: float,
    device: str | None,
    prices: Mapping[str, float],
    reserve_ms: float,
    max_workers: int,
    quantile: float,
    out: Path | None,
    verify_s: float | None,
    seed: int,
    force: bool,
    reporter: Reporter,
) -> SharedPlan:
    """As ``slotool.plan`` has it; ``left_out``: by key, what holds for models that do not say so themselves."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.planning.shared import SharedFleetSearch

    entries = models_by_name(models, left_out)
    if out is not None:
        for name, entry in entries.items():
            require_files(name, entry)
        refuse_existing(out, force)
    conditions: dict[str, Any] = {"quantile": quantile, "devices": devices_of(device)}
    demands = _demands(entries, prices, confidence, seed, reporter, **conditions)
    for demand in demands if out is not None else ():
        require_points(Path(str(entries[demand.name].artifact)), list(demand.workers.values()))
    search = SharedFleetSearch(demands, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed)
    if verify_s is not None:
        require_any_here(list(demands[0].workers.values()), reporter)
    if not search.worker_types:
        there = "; ".join(f"{demand.name}: {', '.join(demand.workers)}" for demand in demands)
        raise InputError(
            f"no worker serves all of the models, as their latency tables have no number of threads in common ({there})"
        )
    apart = _apart(search, reporter)
    found = _shared(search, apart, reporter)
    facts = _facts(search, entries, apart, confidence, reserve_ms, seed, verify_s)
    rows = [shared_row(each, search) for each in found]
    rows.append(apart_row(apart, search))
    rows.sort(key=lambda row: (not row["holds"], row["cost"], row["kind"] == "apart"))
    plan = SharedPlan(rows, facts, why_shared(found, apart, search))
    if not plan.holds or out is None:
        return plan
    from slotool.api.plan_shared_service import verified_together, write_services

    best = found[0] if rows[0]["kind"] == "shared" else None
    written = write_services(out, entries, search, best, apart, reporter)
    plan = replace(plan, out=written[0], others=written[1:])
    if verify_s is None:
        return plan
    if best is not None and (why := why_not_here(best.tried.worker)):
        return replace(plan, verdict=f"not verified: {why}")
    if best is None:
        return replace(plan, verdict="not verified: models apart are verified one by one, by a plan for each")
    figures, (kept, verdict) = verified_together(out, entries, search, best.tried, verify_s, reporter)
    return replace(plan, verified=figures, kept=kept, verdict=verdict)


def _demands(
    entries: Mapping[str, PlannedModel],
    prices: Mapping[str, float],
    confidence: float,
    seed: int,
    reporter: Reporter,
    **conditions: Any,
) -> list[Demand]:
    from slotool.planning.promise import Promise
    from slotool.planning.shared import Demand
    from slotool.tables import OutcomeTable

    arrivals = _arrivals(entries, seed, reporter)
    demands: list[Demand] = []
    for name, entry in entries.items():
        outcomes = None if entry.outcomes is None else of_shares(loaded(OutcomeTable, entry.outcomes), None, reporter)
        first = demands[0].workers if demands else {}
        workers = _workers(name, entry, outcomes, first, reporter, **conditions)
        try:
            promise = Promise(entry.deadline_ms * 1e3, entry.attainment, entry.min_accuracy, confidence)
        except ArgumentError as error:
            raise ArgumentError("models", f"{name}: {error.argument.replace('_', '-')}: {error.problem}") from None
        demands.append(Demand(name, arrivals[name], promise, workers, as_list(entry.policies), outcomes))
    return _priced(demands, prices)


def _workers(
    name: str,
    entry: PlannedModel,
    outcomes: OutcomeTable | None,
    first: Mapping[str, WorkerType],
    reporter: Reporter,
    **conditions: Any,
) -> dict[str, WorkerType]:
    """Types of workers with this model's latencies, by name: that of the ``first`` model's where they are the same."""
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
    names = {_kind(worker, place): worker.name for place, worker in _placed(first.values())}
    found = {}
    for place, worker in _placed(workers):
        own = f"{worker.name} of {name}" if worker.name in first else worker.name
        called = names.get(_kind(worker, place), own)
        found[called] = replace(worker, name=called)
    return found


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


def _kind(worker: WorkerType, place: int) -> tuple[int, int, str]:
    """What makes types of two models the same workers: which of the latency tables, threads and device."""
    return place, worker.threads, worker.device


def _placed(workers: Any) -> list[tuple[int, WorkerType]]:
    """Each with the place of its latency table."""
    workers = list(workers)
    sources = list({id(worker.source): None for worker in workers})
    return [(sources.index(id(worker.source)), worker) for worker in workers]


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


def _apart(search: SharedFleetSearch, reporter: Reporter) -> dict[str, list[Found]]:
    """Fleets of each model by itself."""
    found = {}
    with reporter.progress(f"a fleet for each of {len(search.alone)} models") as steps:
        for name in search.alone:
            found[name] = search.apart(name, steps.advance)
    return found


def _shared(search: SharedFleetSearch, apart: Mapping[str, Sequence[Found]], reporter: Reporter) -> list[SharedFound]:
    """Fleets that all models share, one per type of workers, the cheapest that holds first; none where a model is not
    even served as promised by a fleet of its own."""
    found: list[SharedFound] = []
    if not all(each[0].holds for each in apart.values()):
        return found
    with reporter.progress(f"shared fleets for {search.requests:,} requests", total=len(search.worker_types)) as steps:
        for worker_type in search.worker_types:
            if (shared := search.cheapest(worker_type, apart)) is not None:
                found.append(search.confirmed(shared, apart))
            steps.advance()
    return sorted(found, key=lambda each: (not each.holds, each.tried.shortfall(search.promises), each.tried.cost))


def _facts(
    search: SharedFleetSearch,
    entries: Mapping[str, PlannedModel],
    apart: Mapping[str, Sequence[Found]],
    confidence: float,
    reserve_ms: float,
    seed: int,
    verify_s: float | None,
) -> dict[str, Any]:
    models = [
        {
            "model": name,
            "subject": next(iter(search.demands[name].workers.values())).profile.subject,
            "deadline_ms": entry.deadline_ms,
            "attainment": entry.attainment,
            "min_accuracy": entry.min_accuracy,
            "arrivals": f"{entry.rate:g} requests/s" if entry.arrivals is None else name_of(entry.arrivals),
            "requests": len(search.demands[name].arrival_s),
            "rate_per_s": search.alone[name].rate_per_s if name in search.alone else 0.0,
        }
        for name, entry in entries.items()
    ]
    return {
        "confidence": confidence,
        "requests": search.requests,
        "reserve_ms": reserve_ms,
        "seed": seed,
        "verify_s": verify_s,
        "promises": models,
    }
