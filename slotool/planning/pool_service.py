"""Workers of one kind on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from slotool.planning.fleet import SamplesUs
from slotool.scheduling.batching import BatchingPolicy, Profile
from slotool.simulation import Scenario, ServiceTimes, SimulationResult, simulate
from slotool.simulation.scenario import Points
from slotool.simulation.service import Overhead

# Of the cores' time, that is counted for other processes at most: beyond it nothing is known.
MAX_CORES_SHARE = 0.5


def all_busy(cpu_us: float, rate_per_s: float, cores: int) -> float:
    """Return how many times as long calls take while workers keep all cores busy and other processes of the server
    spend ``cpu_us`` of CPU time on each request.

    The kernel gives a core's time in turn to all that are ready to run, and spreads these over the cores: a worker
    keeps what the others leave. Source: the fair scheduler of Linux.
    """
    return 1 / (1 - min(MAX_CORES_SHARE, 1e-6 * cpu_us * rate_per_s / cores))


class Service(Protocol):
    """Workers of one kind under one policy. ``fastest_us``: below it no deadline lets a call
    begin; ``points``: all it could answer with."""

    @property
    def fastest_us(self) -> float: ...

    @property
    def points(self) -> Points: ...

    def run(self, scenario: Scenario, seed: int, overhead: Overhead) -> SimulationResult:
        """``seed``: of the latencies drawn; ``overhead``: of each call; its reserve is taken off the deadlines."""


class BatchingService:
    """Batches under a policy that chooses points; calls take what the profile's samples say, or where there are some,
    those ``beside`` as many workers of the machine as are busy."""

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

    def run(self, scenario: Scenario, seed: int, overhead: Overhead) -> SimulationResult:
        return simulate(self.policy, scenario, self.times(seed, overhead, len(scenario.death_us)))
