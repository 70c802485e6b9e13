"""``slotool.plan`` of several models: the cheapest workers that they share, beside a fleet for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from slotool.planning.worker_types import Named
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
        raise InputError(f"no worker serves all of the models, as their latency tables {_why_none(demands)}")
    apart = _apart(search, reporter)
    found = _shared(search, apart, reporter)
    facts = _facts(search, entries, apart, confidence, reserve_ms, seed, verify_s)
    rows = [shared_row(each, search) for each in found]
    rows.append(apart_row(apart, search))
    # Of equal cost the shared one: one service in place of several.
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
        demands.append(Demand(name, arrivals[name], promise, workers, as_list(entry.policies), outcomes))
    return _priced(demands, prices)


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


def _why_none(demands: Sequence[Demand]) -> str:
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


def _apart(search: SharedFleetSearch, reporter: Reporter) -> dict[str, list[Found]]:
    """Fleets of each model by itself."""
    found = {}
    whose = f"each of {len(search.alone)} models" if len(search.alone) > 1 else next(iter(search.alone))
    with reporter.progress(f"a fleet for {whose}") as steps:
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
