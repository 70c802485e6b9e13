"""Search for a switching plan: load tests of real servers, one per operating point and ⟨replicas, threads⟩."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from slotool.data import DataSource
from slotool.data.dataset import Split
from slotool.elastic import ElasticModel, load_model
from slotool.elastic.queries import dataset_of
from slotool.machine import machine_id
from slotool.planning.server_process import server_process
from slotool.rules.switching import (
    EFFECTIVE_ACCURACY,
    P99,
    LoadTest,
    SwitchingPlan,
    greatest_rate,
    is_most_effective,
    keeps_deadline,
)
from slotool.scheduling import ControlSpace
from slotool.scheduling.batching import ControlGrid
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.workloads import Poisson
from slotool.workloads.channels import TargetServer, ask_first_model
from slotool.workloads.client import LoadPlan, LocalRun
from slotool.workloads.endpoint import Terms

# Load tests that finding a point's rate takes, about, and seconds until a server is warm.
TESTS_PER_POINT, START_S = 7, 8.0
# Where the search for a point's rate begins: half of its rate at the best batch size, or what any front end can do.
FIRST_SHARE, FIRST_MAX_PER_S = 0.5, 500.0
# How long the client waits for an answer before it counts as none.
ANSWER_WITHIN_S = 10.0

Configuration = tuple[int, int]


@dataclass(frozen=True)
class PlanSearch:
    """What to make a plan for and how to measure it.

    ``latency``: the artifact's latency table, over batch sizes where it may batch. ``test_s``: duration of each load
    test. ``configurations``: the ⟨replicas, threads⟩ to try. ``data``: the data set whose test examples are sent.
    ``by``: what the plan's rates go by (``SwitchingPlan``).
    """

    artifact: Path
    outcomes: Path
    latency: Path
    deadline_s: float
    test_s: float
    configurations: tuple[Configuration, ...]
    data: DataSource
    seed: int
    by: str = P99

    @cached_property
    def _model(self) -> tuple[ElasticModel, ControlGrid]:
        """Raises ``InputError`` for a deadline that no point can keep."""
        model = load_model(str(self.artifact))
        tables = LatencyTable.load(self.latency), OutcomeTable.load(self.outcomes)
        grid = ControlGrid(ControlSpace.of_tables(model.name, model.points, *tables, co_runners="", replicas=1))
        grid.require_deadline(self.deadline_s * 1e6)
        return model, grid

    @property
    def subject(self) -> str:
        return self._model[0].name

    @property
    def points(self) -> int:
        return len(self._model[1].points)

    @property
    def load_tests(self) -> int:
        """About how many are needed."""
        return len(self.configurations) * self.points * TESTS_PER_POINT

    @property
    def expected_s(self) -> float:
        """About how long the search takes."""
        return self.load_tests * (self.test_s + 1.0) + len(self.configurations) * self.points * START_S

    def run(self, advance: Callable[[], None] = lambda: None) -> list[SwitchingPlan]:
        """One plan per configuration, measured; ``advance`` is called after each load test."""
        split = dataset_of(self._model[0], self.data, needs_labels=False).test
        return [self._plan(configuration, split, advance) for configuration in self.configurations]

    def _plan(self, configuration: Configuration, split: Split, advance: Callable[[], None]) -> SwitchingPlan:
        model, grid = self._model
        replicas, threads = configuration
        accuracy = {point.key: float(a) for point, a in zip(grid.points, grid.accuracy, strict=True)}
        rates: dict[str, float] = {}
        loads: dict[str, list[LoadTest]] = {}
        # Ascending in accuracy, so that all less accurate points have been tested when it is a point's turn.
        for row, point in enumerate(grid.points):
            first_per_s = min(FIRST_SHARE * replicas * float(grid.best_rate_per_s[row]), FIRST_MAX_PER_S)
            is_good = keeps_deadline(self.deadline_s)
            if loads and self.by == EFFECTIVE_ACCURACY:
                is_good = is_most_effective(accuracy, loads)
            with self._served(point, configuration, split, advance) as measure:
                rates[point.key], loads[point.key] = greatest_rate(measure, first_per_s, is_good)
        tried = tuple(load for tests in loads.values() for load in tests)
        plan = SwitchingPlan(model.name, self.deadline_s, replicas, threads, rates, accuracy, tried, machine_id())
        return replace(plan, by=self.by)

    @contextmanager
    def _served(
        self, point: OperatingPoint, configuration: Configuration, split: Split, advance: Callable[[], None]
    ) -> Iterator[Callable[[float], LoadTest]]:
        """A server that answers at ``point`` alone, and a function that measures it at a rate."""
        replicas, threads = configuration
        tables = ["--latency", str(self.latency), "--outcomes", str(self.outcomes), "--policy", f"fixed@{point.key}"]
        workers = ["--engine", "local", "--replicas", str(replicas), "--threads", str(threads)]
        with server_process([str(self.artifact), *tables, *workers]) as url:
            terms = Terms(self.deadline_s, None, None, None)
            target = TargetServer(url, "infer", ask_first_model(url, "infer"), terms, ANSWER_WITHIN_S).described()

            def measure(rate_per_s: float) -> LoadTest:
                run = LocalRun(LoadPlan.draw(Poisson(rate_per_s), self.test_s, split, self.seed).loaded(), target)
                run.drive()
                advance()
                log = run.log()
                return LoadTest(
                    point.key, replicas, threads, rate_per_s, log.tail_of_all_s(0.99), float(log.in_time.mean())
                )

            yield measure


def possible_configurations() -> tuple[Configuration, ...]:
    """⟨replicas, threads⟩, both powers of two, that the cores given to this process allow."""
    cores = len(os.sched_getaffinity(0))
    powers = [2**i for i in range(cores.bit_length()) if 2**i <= cores]
    return tuple((r, t) for r in powers for t in powers if r * t <= cores)
