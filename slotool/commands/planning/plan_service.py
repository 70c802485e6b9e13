"""Service files of ``slotool.plan``: of one model, of several that share workers, or of each model apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.planning.plan_interference import with_raised_table
from slotool.commands.planning.plan_models import file_part
from slotool.commands.progress import Reporter

if TYPE_CHECKING:
    from slotool.commands.planning.plan_models import PlannedModel
    from slotool.planning.fleet import Fleet, Pool
    from slotool.planning.planner import Planner
    from slotool.planning.scaling import ScalingLimits


def write_service(
    out: Path,
    entries: Mapping[str, PlannedModel],
    planner: Planner,
    fleet: Fleet,
    rules: Path | None,
    reporter: Reporter,
) -> dict[str, Any] | None:
    """Write the service file of ``fleet``. Return the limits of workers that come with the load, None without."""
    from slotool.atomic import whole_file
    from slotool.planning.service_text import cluster_remark

    limits = _limits(planner, fleet)
    text = service_of(out, entries, planner, fleet, raised_pools(out, planner, fleet), rules, limits)
    if remark := cluster_remark(fleet.pool):
        reporter.warn(remark)
    with whole_file(out) as file:
        file.write_text(text)
    return None if limits is None else _document(limits)


def write_services_apart(
    out: Path, entries: Mapping[str, PlannedModel], planner: Planner, fleets: Mapping[str, Fleet], reporter: Reporter
) -> tuple[list[Path], dict[str, Any] | None]:
    """Write a service file for each model, beside ``out``. Return those written, and the limits of workers that come
    with the load, under ``models``, None where all workers of each are there always."""
    written, models = [], {}
    for number, (name, fleet) in enumerate(fleets.items()):
        path = out.with_name(f"{out.stem}-{file_part(name, number)}{out.suffix}")
        alone = {"": entries[name]}
        limits = write_service(path, alone, planner.only(name), fleet, None, reporter)
        written.append(path)
        if limits is not None:
            models[name] = limits
    sentence = "; ".join(f"{name}: {own['sentence']}" for name, own in models.items())
    return written, {"models": models, "sentence": sentence} if models else None


def service_of(
    out: Path,
    entries: Mapping[str, PlannedModel],
    planner: Planner,
    fleet: Fleet,
    pools: Mapping[str, Pool],
    rules: Path | None = None,
    limits: ScalingLimits | None = None,
) -> str:
    """Return the text of a service file at ``out`` of the workers of ``fleet``, with the policies of ``pools``."""
    from slotool.planning.service_text import ServedModel, service_text

    models = []
    for (name, demand), entry in zip(planner.demands.items(), entries.values(), strict=True):
        pool = pools[name]
        terms = {} if pool.policy.startswith("fixed@") else planner.alone[name].terms(pool)
        files = {"artifact": entry.artifact, "outcomes": entry.outcomes, "rules": rules}
        paths = {key: Path(str(path)) for key, path in files.items() if path is not None}
        models.append(ServedModel(name if len(entries) > 1 else "", paths, pool, demand.promise, terms))
    return service_text(models, out.parent, planner.max_queue(fleet.pools), limits)


def raised_pools(out: Path, planner: Planner, fleet: Fleet) -> dict[str, Pool]:
    """Return of each model its pool, with latency tables beside ``out`` where workers share machines."""
    found = {}
    for number, (name, pool) in enumerate(fleet.pools.items()):
        part = f"-{file_part(name, number)}" if len(planner.demands) > 1 else ""
        path = out.with_name(f"{out.stem}{part}-latency.parquet")
        found[name] = with_raised_table(planner.alone[name], pool, path)
    return found


def _limits(planner: Planner, fleet: Fleet) -> ScalingLimits | None:
    """Limits for worker processes of this machine; None where all workers are to be there always."""
    from slotool.planning.fleet_search import MAX_CONFIRMED
    from slotool.planning.scaling import limits_of
    from slotool.planning.service_text import is_gpu, runs_here

    # Each worker on a GPU has one of its own: there are no others to come.
    if is_gpu(fleet.pool.worker) or not runs_here(fleet.pool) or planner.requests > MAX_CONFIRMED:
        return None
    return limits_of(planner, fleet)


def _document(limits: ScalingLimits) -> dict[str, Any]:
    """Return limits as a document with a sentence; ``verdicts`` by model, of a single one ``verdict``."""
    document = asdict(limits)
    verdicts = document.pop("verdicts")
    own = {"verdicts": verdicts} if len(verdicts) > 1 else {"verdict": next(iter(verdicts.values()))}
    return {**document, **own, "sentence": str(limits)}
