"""LCAO, ACLO and the full network, solo and co-located with busy copies on one core or GPU (the paper's Figs. 4–6).

The deadline is the p95 of the full network without interference; accuracy is lost against its answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.colocation import back_to_back
from benchmarks.colocation.busy_copies import BusyCopies, pauses_s
from benchmarks.colocation.chooser import Lcao
from benchmarks.colocation.table import FULL_NETWORK, LEAST, InterferenceTable
from slotool import devices
from slotool.elastic.model import ElasticModel
from slotool.elastic.queries import Queries
from slotool.process import bound_to, cores_by_preference
from slotool.scheduling import CoRunnerEstimator, LatencyProfile
from slotool.scheduling.space import PLANNING_QUANTILE
from slotool.tables import LatencyTable, OperatingPoint

# Spent on finding the time slice, at most.
MAX_PAUSES_S = 1.0
# Deadlines swept by default: so many from the cheapest point's median to the full network's p95, and beyond it.
DEADLINES_WITHIN, DEADLINES_BEYOND = 8, (1.5, 2.5)
DEADLINE_QUANTILE = 0.95


@dataclass(frozen=True)
class CoLocationSettings:
    """``co_runner_counts``: numbers of busy copies; 0, the solo reference, is always added.

    ``quantile`` of T(k, β) is planned with. ``seconds`` of each strategy at each number of copies.
    ``deadlines_us``, ``targets`` (accuracy): what to sweep; no deadlines: a range found from T(k, 0), or without
    ``sweep`` the uninterfered full network's p95. ``estimate``: β is estimated from recent latencies instead of given.
    """

    co_runner_counts: Sequence[int] = (0, 1)
    quantile: float = PLANNING_QUANTILE
    seconds: float = 1.0
    deadlines_us: Sequence[float] = ()
    targets: Sequence[float] = ()
    sweep: bool = True
    estimate: bool = False
    seed: int = 0


@dataclass(frozen=True)
class CoLocationResult:
    """Result of a co-location experiment.

    ``table``: the answers of every strategy; ``latency``: T(k, β) that LCAO planned with; ``deadline_us``: p95 of the
    full network alone; ``pauses_s``: by number of copies, how long co-runners held the core at a time.
    """

    table: InterferenceTable
    latency: LatencyTable
    deadline_us: float
    pauses_s: Mapping[int, np.ndarray]


def measure(
    model: ElasticModel,
    data: Any,
    request: Mapping[str, Any],
    settings: CoLocationSettings,
    *,
    latency: LatencyTable | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> CoLocationResult:
    """Answer ``data.test`` by every strategy, solo and co-located, on one core.

    T(k, β) is measured on ``data.validation`` unless ``latency`` gives it. ``request``: what the copies open (see
    ``ElasticBackend.open``). Raises ``WorkerError`` when a busy copy dies, ``InputError`` as ``Queries`` does.
    """
    run = _Run(model, data, request, settings, progress, [] if latency is None else [latency])
    co_runner_counts = sorted({0, *settings.co_runner_counts})
    profiled = latency is not None
    if not profiled and settings.estimate:
        # β can be estimated only where the latencies at every β are known.
        for co_runners in co_runner_counts:
            with run.co_located(co_runners) as copies:
                run.profile(co_runners, copies)
        profiled = True
    rows: list[dict[str, Any]] = []
    pauses: dict[int, np.ndarray] = {}
    for co_runners in co_runner_counts:
        with run.co_located(co_runners) as copies:
            progress(f"{co_runners} co-runners: the time slices of the system")
            pauses[co_runners] = pauses_s(min(MAX_PAUSES_S, 5 * settings.seconds))
            if not profiled:
                run.profile(co_runners, copies)
            rows += run.answer(co_runners, copies)
    deadline_us = run.full_us()
    table = InterferenceTable(pd.DataFrame(rows), {**(provenance or {}), "deadline_us": deadline_us})
    return CoLocationResult(table, run.latency, deadline_us, pauses)


@dataclass(frozen=True)
class _Run:
    """``tables``: T(k, β) as far as it is known by now."""

    model: ElasticModel
    data: Any
    request: Mapping[str, Any]
    settings: CoLocationSettings
    progress: Callable[[str], None]
    tables: list[LatencyTable]

    @cached_property
    def asked(self) -> Queries:
        return Queries(self.model, self.data.test)

    @property
    def latency(self) -> LatencyTable:
        rows = pd.concat([table.rows for table in self.tables], ignore_index=True)
        return LatencyTable(rows, self.tables[0].provenance)

    @contextmanager
    def co_located(self, co_runners: int) -> Iterator[BusyCopies]:
        core, device = cores_by_preference()[0], self.model.device
        on: dict[str, Any] = {"device": device} if devices.is_cuda(device) else {}
        with BusyCopies(self.request, co_runners, core, **on) as copies, bound_to([core]):
            yield copies

    def profile(self, co_runners: int, copies: BusyCopies) -> None:
        """Measure T(k, β) of all points."""
        self.progress(f"{co_runners} co-runners: T(k, β)")
        known, seconds, seed = Queries(self.model, self.data.validation), self.settings.seconds, self.settings.seed
        self.tables.append(back_to_back.profile_rows(known, seconds, co_runners, seed=seed, after_turn=copies.check))

    def full_us(self) -> float:
        """Return the uninterfered full network's p95."""
        alone, full = self.latency.where(co_runners=""), self.model.full
        profile = LatencyProfile.of_table(self.model.name, [full], alone, quantile=DEADLINE_QUANTILE)
        return profile.planned_us[0][full]

    def answer(self, co_runners: int, copies: BusyCopies) -> list[dict[str, Any]]:
        """Return the rows of an ``InterferenceTable``: all strategies, interleaved."""
        self.progress(f"{co_runners} co-runners: deadlines and accuracy targets")
        model, settings, options = self.model, self.settings, self.asked
        profile = LatencyProfile.of_table(model.name, model.points, self.latency, quantile=settings.quantile)
        answers, chooser = {point: options.answer(point) for point in model.points}, Lcao(profile)
        state = CoRunnerEstimator(profile.mean_us) if settings.estimate else co_runners
        cheapest = _cheapest(model, profile)
        deadlines_us = self._deadlines(1e6 * self.latency.median_s(model.name, cheapest, co_runners=""))
        strategies = [
            back_to_back.fixed(FULL_NETWORK, model.full, options),
            back_to_back.fixed(LEAST, cheapest, options),
            *(back_to_back.lcao(chooser, deadline_us, answers, state) for deadline_us in deadlines_us),
            *(back_to_back.aclo(target, options) for target in settings.targets),
        ]
        back_to_back.run(strategies, options, settings.seconds, seed=settings.seed, after_turn=copies.check)
        return [strategy.row(options, co_runners) for strategy in strategies]

    def _deadlines(self, min_us: float) -> Sequence[float]:
        """Return the requested deadlines, or a range from half of cheapest answers in time to all full ones in time."""
        settings, full_us = self.settings, self.full_us()
        if settings.deadlines_us or not settings.sweep:
            return settings.deadlines_us or [full_us]
        within = np.geomspace(min(min_us, 0.9 * full_us), full_us, DEADLINES_WITHIN)
        return [*within.tolist(), *(beyond * full_us for beyond in DEADLINES_BEYOND)]


def _cheapest(model: ElasticModel, profile: LatencyProfile) -> OperatingPoint:
    """Return the first point, or the full one where that is faster."""
    alone = profile.planned_us[0]
    return min((model.points[0], model.full), key=lambda point: alone.get(point, math.inf))
