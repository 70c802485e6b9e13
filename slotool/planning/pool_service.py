"""What one kind of workers makes of requests, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slotool.planning.worker import SamplesUs
from slotool.scheduling.batching import BatchingPolicy, Profile
from slotool.simulation import Scenario, ServiceTimes, SimulationResult, simulate
from slotool.simulation.result import Points


class Overhead(NamedTuple):
    """What latency tables leave out: ``reserve_us`` of each deadline for the network and the front end; a call takes
    ``call_us``, and ``slower`` times what the table says, longer than that."""

    reserve_us: float
    call_us: float = 0.0
    slower: float = 0.0


class Service(Protocol):
    """What one kind of workers makes of requests under one policy. ``fastest_us``: below it no deadline lets a call
    begin; ``points``: all it could answer with; ``plans_by_deadline``: as of ``BatchingPolicy``."""

    @property
    def plans_by_deadline(self) -> bool: ...

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
        self.plans_by_deadline = policy.plans_by_deadline
        self.fastest_us = policy.grid.fastest_us
        self.points: Points = policy.grid

    def times(self, seed: int, overhead: Overhead) -> ServiceTimes:
        """How long its calls take."""
        took_us = (1 + overhead.slower) * self._times.values + overhead.call_us
        return ServiceTimes(took_us, self._times.starts, seed, self._times.per_machine)

    def run(self, scenario: Scenario, seed: int, overhead: Overhead) -> SimulationResult:
        return simulate(self.policy, scenario, self.times(seed, overhead))
