"""Requests of one model on simulated workers: what a pool of them serves, and how well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from slotool.errors import InputError
from slotool.planning.fleet import Fleet, Pool, SamplesUs, WorkerType
from slotool.planning.promise import Judge, Promise, Verdict
from slotool.planning.traffic import Traffic
from slotool.scheduling.batching import BatchingPolicy, FixedBatching, Profile, make_policy
from slotool.simulation import ServiceTimes, SimulationResult
from slotool.simulation.scenario import Points
from slotool.simulation.service import Overhead
from slotool.tables import OutcomeTable

if TYPE_CHECKING:
    from slotool.planning.interference import Placement
    from slotool.planning.tiers import Tiers

# Requests that one server reads per second, at most; 30,000 were the most that one was seen to answer. More can never
# wait at the same time than come within a deadline.
MAX_READ_PER_S = 50_000
# Fastest call, and its deadlines, beyond which a table may be in another unit.
FAR_TOO_LONG_US = 1e5
# Largest share of the cores' time for other processes: beyond it nothing is known.
MAX_CORES_SHARE = 0.5


def all_busy(cpu_us: float, rate_per_s: float, cores: int) -> float:
    """Return the slowdown of calls while workers keep all cores busy and a request costs others ``cpu_us`` of CPU time.

    The kernel gives a core's time in turn to all runnable processes, and spreads these over the cores: a worker keeps
    the rest. Source: the fair scheduler of Linux.
    """
    return 1 / (1 - min(MAX_CORES_SHARE, 1e-6 * cpu_us * rate_per_s / cores))


class Service(Protocol):
    """Workers of one kind under one policy. ``fastest_us``: least slack for a call; ``points``: possible answers."""

    @property
    def fastest_us(self) -> float: ...

    @property
    def points(self) -> Points: ...


class BatchingService:
    """Batches under a policy that chooses points; calls take the profile's samples, or those of ``beside``.

    The latter are next to as many workers of the machine as are busy.
    """

    def __init__(self, policy: BatchingPolicy, profile: Profile, beside: Sequence[SamplesUs] = ()):
        self.policy = policy
        self._times = ServiceTimes.colocated(
            [ServiceTimes.sampled(policy.grid, each) for each in beside or (profile.samples_us,)]
        )
        self.fastest_us = policy.grid.fastest_us
        self.points: Points = policy.grid

    def times(self, seed: int, overhead: Overhead, workers: int = 1) -> ServiceTimes:
        """Return the latencies of calls, of so many workers."""
        times = self._times
        if overhead.all_busy > 1 and times.per_machine == 1:
            times = ServiceTimes.colocated([times] * workers)
        last = (len(times.starts) - 1) // times.per_machine * (times.per_machine - 1)
        all_busy = np.ones(len(times.values))
        all_busy[times.starts[last] :] = overhead.all_busy
        busy_us, rested_us = overhead.of_calls(times.values)
        took_us, idle = all_busy * busy_us + overhead.turnaround_us, all_busy * rested_us
        return ServiceTimes(
            took_us, times.starts, seed, times.per_machine, idle if overhead.memory_us else None, overhead.memory_us,
            overhead.saturation,
        )  # fmt: skip


@dataclass(frozen=True)
class Demand:
    """Requests for one model, ``arrival_s`` float64 [n], ascending from about 0, and the means to serve them.

    ``workers``: by name of the type, with this model's latencies; ``policies``: names of those to try,
    ``slow_policies``: of those to try if these need more workers than the rate does, as they take long to prepare;
    ``placement``: workers' slowdown of this model's calls on shared machines, None: each is as if alone; ``tiers``:
    requested tiers of rules, which then choose in place of policies; ``files``: by key, entries of a service file
    besides latencies; ``data``: examples sent to verify.
    """

    name: str
    arrival_s: np.ndarray
    promise: Promise
    workers: Mapping[str, WorkerType]
    policies: Sequence[str]
    outcomes: OutcomeTable | None = None
    placement: Placement | None = None
    tiers: Tiers | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    data: Any = "auto"
    slow_policies: Sequence[str] = ()


class ModelOnWorkers:
    """Requests of ``demand`` on workers.

    ``reserve_us``: of each deadline, kept for the front end and the network. Raises ``InputError`` for traffic that is
    too short to show the promise.
    """

    def __init__(self, demand: Demand, *, reserve_us: float = 0.0):
        promise, self.judge = demand.promise, Judge(demand.promise, demand.outcomes)
        self.judge.require_enough(len(demand.arrival_s))
        if not promise.deadline_us > reserve_us:
            raise InputError(
                f"a deadline of {promise.deadline_us / 1e3:g} ms leaves nothing for computing: {reserve_us / 1e3:g} ms "
                "are kept for the network and the front end"
            )
        self.promise = promise
        self._arrival_s = np.asarray(demand.arrival_s, dtype=np.float64)
        self.placement = demand.placement
        self._services: dict[tuple[str, str], Service] = {}
        # Part of a deadline for waiting and computing.
        self.computing_us = promise.deadline_us - reserve_us

    @property
    def requests(self) -> int:
        """Number of requests that arrive."""
        return len(self._arrival_s)

    @cached_property
    def whole(self) -> Traffic:
        """Whole traffic, however long."""
        return Traffic.whole(self._arrival_s)

    @property
    def rate_per_s(self) -> float:
        """Mean rate of the requests."""
        return self.whole.rate_per_s

    @property
    def remarks(self) -> Sequence[str]:
        """Warnings to print before the search."""
        return ()

    def placed(self, worker: WorkerType, replicas: int) -> WorkerType:
        """Return ``worker`` as one of so many, which may share its machine."""
        return worker if self.placement is None else self.placement.placed(worker, replicas)

    def fits(self, pool: Pool) -> bool:
        """True if a call may begin that is over within a deadline."""
        return self.of_pool(pool).fastest_us <= self.computing_us

    def policies(self, worker: WorkerType, names: Sequence[str]) -> list[str]:
        """Return ``names``, with ``fixed`` as each accurate enough point; none if no call fits into the deadline."""
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
        """Return the limit of waiting requests, at least one for each worker.

        It is what the workers can answer within a deadline (``_best_rate_per_s``), and a server can read in that time.
        """
        rate_per_s = min(pool.replicas * self._best_rate_per_s(pool), MAX_READ_PER_S)
        return max(pool.replicas, math.ceil(rate_per_s * self.promise.deadline_us / 1e6))

    def _best_rate_per_s(self, pool: Pool) -> float:
        """Return the requests per second of one worker at its fastest point and best batch size."""
        return float(pool.worker.profile.grid.best_rate_per_s.max())

    def promised(self, fleet: Fleet) -> list[dict[str, Any]]:
        """Return the promise of each tolerance tier that ``fleet`` serves; none without rules."""
        return []

    def why_nothing_fits(self, workers: Sequence[WorkerType]) -> str:
        """Return the reason why ``policies`` is empty for all ``workers``."""
        fastest_us = min(worker.profile.grid.fastest_us for worker in workers)
        if fastest_us > self.computing_us:
            # For example milliseconds read as seconds.
            is_far = fastest_us > FAR_TOO_LONG_US and fastest_us > 5 * self.computing_us
            unit = "; latency tables hold seconds" if is_far else ""
            return (
                f"of {self.computing_us / 1e3:.4g} ms left for computing the fastest "
                f"point needs {fastest_us / 1e3:.4g} ms in its slowest calls{unit}"
            )
        most = max((self.judge.most_accurate(worker.profile.grid) for worker in workers), key=lambda each: each.shown)
        return most.short_of(self.promise)

    def judged(self, result: SimulationResult, traffic: Traffic, worker: WorkerType) -> Verdict:
        """Return what the simulation of ``traffic`` on workers of this type shows of the promise."""
        served = result.batch > 0
        energy_j = worker.profile.request_j(result.grid.points, result.row[served], result.batch[served])
        return replace(self.judge(result, traffic.counted), energy_j=energy_j)

    def service(self, worker: WorkerType, policy: str) -> Service:
        key = worker.name, policy
        if key not in self._services:
            self._services[key] = self._make(worker, policy)
        return self._services[key]

    def of_pool(self, pool: Pool) -> Service:
        """Return the service of a pool's workers, next to each other where they share machines, under its policy."""
        return self.service(self.placed(pool.worker, pool.replicas), pool.policy)

    def _make(self, worker: WorkerType, policy: str) -> Service:
        grid = worker.profile.grid
        # Next to others a call may not fit any more; what is simulated of it then holds nothing (``fits``).
        deadline_us = max(self.computing_us, grid.fastest_us) if worker.beside else self.computing_us
        grid.require_deadline(deadline_us)
        return BatchingService(make_policy(policy, grid, deadline_us), worker.profile, worker.beside)

    def is_enough(self, verdict: Verdict) -> bool:
        """True if more workers would not bring more of the promise: a search grows a fleet to this."""
        return not verdict.misses(self.promise)

    def rank(self, policy: str) -> float:
        """Return the rank of a policy among those that hold: the lowest is the plan, whatever it costs."""
        return 0.0

    def least(self, worker: WorkerType, rate_per_s: float) -> int:
        """Return the workers below which not even this mean rate is served at the fastest point."""
        best_rate_per_s = float(worker.profile.grid.best_rate_per_s.max())
        return max(1, math.floor(self.promise.attainment * rate_per_s / best_rate_per_s))
