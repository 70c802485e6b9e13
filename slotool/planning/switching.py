"""Search for a switching plan: load tests of real servers, one per operating point and ⟨replicas, threads⟩."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from slotool import devices
from slotool.data import DataSource
from slotool.data.dataset import Split
from slotool.elastic import ElasticModel, load_model
from slotool.elastic.queries import dataset_of
from slotool.machine import machine_id, usable_cores
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
from slotool.scheduling.batching import ControlGrid, MinCost
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads import Poisson
from slotool.workloads.client.channels import TargetServer, ask_first_model
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LoadPlan, LocalRun

# Load tests that finding a point's rate takes, about, and seconds until a server is warm.
TESTS_PER_POINT, START_S = 10, 8.0
# A load test is run so often at most while the client is late: a hundredth of requests by this share of the deadline.
MAX_TRIES, LATE_SHARE = 3, 0.25
# Start of the search for a point's rate: half of its rate at the best batch size, or what any front end can do.
FIRST_SHARE, FIRST_MAX_PER_S = 0.5, 500.0
# Seconds until an answer counts as missing.
ANSWER_WITHIN_S = 10.0

Configuration = tuple[int, int]


@dataclass(frozen=True)
class PlanSearch:
    """Options of a plan, and how it is measured.

    ``latency``: the artifact's latency table, over batch sizes where it may batch. ``test_s``: duration of each load
    test. ``configurations``: the ⟨replicas, threads⟩ to try. ``data``: the data set whose test examples are sent.
    ``by``: what the plan's rates go by (``SwitchingPlan``). ``device``: that the servers compute on, of whose latency
    rows the search knows.
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
    device: str = devices.CPU

    @cached_property
    def model(self) -> ElasticModel:
        return load_model(str(self.artifact))

    @cached_property
    def grid(self) -> ControlGrid:
        """Points to test. Raises ``InputError`` for a deadline that none can keep."""
        tables = LatencyTable.load(self.latency), OutcomeTable.load(self.outcomes)
        space = ControlSpace.of_tables(
            self.model.name, self.model.points, *tables, devices=(self.device,), co_runners="", replicas=1
        )
        grid = ControlGrid(space)
        grid.require_deadline(self.deadline_s * 1e6)
        return grid

    @property
    def _accuracy(self) -> dict[str, float]:
        """Accuracy of each point, by key."""
        return {point.key: float(each) for point, each in zip(self.grid.points, self.grid.accuracy, strict=True)}

    @property
    def load_tests(self) -> int:
        """About how many are needed."""
        return len(self.configurations) * len(self.grid.points) * TESTS_PER_POINT

    @property
    def expected_s(self) -> float:
        """About how long the search takes."""
        return self.load_tests * (self.test_s + 1.0) + len(self.configurations) * START_S

    def run(self, advance: Callable[[], None] = lambda: None) -> list[SwitchingPlan]:
        """Return one measured plan per configuration; ``advance`` is called after each point of one."""
        split = dataset_of(self.model, self.data, needs_labels=False).test
        return [self._plan(configuration, split, advance) for configuration in self.configurations]

    def _plan(self, configuration: Configuration, split: Split, advance: Callable[[], None]) -> SwitchingPlan:
        replicas, threads = configuration
        accuracy = self._accuracy
        rates: dict[str, float] = {}
        loads: dict[str, list[LoadTest]] = {}
        with self._served(configuration, split) as measure:
            # Ascending in accuracy, so that all less accurate points have been tested when it is a point's turn.
            for row, point in enumerate(self.grid.points):
                first_per_s = min(FIRST_SHARE * replicas * float(self.grid.best_rate_per_s[row]), FIRST_MAX_PER_S)
                is_good = keeps_deadline(self.deadline_s)
                if loads and self.by == EFFECTIVE_ACCURACY:
                    is_good = is_most_effective(accuracy, loads, measure)
                confirmed = _confirmed(partial(measure, point.key), is_good)
                rates[point.key], loads[point.key] = greatest_rate(confirmed, first_per_s, is_good)
                advance()
        tried = tuple(load for tests in loads.values() for load in tests)
        plan = SwitchingPlan(self.model.name, self.deadline_s, replicas, threads, rates, accuracy, tried, machine_id())
        return replace(plan, by=self.by, device=self.device)

    @contextmanager
    def _served(self, configuration: Configuration, split: Split) -> Iterator[Callable[[str, float], LoadTest]]:
        """Start a server of all points and yield a function that measures one, by key, at a rate.

        A request names its point by accuracy: the least accurate sufficient point answers. Of points of equal accuracy
        the first is measured.
        """
        replicas, threads = configuration
        accuracy = self._accuracy
        tables = ["--latency", str(self.latency), "--outcomes", str(self.outcomes), "--policy", MinCost.name]
        workers = ["--engine", "local", "--replicas", str(replicas), "--threads", str(threads)]
        workers += ["--device", self.device] if devices.is_cuda(self.device) else []
        with server_process([str(self.artifact), *tables, *workers]) as url:
            name = ask_first_model(url, "infer")

            def measure(point: str, rate_per_s: float) -> LoadTest:
                terms = Terms(self.deadline_s, min_accuracy=accuracy[point])
                target = TargetServer(url, "infer", name, terms, ANSWER_WITHIN_S).described()
                load = LoadPlan.draw(Poisson(rate_per_s), self.test_s, split, self.seed).loaded()
                tests: list[LoadTest] = []
                while len(tests) < MAX_TRIES:
                    run = LocalRun(load, target)
                    run.drive()
                    log = run.log()
                    share, p99_s = float(log.in_time.sum() / len(load)), log.tail_of_all_s(0.99)
                    tests.append(LoadTest(point, replicas, threads, rate_per_s, p99_s, share))
                    # A test whose client was late says little of the server.
                    is_late = float(np.quantile(log.send_delay_s, 0.99)) > LATE_SHARE * self.deadline_s
                    if len(log) == len(load) and not is_late:
                        break
                return max(tests, key=lambda load: load.attainment)

            yield measure


def _confirmed(
    measure: Callable[[float], LoadTest], is_good: Callable[[LoadTest], bool]
) -> Callable[[float], LoadTest]:
    """Return ``measure``, repeated for a bad load test, of which the better one counts.

    A disturbance of a moment would rule a point out for all higher rates.
    """

    def confirmed(rate_per_s: float) -> LoadTest:
        load = measure(rate_per_s)
        return load if is_good(load) else max(load, measure(rate_per_s), key=lambda each: each.attainment)

    return confirmed


def possible_configurations() -> tuple[Configuration, ...]:
    """Return ⟨replicas, threads⟩, both powers of two, that the cores given to this process allow."""
    cores = usable_cores()
    powers = [2**i for i in range(cores.bit_length()) if 2**i <= cores]
    return tuple((r, t) for r in powers for t in powers if r * t <= cores)
