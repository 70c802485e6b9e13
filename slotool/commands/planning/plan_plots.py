"""Plots of ``slotool.plan``: what fleets around the plan have in time and right, by their cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.planning.plan_models import file_part
from slotool.commands.progress import Reporter

if TYPE_CHECKING:
    from slotool.planning.fleet import Fleet, Found
    from slotool.planning.planner import Planner
    from slotool.reports.figure import Figure

# Of each model, besides the plan's.
MAX_POLICIES = 2


def draw(
    services: Sequence[tuple[Planner, Fleet]], apart: Mapping[str, Sequence[Found]], folder: Path, reporter: Reporter
) -> list[Path]:
    """Draw of each model fleets around the plan, and the promise. ``services``: the models that share workers, and
    their workers; ``apart``: fleets of each model by itself."""
    from slotool.reports.plots import save_plots
    from slotool.reports.series.fleets import fleet_figures

    figures: list[Figure] = []
    with reporter.progress("fleets around the plan") as steps:
        for planner, chosen in services:
            for name, pool in chosen.pools.items():
                rows = []
                for fleet in _around(planner, chosen, name, apart[name]):
                    verdict = asdict(fleet.verdicts[name])
                    rows.append({"policy": fleet.pools[name].policy, "cost": fleet.cost, **verdict})
                    steps.advance()
                promise = planner.promises[name]
                promised = {
                    "attainment": promise.attainment,
                    "effective_accuracy": promise.attainment * promise.accuracy,
                }
                of = file_part(name, list(apart).index(name)) if name else ""
                subject = name or pool.worker.profile.subject
                figures += fleet_figures(subject, rows, chosen.cost, promised, of=of)
    return save_plots(figures, folder)


def _around(planner: Planner, chosen: Fleet, name: str, found: Sequence[Found]) -> Iterator[Fleet]:
    """Fleets from half the size to twice it, under the plan's policies and, where those of the other models stay, under
    others of this model that do well."""
    from slotool.planning.fleet_search import sizes_around

    pool = chosen.pools[name]
    alike = [each.tried.pool for each in found if each.tried.pool.worker.name == pool.worker.name]
    others: list[Any] = [each for each in alike if each.policy != pool.policy and not each.policy.startswith("fixed")]
    for own in [pool, *others[:MAX_POLICIES]]:
        for replicas in sizes_around(chosen.replicas):
            yield planner.served({**chosen.pools, name: own}, replicas, 1)
