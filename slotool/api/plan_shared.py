"""``slotool.plan`` of several models: the cheapest workers that they share, beside a fleet for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.inputs import devices_of, name_of
from slotool.api.plan_explained import why_not, why_not_shared
from slotool.api.plan_inputs import require_any_here, require_points, why_not_here
from slotool.api.plan_interference import named_interference, note_sharing
from slotool.api.plan_models import PlannedModel, models_by_name, require_files
from slotool.api.plan_plots import draw_apart, draw_shared
from slotool.api.plan_shared_demands import demands_of, why_none
from slotool.api.planned_shared import SharedPlan, apart_row, shared_row, why_shared
from slotool.api.progress import Reporter
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.planning.fleet import Found
    from slotool.planning.shared import SharedFleetSearch, SharedFound


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
    machine_cores: int | None,
    explain: bool,
    out: Path | None,
    plots: Path | None,
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
    if machine_cores is not None and all(entry.interference is None for entry in entries.values()):
        raise ArgumentError("machine_cores", "it has no effect without interference")
    conditions: dict[str, Any] = {"quantile": quantile, "devices": devices_of(device)}
    demands = demands_of(entries, prices, confidence, machine_cores, seed, reporter, **conditions)
    for demand in demands if out is not None else ():
        require_points(Path(str(entries[demand.name].artifact)), list(demand.workers.values()))
    search = SharedFleetSearch(demands, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed)
    if verify_s is not None:
        require_any_here(list(demands[0].workers.values()), reporter)
    if not search.worker_types:
        raise InputError(f"no worker serves all of the models, as their latency tables {why_none(demands)}")
    apart = _apart(search, reporter)
    found = _shared(search, apart, reporter)
    facts = _facts(search, entries, apart, confidence, reserve_ms, seed, verify_s)
    rows = [shared_row(each, search) for each in found]
    rows.append(apart_row(apart, search))
    # Of equal cost the shared one: one service in place of several.
    rows.sort(key=lambda row: (not row["holds"], row["cost"], row["kind"] == "apart"))
    plan = SharedPlan(rows, facts, why_shared(found, apart, search))
    best = found[0] if plan.holds and rows[0]["kind"] == "shared" else None
    if explain:
        plan = replace(plan, reasons=_reasons(search, best, found, apart))
    if not plan.holds:
        return plan
    _note_sharing(search, best, apart, reporter)
    if plots is not None:
        drawn = (
            draw_shared(search, best, apart, plots, reporter) if best else draw_apart(search, apart, plots, reporter)
        )
        plan = replace(plan, plots=drawn)
    return plan if out is None else _served(plan, out, entries, search, best, apart, verify_s, reporter)


def _served(
    plan: SharedPlan,
    out: Path,
    entries: Mapping[str, PlannedModel],
    search: SharedFleetSearch,
    best: SharedFound | None,
    apart: Mapping[str, Sequence[Found]],
    verify_s: float | None,
    reporter: Reporter,
) -> SharedPlan:
    """With its service files and, where it is asked for, what this machine makes of them."""
    from slotool.api.plan_shared_service import verified_together, write_services

    written, scaling = write_services(out, entries, search, best, apart, reporter)
    plan = replace(plan, out=written[0], others=written[1:], scaling=scaling)
    if verify_s is None:
        return plan
    if best is not None and (why := why_not_here(best.tried.worker)):
        return replace(plan, verdict=f"not verified: {why}")
    if best is None:
        return replace(plan, verdict="not verified: models apart are verified one by one, by a plan for each")
    figures, (kept, verdict) = verified_together(out, entries, search, best.tried, verify_s, reporter)
    return replace(plan, verified=figures, kept=kept, verdict=verdict)


def _reasons(
    search: SharedFleetSearch,
    best: SharedFound | None,
    found: Sequence[SharedFound],
    apart: Mapping[str, Sequence[Found]],
) -> dict[str, Any]:
    """Why the plan is ``best``, a fleet that the models share; or without one, why they do not share, and why the
    fleets of the models are as they are; or of those that none keeps the promise of, what would."""
    if best is not None and not search.is_of_one:
        return why_not_shared(search, best.fewer)
    why = why_not_shared(search, found[0].tried) if found and not search.is_of_one else {"fewer": None, "sentences": []}
    failing = [name for name, own in apart.items() if not own[0].holds]
    is_too_much = not failing and sum(own[0].tried.replicas for own in apart.values()) > search.max_workers
    models = {}
    for name in failing or ([] if is_too_much else apart):
        models[name] = why_not(search.alone[name], apart[name][0].tried if failing else apart[name][0].fewer)
    shared = "shared: " if len(apart) > 1 else ""
    sentences = [f"{shared}{said}" for said in why["sentences"]]
    sentences += [f"{name}: {said}" for name, own in models.items() for said in own["sentences"]]
    return {**why, "models": models, "sentences": sentences}


def _note_sharing(
    search: SharedFleetSearch, best: SharedFound | None, apart: Mapping[str, Sequence[Found]], reporter: Reporter
) -> None:
    fleets = {name: found[0].tried for name, found in apart.items()} if best is None else best.tried.of_models
    note_sharing({name: (search.alone[name], fleet) for name, fleet in fleets.items()}, reporter)


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
            "interference": named_interference(entry.interference),
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
