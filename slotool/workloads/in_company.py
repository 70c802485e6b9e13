"""LCAO, ACLO and the full network, alone and beside busy copies on the same core (the paper's Figs. 4–6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slotool.elastic.model import ElasticModel
from slotool.elastic.queries import Queries
from slotool.machine import bound_to, cores_by_preference
from slotool.profiling.company import Company, pauses_s
from slotool.scheduling import CoRunnerEstimator, LatencyProfile, Lcao
from slotool.scheduling.space import PLANNING_QUANTILE
from slotool.tables import LatencyTable
from slotool.workloads import back_to_back
from slotool.workloads.interference import FULL_NETWORK, LEAST, InterferenceTable

# Spent on finding the time slice, at most.
MOST_PAUSES_S = 1.0
# Deadlines swept by default: so many from the cheapest point's median to the full network's p95, and beyond it.
DEADLINES_WITHIN, DEADLINES_BEYOND = 8, (1.5, 2.5)
DEADLINE_QUANTILE = 0.95


@dataclass(frozen=True)
class Settings:
    """``besides``: numbers of busy copies; 0 is always among them, for it is what company is held against.

    ``quantile`` of T(k, β) is planned with. ``seconds`` that each way of answering gets at each number of copies.
    ``deadlines_us``, ``targets`` (accuracy): what to sweep; no deadlines: a range found from T(k, 0), or without
    ``sweep`` the uninterfered full network's p95. ``estimate``: β is told from recent latencies instead of given.
    """

    besides: Sequence[int] = (0, 1)
    quantile: float = PLANNING_QUANTILE
    seconds: float = 1.0
    deadlines_us: Sequence[float] = ()
    targets: Sequence[float] = ()
    sweep: bool = True
    estimate: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """``table``: every way's answers; ``latency``: T(k, β) that LCAO planned with; ``deadline_us``: the uninterfered
    full network's p95; ``pauses_s``: by number of copies, how long others had the core at a time."""

    table: InterferenceTable
    latency: LatencyTable
    deadline_us: float
    pauses_s: Mapping[int, np.ndarray]


def measure(
    model: ElasticModel,
    data: Any,
    request: Mapping[str, Any],
    settings: Settings,
    *,
    latency: LatencyTable | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Answer ``data.test`` by every strategy, alone and in company, on one core.

    T(k, β) is measured on ``data.validation`` unless ``latency`` gives it. ``request``: what the copies open (see
    ``ElasticBackend.open``). Raises ``WorkerError`` when the company breaks up, ``InputError`` as ``Queries`` does.
    """
    core, besides = cores_by_preference()[0], sorted({0, *settings.besides})
    known, asked = Queries(model, data.validation), Queries(model, data.test)
    tables: list[LatencyTable] = [] if latency is None else [latency]

    def profiled(beside: int, company: Company) -> LatencyTable:
        progress(f"beside {beside}: T(k, β)")
        return back_to_back.profile_rows(known, settings.seconds, beside, seed=settings.seed, after_turn=company.check)

    if latency is None and settings.estimate:
        # β can be told only where every one that may be is known.
        for beside in besides:
            with Company(request, beside, core) as company, bound_to([core]):
                tables.append(profiled(beside, company))
    complete = bool(tables)
    rows: list[dict[str, Any]] = []
    pauses: dict[int, np.ndarray] = {}
    for beside in besides:
        with Company(request, beside, core) as company, bound_to([core]):
            progress(f"beside {beside}: what the system hands out")
            pauses[beside] = pauses_s(min(MOST_PAUSES_S, 5 * settings.seconds))
            if not complete:
                tables.append(profiled(beside, company))
            profile = LatencyProfile.of_table(model.name, model.points, _joined(tables), quantile=settings.quantile)
            deadline_us = _quantile_us(model, _joined(tables), DEADLINE_QUANTILE)
            progress(f"beside {beside}: deadlines and accuracy targets")
            ways = _ways(asked, profile, _deadlines(model, _joined(tables), deadline_us, settings), beside, settings)
            back_to_back.run(ways, asked, settings.seconds, seed=settings.seed, after_turn=company.check)
            rows += [way.row(asked, beside) for way in ways]
    table = InterferenceTable(pd.DataFrame(rows), {**(provenance or {}), "deadline_us": deadline_us})
    return Measured(table, _joined(tables), deadline_us, pauses)


def _ways(
    queries: Queries, profile: LatencyProfile, deadlines_us: Sequence[float], beside: int, settings: Settings
) -> list[back_to_back.Way]:
    model, chooser = queries.model, Lcao(profile)
    answers = {point: queries.answer(point) for point in model.points}
    state = CoRunnerEstimator(profile.mean_us) if settings.estimate else beside
    return [
        back_to_back.fixed(FULL_NETWORK, model.full, queries),
        back_to_back.fixed(LEAST, model.points[0], queries),
        *(back_to_back.lcao(chooser, deadline_us, answers, state) for deadline_us in deadlines_us),
        *(back_to_back.aclo(target, queries) for target in settings.targets),
    ]


def _deadlines(model: ElasticModel, table: LatencyTable, full_us: float, settings: Settings) -> Sequence[float]:
    """Those asked for; else from where the cheapest point is in time every second time, to where the full network
    always is."""
    if settings.deadlines_us or not settings.sweep:
        return settings.deadlines_us or [full_us]
    least_us = min(1e6 * table.median_s(model.name, model.points[0], co_runners=""), 0.9 * full_us)
    within = np.geomspace(least_us, full_us, DEADLINES_WITHIN)
    return [*within.tolist(), *(beyond * full_us for beyond in DEADLINES_BEYOND)]


def _quantile_us(model: ElasticModel, table: LatencyTable, quantile: float) -> float:
    alone = LatencyProfile.of_table(model.name, model.points, table.where(co_runners=""), quantile=quantile)
    return alone.beside(0)[model.full]


def _joined(tables: Sequence[LatencyTable]) -> LatencyTable:
    return LatencyTable(pd.concat([table.rows for table in tables], ignore_index=True), tables[0].provenance)
