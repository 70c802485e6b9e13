"""The cheapest fleet that holds a promise: workers of each type, under each policy, on a virtual clock.

For a type and a policy the least number of workers is searched by growing steps and bisection, as more workers never
serve less, unless they share a machine: then more may do worse until one is full, and where the search fails, sizes up
to that are tried by smaller steps. What is found is confirmed with latencies drawn anew, since the search took the
least that did well once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.errors import InputError
from slotool.planning.fleet import Fleet, Found, Pool, WorkerType
from slotool.planning.pool_service import BatchingService, Service
from slotool.planning.promise import Judge, Promise, Verdict
from slotool.planning.traffic import Traffic
from slotool.scheduling.batching import FixedBatching, make_policy
from slotool.simulation import Scenario, SimulationResult
from slotool.simulation.service import Overhead
from slotool.tables import OutcomeTable

if TYPE_CHECKING:
    from slotool.planning.interference import Placement

# Of longer traffic a search looks at so many requests, and confirms on so many.
MAX_SEARCHED, MAX_CONFIRMED = 200_000, 1_000_000
# Requests that one server reads per second, at most; 30,000 were the most that one was seen to answer. More can never
# wait at the same time than come within a deadline.
MAX_READ_PER_S = 50_000
# Where the fastest call takes longer, and several deadlines, its table may be in another unit.
FAR_TOO_LONG_US = 1e5


class FleetSearch:
    """Search of fleets for the requests of one model, ``arrival_s`` (float64 [n], ascending), under ``promise``.

    ``reserve_us``: of each deadline, kept for the front end and the network. ``max_workers``: of a fleet. ``seed``: of
    the latencies drawn. ``name``: of the model in fleets. Raises ``InputError`` for traffic that is too short to show
    the promise.
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
        name: str = "",
    ):
        self.name, self.outcomes, self.judge = name, outcomes, Judge(promise, outcomes)
        self.judge.require_enough(len(arrival_s))
        if not promise.deadline_us > reserve_us:
            raise InputError(
                f"a deadline of {promise.deadline_us / 1e3:g} ms leaves nothing for computing: {reserve_us / 1e3:g} ms "
                "are kept for the network and the front end"
            )
        self.promise, self.max_workers, self.seed = promise, max_workers, seed
        self._arrival_s = np.asarray(arrival_s, dtype=np.float64)
        # Where workers share machines, and what they do to each other there; None: each is as if alone.
        self.placement: Placement | None = None
        self._made: dict[tuple[str, str], Service] = {}
        # What is left of a deadline for waiting and computing.
        self.computing_us = promise.deadline_us - reserve_us

    @property
    def requests(self) -> int:
        """Number of requests that arrive."""
        return len(self._arrival_s)

    @cached_property
    def whole(self) -> Traffic:
        """All of the traffic, be it long."""
        return Traffic.whole(self._arrival_s)

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the requests."""
        return self.whole.rate_per_s

    @cached_property
    def searched(self) -> Traffic:
        """Traffic that a fleet is looked for on."""
        return Traffic.sampled(self._arrival_s, MAX_SEARCHED, self.computing_us / 1e6)

    @cached_property
    def confirming(self) -> Traffic:
        """Traffic that a fleet is confirmed on."""
        return Traffic.sampled(self._arrival_s, MAX_CONFIRMED, self.computing_us / 1e6)

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings to print before the search."""
        return ()

    def placed(self, worker: WorkerType, replicas: int) -> WorkerType:
        """``worker`` as one of so many, which may share its machine."""
        return worker if self.placement is None else self.placement.placed(worker, replicas)

    def fits(self, pool: Pool) -> bool:
        """True if a call may begin that is over within a deadline."""
        return self.placed(pool.worker, pool.replicas).profile.grid.fastest_us <= self.computing_us

    def policies(self, worker: WorkerType, names: Sequence[str]) -> list[str]:
        """``names``, of which ``fixed`` stands for each point that is accurate enough; none where no call of the worker
        fits into the deadline."""
        grid = worker.profile.grid
        if grid.fastest_us > self.computing_us:
            return []
        enough = [
            f"{FixedBatching.name}@{point.key}"
            for point, accuracy in zip(grid.points, grid.accuracy, strict=True)
            if accuracy >= self.promise.accuracy
        ]
        return [each for name in names for each in (enough if name == FixedBatching.name else [name])]

    def terms(self, pool: Pool) -> dict[str, Any]:
        """Return the options of requests to ``pool`` besides their deadline, as ``slotool.loadtest`` takes them."""
        return {}

    def max_queue(self, pool: Pool) -> int:
        """Requests that may wait: what its workers can answer within a deadline (``_best_rate_per_s``), no more than a
        server reads in that time, and one for each worker at least."""
        rate_per_s = min(pool.replicas * self._best_rate_per_s(pool), MAX_READ_PER_S)
        return max(pool.replicas, math.ceil(rate_per_s * self.promise.deadline_us / 1e6))

    def _best_rate_per_s(self, pool: Pool) -> float:
        """Return the requests per second of one worker at its fastest point and best batch size."""
        return float(pool.worker.profile.grid.best_rate_per_s.max())

    def promised(self, fleet: Fleet) -> list[dict[str, Any]]:
        """Return the promise of each tolerance tier that ``fleet`` serves; none without rules."""
        return []

    def why_nothing_fits(self, workers: Sequence[WorkerType]) -> str:
        """Why ``policies`` names none for any of ``workers``."""
        fastest_us = min(worker.profile.grid.fastest_us for worker in workers)
        if fastest_us > self.computing_us:
            # As with milliseconds that are read as seconds.
            is_far = fastest_us > FAR_TOO_LONG_US and fastest_us > 5 * self.computing_us
            unit = "; latency tables hold seconds" if is_far else ""
            return (
                f"of {self.computing_us / 1e3:.4g} ms left for computing the fastest call takes "
                f"{fastest_us / 1e3:.4g} ms{unit}"
            )
        most = max((self.judge.most_accurate(worker.profile.grid) for worker in workers), key=lambda each: each.shown)
        return most.short_of(self.promise)

    def cheapest(self, worker: WorkerType, policy: str) -> Found:
        """The least workers of this type, under this policy, that hold the promise on a sample of the traffic."""
        run = partial(self._alike, worker, policy, 0, self.searched)
        first = run(self._least(worker))
        most = self.judge.most_accurate(self._service(worker, policy).points)
        if most.shown < self.promise.accuracy:  # more workers do not make points more accurate
            return Found(first, holds=False, most=most, limited=True)
        missed = first.verdict.attainment > 0 and "accuracy" in first.verdict.misses(self.promise)
        if policy.startswith(FixedBatching.name) and missed:
            return Found(first, holds=False, limited=True)
        return self._smallest(run, first)

    def confirmed(self, found: Found) -> Found:
        """Simulate ``found`` on more of the traffic, with latencies drawn anew; also one that does not hold, whose
        figures then are those of that size whatever else was tried."""
        pool = found.tried.pool
        run = partial(self._alike, pool.worker, pool.policy, 1, self.confirming)
        again = run(pool.replicas)
        if not found.holds and (found.most is not None or not self._holds(again)):
            return replace(found, tried=again, confirmed=True)
        return replace(self._smallest(run, again), confirmed=True, rank=found.rank)

    def _smallest(self, run: Callable[[int], Fleet], first: Fleet) -> Found:
        """Search by growing steps from ``first``, then by lesser ones up to workers that fill a machine."""
        sizes: Iterable[int] = ()
        if self.placement is not None:
            sizes = chain((first.replicas,), self.placement.sizes(first.pool.worker, first.replicas, self.max_workers))
        found = smallest_fleet(run, first, self.max_workers, self._enough, self._distance, sizes, alike=_served_alike)
        return Found(found.tried, holds=False, limited=True) if found.holds and not self._holds(found.tried) else found

    def _distance(self, fleet: Fleet) -> tuple[bool, float]:
        """Return the distance from the promise; calls that do not fit into a deadline are farther than all others."""
        return not self.fits(fleet.pool), fleet.verdict.shortfall(self.promise)

    def at(self, worker: WorkerType, policy: str, replicas: int, arrival_s: np.ndarray | None = None) -> Fleet:
        """A fleet of this size, under what confirms, or under other arrivals."""
        traffic = self.confirming if arrival_s is None else Traffic.whole(arrival_s)
        return self._alike(worker, policy, 1, traffic, replicas)

    def served(self, pool: Pool, draw: int, traffic: Traffic) -> Fleet:
        """Simulate ``pool`` under ``traffic``. ``draw``: of the latencies."""
        return Fleet({self.name: pool}, {self.name: self.judged(self.run(pool, draw, traffic), traffic)})

    def judged(self, result: SimulationResult, traffic: Traffic) -> Verdict:
        """Return what the simulation of ``traffic`` shows of the promise."""
        return self.judge(result, traffic.counted)

    def run(self, pool: Pool, draw: int, traffic: Traffic, overhead: Overhead | None = None) -> SimulationResult:
        """Simulate ``pool``. ``overhead``: in place of what the plan keeps of each deadline."""
        overhead = overhead or Overhead(self.promise.deadline_us - self.computing_us)
        service = self._service(self.placed(pool.worker, pool.replicas), pool.policy)
        deadline_us = max(self.promise.deadline_us - overhead.reserve_us, service.fastest_us)
        scenario = Scenario.of(traffic.arrival_s, deadline_us / 1e6, pool.replicas)
        return service.run(scenario, self.seed + draw, overhead)

    def _alike(self, worker: WorkerType, policy: str, draw: int, traffic: Traffic, replicas: int) -> Fleet:
        return self.served(Pool(worker, policy, replicas), draw, traffic)

    def _service(self, worker: WorkerType, policy: str) -> Service:
        key = worker.name, policy
        if key not in self._made:
            self._made[key] = self._make(worker, policy)
        return self._made[key]

    def batching(self, pool: Pool) -> BatchingService:
        """Return the service of the pool's workers under its policy, which chooses batches."""
        service = self._service(self.placed(pool.worker, pool.replicas), pool.policy)
        assert isinstance(service, BatchingService)
        return service

    def _make(self, worker: WorkerType, policy: str) -> Service:
        grid = worker.profile.grid
        # Next to others a call may not fit any more; what is simulated of it then holds nothing (``_holds``).
        deadline_us = max(self.computing_us, grid.fastest_us) if worker.beside else self.computing_us
        grid.require_deadline(deadline_us)
        return BatchingService(make_policy(policy, grid, deadline_us), worker.profile, worker.beside)

    def _holds(self, fleet: Fleet) -> bool:
        return self.fits(fleet.pool) and not fleet.verdict.misses(self.promise)

    def _enough(self, fleet: Fleet) -> bool:
        """True if more workers would not help: a search grows a fleet to this."""
        return self._holds(fleet)

    def _least(self, worker: WorkerType) -> int:
        """Workers below which not even the mean rate is served at the fastest point."""
        rate_per_s = self.promise.attainment * self.searched.rate_per_s
        least: int = math.floor(rate_per_s / float(worker.profile.grid.best_rate_per_s.max()))
        return min(self.max_workers, max(1, least))


def _served_alike(fewer: Fleet, more: Fleet) -> bool:
    """True if more workers answer all alike, as no request waits for one any more."""
    return replace(fewer.verdict, utilisation=0.0) == replace(more.verdict, utilisation=0.0)


def confirm(search: FleetSearch, found: Sequence[Found]) -> list[Found]:
    """Return ``found``, ranked, once the first is confirmed; where all of the traffic was searched, once all that hold
    are."""
    ranks = ranked(found, search.promise)
    while True:
        at = next((at for at, each in enumerate(ranks) if not each.confirmed and (each.holds or at == 0)), None)
        if at is None or (at > 0 and search.requests > MAX_SEARCHED):
            return ranks
        ranks[at] = search.confirmed(ranks[at])
        ranks = ranked(ranks, search.promise)


def ranked(found: Sequence[Found], promise: Promise) -> list[Found]:
    """Sort: those that hold first, the cheapest of them first; of equal cost the one with more right answers in time.

    Of those that do not, the one that comes closest first."""

    def order(each: Found) -> tuple[bool, float, float, float, float]:
        verdict = each.tried.verdict
        rank = each.rank if each.holds else 0.0
        return not each.holds, verdict.shortfall(promise), rank, each.tried.cost, -verdict.effective_accuracy

    return sorted(found, key=order)


def smallest_fleet(
    run: Callable[[int], Fleet],
    first: Fleet,
    most: int,
    is_enough: Callable[[Fleet], bool],
    distance: Callable[[Fleet], tuple[bool, float]],
    small_sizes: Iterable[int] = (),
    alike: Callable[[Fleet, Fleet], bool] = lambda fewer, more: False,
) -> Found:
    """Return the smallest fleet of at most ``most`` workers that is enough, or else the one nearest to it.

    By steps of 1, 2, 4 … up or down from ``first`` to where fleets begin to be enough, and bisection of the last step.
    Where that fails, as workers of one machine slow each other down, by ``small_sizes``, ascending.

    Args:
        run: Fleet of so many workers.
        first: Fleet to begin with.
        most: Limit of the workers.
        is_enough: True for a fleet that is.
        distance: Distance of a fleet from being enough.
        small_sizes: Numbers of workers to try where growing steps fail.
        alike: True if the second, larger fleet serves just as the first one: more workers would change nothing.
    """
    step, is_limited = 1, False
    fewer, enough = (None, first) if is_enough(first) else (first, None)
    while enough is None and fewer is not None and fewer.replicas < most and not is_limited:
        tried = run(min(fewer.replicas + step, most))
        if is_enough(tried):
            enough = tried
        elif alike(fewer, tried):
            is_limited = True
        else:
            fewer, step = tried, 2 * step
    while enough is not None and fewer is None and enough.replicas > 1:
        tried = run(max(1, enough.replicas - step))
        fewer, enough, step = (None, tried, 2 * step) if is_enough(tried) else (tried, enough, step)
    if enough is not None:
        return _bisected(run, fewer, enough, is_enough)
    assert fewer is not None
    nearest, fewer = fewer, None
    for replicas in small_sizes:
        tried = run(replicas)
        if is_enough(tried):
            return _bisected(run, fewer, tried, is_enough)
        fewer, nearest = tried, min(nearest, tried, key=distance)
    return Found(nearest, holds=False, limited=is_limited)


def _bisected(
    run: Callable[[int], Fleet], fewer: Fleet | None, enough: Fleet, is_enough: Callable[[Fleet], bool]
) -> Found:
    """Between ``fewer`` workers, which are not enough (None: there are none), and ``enough``, which are."""
    while fewer is not None and enough.replicas - fewer.replicas > 1:
        tried = run((fewer.replicas + enough.replicas) // 2)
        fewer, enough = (fewer, tried) if is_enough(tried) else (tried, enough)
    return Found(enough, holds=True, fewer=fewer)
