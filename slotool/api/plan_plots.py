"""Of ``slotool.plan``, of one model or several: what fleets around the plan have in time and right, by their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.plan_models import file_part
from slotool.api.progress import Reporter

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.fleet_search import FleetSearch
    from slotool.planning.planner import Planner
    from slotool.planning.promise import Promise
    from slotool.reports.figure import Figure

# Of a model that shares its workers, besides the plan's.
MAX_POLICIES = 2


def draw_apart(planner: Planner, apart: Mapping[str, Sequence[Found]], folder: Path, reporter: Reporter) -> list[Path]:
    """Draw of each model fleets around its own best one, and the promise."""
    from slotool.reports.plots import save_plots
    from slotool.reports.series.fleets import fleet_figures

    figures: list[Figure] = []
    for number, (name, found) in enumerate(apart.items()):
        chosen, search = found[0].tried, planner.alone[name]
        rows = _rows(search, chosen, planner.demands[name].policies, reporter)
        title, of = name or chosen.pool.worker.profile.subject, file_part(name, number) if name else ""
        figures += fleet_figures(title, rows, chosen.cost, _promised(search.promise), of=of)
    return save_plots(figures, folder)


def draw_shared(
    planner: Planner,
    best: Found,
    apart: Mapping[str, Sequence[Found]],
    folder: Path,
    reporter: Reporter,
) -> list[Path]:
    """Of each model: shared fleets around the plan, under its policies and, where those of the other models stay, under
    others of its own that do well; and the promise."""
    from slotool.planning.fleet_search import sizes_around
    from slotool.reports.plots import save_plots
    from slotool.reports.series.fleets import fleet_figures

    chosen = best.tried
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen.pools}
    with reporter.progress("fleets around the plan") as steps:
        for replicas in sizes_around(chosen.replicas):
            fleet = planner.served(chosen.pools, replicas, 1)
            for name, verdict in fleet.verdicts.items():
                rows[name].append({"policy": chosen.pools[name].policy, "cost": fleet.cost, **asdict(verdict)})
            steps.advance()
        for name, pool in chosen.pools.items():
            own = [found.tried.pool for found in apart[name] if found.tried.pool.worker.name == pool.worker.name]
            for other in [each for each in own if each.policy != pool.policy][:MAX_POLICIES]:
                for replicas in sizes_around(chosen.replicas):
                    fleet = planner.served({**chosen.pools, name: other}, replicas, 1)
                    rows[name].append({"policy": other.policy, "cost": fleet.cost, **asdict(fleet.verdicts[name])})
                    steps.advance()
    figures: list[Figure] = []
    for number, (name, own_rows) in enumerate(rows.items()):
        promised = _promised(planner.promises[name])
        figures += fleet_figures(name, own_rows, chosen.cost, promised, of=file_part(name, number))
    return save_plots(figures, folder)


def _rows(search: FleetSearch, chosen: Fleet, policies: Sequence[str], reporter: Reporter) -> list[dict[str, Any]]:
    from slotool.planning.fleet_search import around

    pool, rows = chosen.pool, []
    others = [name for name in search.policies(pool.worker, policies) if not name.startswith("fixed")]
    with reporter.progress("fleets around the plan") as steps:
        for fleet in around(search, chosen, list(dict.fromkeys([pool.policy, *others]))):
            rows.append({"policy": fleet.pool.policy, "cost": fleet.cost, **asdict(fleet.verdict)})
            steps.advance()
    return rows


def _promised(promise: Promise) -> dict[str, float]:
    """Of answers in time at least so many are right."""
    return {"attainment": promise.attainment, "effective_accuracy": promise.attainment * promise.accuracy}
