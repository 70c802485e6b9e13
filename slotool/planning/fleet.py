"""The cheapest fleet that holds a promise: workers of each type, under each policy, on a virtual clock.

For a type and a policy the least number of workers is searched by doubling and bisection, as more workers never serve
less. What is found is confirmed with latencies drawn anew, since the search took the least that did well once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.planning.promise import Judge, Promise, Verdict
from slotool.scheduling.batching import BatchingPolicy, FixedBatching, Profile, make_policy
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.tables import OutcomeTable

POLICIES = ("value-iteration", "slackfit", "maxacc", "fixed")
# A search looks at the busiest so many requests of longer traffic; what it finds is confirmed on all of it.
MAX_SEARCHED = 200_000
# Of the fleets around a chosen one.
SIZES = 8


@dataclass(frozen=True)
class WorkerType:
    """``profile``: latencies of the operating points on one worker of ``threads`` threads; ``price``: of one, per
    hour or in any other unit. ``source``: the file of the latencies, or the table itself."""

    name: str
    profile: Profile
    threads: int
    price: float
    source: Any = None


@dataclass(frozen=True)
class Fleet:
    """``replicas`` workers of one type under one policy, and what the simulation says of them."""

    worker: WorkerType
    policy: str
    replicas: int
    verdict: Verdict

    @property
    def cost(self) -> float:
        return self.replicas * self.worker.price

    @property
    def best_rate_per_s(self) -> float:
        """What it can answer at most, at its fastest point and best batch size."""
        return float(self.replicas * self.worker.profile.grid.best_rate_per_s.max())


@dataclass(frozen=True)
class Found:
    """``tried``: the smallest fleet of its type and policy that ``holds`` the promise; where none does, the largest
    one tried. ``fewer``: one of fewer workers, by one where there are few, that does not."""

    tried: Fleet
    holds: bool
    fewer: Fleet | None = None


class FleetSearch:
    """Of ``arrival_s`` (float64 [n], ascending), under ``promise``.

    ``reserve_us``: of each deadline, kept for the front end and the network. ``max_workers``: of a fleet. ``seed``: of
    the latencies drawn. Raises ``InputError`` for traffic that is too short to show the promise.
    """

    def __init__(
        self,
        arrival_s: np.ndarray,
        promise: Promise,
        *,
        outcomes: OutcomeTable | None = None,
        reserve_us: float = 0.0,
        max_workers: int = 1_000,
        seed: int = 0,
    ):
        promise.require_enough(len(arrival_s))
        if not promise.deadline_us > reserve_us:
            raise InputError(
                f"a deadline of {promise.deadline_us / 1e3:g} ms leaves nothing for computing: {reserve_us / 1e3:g} ms "
                "are kept for the network and the front end"
            )
        self.promise, self.max_workers, self.seed = promise, max_workers, seed
        self._arrival_s, self._outcomes = np.asarray(arrival_s, dtype=np.float64), outcomes
        self._deadline_us = promise.deadline_us - reserve_us

    @property
    def requests(self) -> int:
        """That arrive."""
        return len(self._arrival_s)

    @cached_property
    def _busiest_s(self) -> np.ndarray:
        """The shortest stretch with ``MAX_SEARCHED`` requests, from 0; all of shorter traffic."""
        times_s = self._arrival_s
        if len(times_s) <= MAX_SEARCHED:
            return times_s
        first = int(np.argmin(times_s[MAX_SEARCHED - 1 :] - times_s[: len(times_s) - MAX_SEARCHED + 1]))
        busiest: np.ndarray = times_s[first : first + MAX_SEARCHED] - times_s[first]
        return busiest

    def policies(self, worker: WorkerType, names: Sequence[str] = POLICIES) -> list[str]:
        """``names``, of which ``fixed`` stands for each point that is accurate enough."""
        grid = worker.profile.grid
        enough = [
            f"{FixedBatching.name}@{point.key}"
            for point, accuracy in zip(grid.points, grid.accuracy, strict=True)
            if accuracy >= self.promise.accuracy
        ]
        return [each for name in names for each in (enough if name == FixedBatching.name else [name])]

    def cheapest(self, worker: WorkerType, policy: str) -> Found:
        """The least workers of this type, under this policy, that hold the promise."""
        run = self._runs(worker, policy)
        low, high = 0, self._least(worker)
        while not self._holds(tried := run(high, 0, self._busiest_s)):
            # More workers do not make one point more accurate.
            hopeless = policy.startswith(FixedBatching.name) and "accuracy" in tried.verdict.misses(self.promise)
            if hopeless or high == self.max_workers:
                return Found(tried, holds=False)
            low, high = high, min(2 * high, self.max_workers)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds(run(middle, 0, self._busiest_s)) else (middle, high)
        fewer = None
        while not self._holds(confirmed := run(high, 1, self._arrival_s)):
            if high == self.max_workers:
                return Found(confirmed, holds=False)
            high, fewer = min(high + max(1, high // 50), self.max_workers), confirmed
        if fewer is None and high > 1:
            fewer = run(high - 1, 1, self._arrival_s)
        return Found(confirmed, holds=True, fewer=fewer)

    def at(self, worker: WorkerType, policy: str, replicas: int, arrival_s: np.ndarray | None = None) -> Fleet:
        """A fleet of this size, under all of the traffic, or under other arrivals."""
        return self._runs(worker, policy)(replicas, 1, self._arrival_s if arrival_s is None else arrival_s)

    def busiest_s(self, duration_s: float) -> np.ndarray:
        """The arrivals of the stretch of this length with the most of them, from 0."""
        times_s = self._arrival_s
        ends = np.searchsorted(times_s, times_s + duration_s)
        first = int(np.argmax(ends - np.arange(len(times_s))))
        busiest: np.ndarray = times_s[first : ends[first]] - times_s[first]
        return busiest

    def _runs(self, worker: WorkerType, policy: str) -> Callable[[int, int, np.ndarray], Fleet]:
        grid = worker.profile.grid
        grid.require_deadline(self._deadline_us)
        made: BatchingPolicy = make_policy(policy, grid, self._deadline_us)
        judge = Judge(self.promise, grid, self._outcomes)
        sampled = ServiceTimes.sampled(grid, worker.profile.samples_us)

        def run(replicas: int, draw: int, arrival_s: np.ndarray) -> Fleet:
            times = ServiceTimes(sampled.values, sampled.starts, self.seed + draw)
            scenario = Scenario.of(arrival_s, self._deadline_us / 1e6, replicas)
            return Fleet(worker, policy, replicas, judge(simulate(made, scenario, times)))

        return run

    def _holds(self, fleet: Fleet) -> bool:
        return not fleet.verdict.misses(self.promise)

    def _least(self, worker: WorkerType) -> int:
        """Workers below which not even the mean rate is served at the fastest point."""
        busiest_s = self._busiest_s
        rate_per_s = self.promise.attainment * len(busiest_s) / max(busiest_s[-1] - busiest_s[0], 1e-9)
        least: int = math.floor(rate_per_s / float(worker.profile.grid.best_rate_per_s.max()))
        return min(self.max_workers, max(1, least))


def ranked(found: Sequence[Found], promise: Promise) -> list[Found]:
    """Those that hold first, the cheapest of them first; of equal cost the one that answers more correctly in time.

    Of those that do not, the one that comes closest first."""

    def rank(each: Found) -> tuple[bool, float, float, float]:
        verdict = each.tried.verdict
        return not each.holds, verdict.shortfall(promise), each.tried.cost, -verdict.effective_accuracy

    return sorted(found, key=rank)


def around(search: FleetSearch, chosen: Fleet, policies: Sequence[str]) -> Iterator[Fleet]:
    """Fleets of the chosen one's type from half its size to twice it, under each policy."""
    half, twice = max(1, chosen.replicas // 2), max(2, 2 * chosen.replicas)
    sizes = sorted({round(size) for size in np.geomspace(half, twice, SIZES)})
    for policy in policies:
        for replicas in sizes:
            yield search.at(chosen.worker, policy, replicas)
