"""``slotool.plan`` of one subject: the cheapest workers and policy that keep its promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.inputs import FilePath, as_list, devices_of, loaded, name_of
from slotool.api.plan_explained import why_not
from slotool.api.plan_inputs import DURATION_S, of_shares, require_any_here, require_points, why_not_here
from slotool.api.plan_interference import named_interference, note_sharing, placement_of, with_raised_tables
from slotool.api.plan_plots import draw
from slotool.api.plan_scaling import scaling_limits, scaling_of
from slotool.api.plan_tiers import Tolerance, mixes, require_alike
from slotool.api.plan_verified import verified_plan
from slotool.api.planned import Plan, explained, fleet_row
from slotool.api.progress import Reporter
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.promise import Promise
    from slotool.planning.scaling import ScalingLimits
    from slotool.planning.worker import WorkerType
    from slotool.rules import RuleSet
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable


def single_plan(
    latency: FilePath | LatencyTable | Sequence[FilePath] | None,
    *,
    deadline_ms: float | None,
    attainment: float,
    min_accuracy: float,
    confidence: float,
    arrivals: FilePath | ArrivalTable | np.ndarray | None,
    rate: float | None,
    outcomes: FilePath | OutcomeTable | None,
    subject: str | None,
    device: str | None,
    policies: str | Sequence[str],
    rules: FilePath | RuleSet | None,
    tolerance: Tolerance,
    objective: str | None,
    prices: Mapping[str, float],
    reserve_ms: float,
    max_workers: int,
    quantile: float,
    interference: FilePath | LatencyTable | float | None,
    machine_cores: int | None,
    front_end_ms: float,
    explain: bool,
    artifact: FilePath | None,
    out: Path | None,
    plots: Path | None,
    verify_s: float | None,
    data: str | DataSource,
    seed: int,
    force: bool,
    reporter: Reporter,
) -> Plan:
    """As ``slotool.plan`` has it."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.planning.promise import Promise
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable

    latency, deadline_ms = _of_one(latency, deadline_ms)
    require_alike(outcomes, rules, tolerance, objective)
    if out is not None:
        _require_files(artifact, latency, outcomes, rules)
        refuse_existing(out, force)
    promise = Promise(deadline_ms * 1e3, attainment, min_accuracy, confidence)
    accuracies = None if outcomes is None else loaded(OutcomeTable, outcomes)
    rule_set = None if rules is None else loaded(RuleSet, rules)
    accuracies = None if accuracies is None else of_shares(accuracies, rule_set, reporter)
    workers = _worker_types(
        latency, accuracies, rule_set, prices, reporter, subject=subject, quantile=quantile,
        devices=devices_of(device),
    )  # fmt: skip
    if out is not None and rule_set is None:
        require_points(Path(str(artifact)), workers)
    if verify_s is not None:
        require_any_here(workers, reporter)
    arrival_s = _arrivals(arrivals, rate, seed)
    make = partial(_search, arrival_s, promise, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed)
    cancels = None if artifact is None or rule_set is None else _ends_at_once(artifact)
    if front_end_ms and rule_set is not None:
        raise ArgumentError("front_end_ms", "it has no effect with rules")
    search = make(accuracies, rule_set, tolerance, objective, bool(cancels))
    search.placement = placement_of(
        interference, machine_cores, workers, quantile, artifact, reporter, front_end_ms=front_end_ms
    )
    for remark in search.remarks:
        reporter.warn(remark)
    names = list(dict.fromkeys(as_list(policies)))
    facts = {
        "subject": workers[0].profile.subject,
        "device": device,
        "deadline_ms": deadline_ms,
        "attainment": attainment,
        "min_accuracy": min_accuracy,
        "confidence": confidence,
        "arrivals": name_of(arrivals) if arrivals is not None else f"{rate:g} requests/s",
        "requests": len(arrival_s),
        "rate_per_s": search.rate_per_s,
        "reserve_ms": reserve_ms,
        "interference": named_interference(interference),
        "rules": None if rules is None else name_of(rules),
        "best_version": None if rule_set is None else rule_set.best_version,
        "cancels": cancels,
        "strictest": rule_set is not None and tolerance is None,
        "seed": seed,
        "verify_s": verify_s,
    }
    found = _found(search, workers, names, reporter)
    if not found:
        cause = search.why_nothing_fits(workers)
        why = {"sentences": [f"nothing to explain: no fleet holds, because {cause}"]} if explain else None
        return Plan([], facts, f"no fleet keeps the promise: {cause}", reasons=why)
    best = found[0]
    fleets = [fleet_row(each, promise, search) for each in found]
    explanation = explained(best, promise, found)
    why = why_not(search, best.fewer if best.holds else best.tried) if explain else None
    if not best.holds:
        return Plan(fleets, facts, explanation, reasons=why)
    note_sharing({"": (search, best.tried)}, reporter)
    drawn = [] if plots is None else draw(search, found, names, plots, reporter)
    files = {"outcomes": outcomes, "rules": rules}
    limits = None if out is None else _write_service(out, best.tried, search, artifact, files, reporter)
    scaling = None if limits is None else scaling_of(limits)
    verified, kept, verdict = _verified(verify_s, out, search, best.tried, data, reporter)
    return Plan(fleets, facts, explanation, out, drawn, verified, kept, verdict, scaling, why)


def _verified(
    verify_s: float | None,
    out: Path | None,
    search: FleetSearch,
    fleet: Fleet,
    data: str | DataSource,
    reporter: Reporter,
) -> tuple[list[dict[str, Any]], bool | None, str]:
    """Figures as planned and as served here, whether the promise was kept, and by how much; nothing where it was not
    asked."""
    if verify_s is None or out is None:
        return [], None, ""
    if why_not_here(fleet.pool.worker):
        return [], None, f"not verified: the plan needs {fleet.pool.worker.device}, which is not here"
    verified, (kept, verdict) = verified_plan(out, search, fleet, verify_s, data, reporter)
    return verified, kept, verdict


def _of_one(latency: Any, deadline_ms: float | None) -> tuple[Any, float]:
    """What a plan of one subject needs."""
    if latency is None:
        raise ArgumentError("latency", "a latency table is expected, or several models")
    if deadline_ms is None:
        raise ArgumentError("deadline_ms", "it is needed: the promise is about it")
    return latency, deadline_ms


def _search(
    arrival_s: np.ndarray,
    promise: Promise,
    outcomes: OutcomeTable | None,
    rules: RuleSet | None,
    tolerance: Tolerance,
    objective: str | None,
    cancels: bool,
    **settings: Any,
) -> FleetSearch:
    """Of fleets under policies or, with ``rules``, of those that answer by them."""
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.tiers import TierFleetSearch

    if rules is None or outcomes is None:
        return FleetSearch(arrival_s, promise, outcomes=outcomes, **settings)
    asked = mixes(rules, tolerance, objective)
    return TierFleetSearch(
        arrival_s, promise, rules, outcomes, asked, strictest=tolerance is None, cancels=cancels, **settings
    )


def _ends_at_once(artifact: FilePath) -> bool:
    """Whether a call that is not needed any more ends between two operators: that of a library's own model does not."""
    from slotool.elastic import ElasticModel, load_served

    model = load_served(str(artifact), mapped=True)
    return type(model).set_cancellation_check is not ElasticModel.set_cancellation_check


def _found(search: FleetSearch, workers: Sequence[WorkerType], names: Sequence[str], reporter: Reporter) -> list[Found]:
    """Return the smallest fleet of each type and policy, the best first; none where no policy can answer in time, or is
    accurate enough, on any type."""
    from slotool.planning.fleet_search import confirm

    asked = [(worker, policy) for worker in workers for policy in search.policies(worker, names)]
    if not asked:
        return []
    for worker in workers:
        if not any(worker is each for each, _ in asked):
            reporter.note(f"no fleet of {worker.name}: {search.why_nothing_fits([worker])}")
    found: list[Found] = []
    rate = f"{search.rate_per_s:,.0f}" if search.rate_per_s >= 100 else f"{search.rate_per_s:.3g}"
    with reporter.progress(f"fleets for {search.requests:,} requests, {rate}/s", total=len(asked)) as steps:
        for worker, policy in asked:
            found.append(search.cheapest(worker, policy))
            steps.advance()
    with reporter.progress("fleets confirmed") as steps:
        return confirm(search, found, steps.advance)


def _require_files(artifact: Any, latency: Any, outcomes: Any, rules: Any) -> None:
    """A service file names files, so that all it is made from has to be one."""
    if artifact is None:
        raise ArgumentError("artifact", "is needed for out: the service file names what is to be served")
    if not Path(str(artifact)).is_dir():
        raise ArgumentError("artifact", f"there is no folder {artifact}; an artifact is expected")
    for name, given in (("latency", latency), ("outcomes", outcomes), ("rules", rules)):
        several = [given] if given is None or isinstance(given, str | Path) else given
        if not isinstance(several, Sequence) or not all(
            each is None or isinstance(each, str | Path) for each in several
        ):
            raise ArgumentError(name, "a file is needed for out: the service file names it")


def _worker_types(
    latency: Any,
    outcomes: OutcomeTable | None,
    rules: RuleSet | None,
    prices: Mapping[str, float],
    reporter: Reporter,
    **conditions: Any,
) -> list[WorkerType]:
    from slotool.planning.worker_types import Named, worker_types
    from slotool.tables import LatencyTable

    sources = [latency] if isinstance(latency, str | Path | LatencyTable) else list(latency)
    tables = [Named(loaded(LatencyTable, source), source) for source in sources]
    workers, remarks = worker_types(tables, outcomes, rules, prices=prices, **conditions)
    for remark in remarks:
        reporter.warn(remark)
    return workers


def _arrivals(arrivals: FilePath | ArrivalTable | np.ndarray | None, rate: float | None, seed: int) -> np.ndarray:
    from slotool.workloads import ArrivalTable, Poisson

    if (arrivals is None) == (rate is None):
        raise ArgumentError("arrivals", "give either arrivals or a rate")
    if arrivals is not None:
        table: ArrivalTable = loaded(ArrivalTable, _as_table(arrivals))
        return table.times_s
    if rate is None or not rate > 0:
        raise ArgumentError("rate", f"{rate:g} is not above 0")
    return Poisson(rate).times(DURATION_S, seed)


def _as_table(arrivals: Any) -> Any:
    """Instants in an array as a table, which says what is wrong with them."""
    import pandas as pd

    from slotool.workloads import ArrivalTable

    return ArrivalTable(pd.DataFrame({"arrival_s": arrivals})) if hasattr(arrivals, "dtype") else arrivals


def _write_service(
    out: Path,
    fleet: Fleet,
    search: FleetSearch,
    artifact: Any,
    files: Mapping[str, Any],
    reporter: Reporter,
) -> ScalingLimits | None:
    """The limits of workers that come with the load, where the service file has them. ``files``: by key, None for
    none."""
    from slotool.atomic import whole_file
    from slotool.planning.service_text import cluster_remark, service_text

    named = {
        "artifact": Path(str(artifact)),
        **{key: Path(str(path)) for key, path in files.items() if path is not None},
    }
    if remark := cluster_remark(fleet.pool):
        reporter.warn(remark)
    limits = scaling_limits(search, fleet)
    fleet = with_raised_tables(search, fleet, out)
    terms, max_queue = search.terms(fleet.pool), search.max_queue(fleet.pool)
    with whole_file(out) as file:
        file.write_text(service_text(fleet, search.promise, out.parent, named, terms, max_queue, limits))
    return limits
