"""A fleet: workers of one type that serve one model or several, and what the simulation says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool import devices
from slotool.machine import usable_cores
from slotool.planning.promise import Promise, Reach, Verdict
from slotool.scheduling.batching import Profile
from slotool.tables import OperatingPoint

# µs measured, by point and batch size.
SamplesUs = Mapping[tuple[OperatingPoint, int], np.ndarray]


@dataclass(frozen=True)
class WorkerType:
    """Type of worker: ``profile`` holds latencies of operating points on one worker of ``threads`` threads.

    ``price``: of one, per hour or in any other unit. ``source``: the file of the latencies, or the table itself;
    ``device``: of its rows. ``beside``: for one that shares its machine, ``samples_us`` next to 0, 1, … busy workers;
    the profile is then the one next to all of them. ``machines``: ids of the measured machines.
    """

    name: str
    profile: Profile
    threads: int
    price: float
    source: Any = None
    device: str = devices.CPU
    beside: tuple[SamplesUs, ...] = ()
    machines: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """True for a device that ``serve --device`` takes; tables may name others, such as a maker's."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Pool:
    """``replicas`` workers of one type behind one queue, under one policy."""

    worker: WorkerType
    policy: str
    replicas: int

    @property
    def cost(self) -> float:
        return self.replicas * self.worker.price

    @property
    def max_batch(self) -> int:
        """Largest number of requests in a call."""
        return int(self.worker.profile.grid.sizes[-1])

    @property
    def runs_here(self) -> bool:
        """True if this machine has a core for each thread of the workers."""
        return self.replicas * self.worker.threads <= usable_cores()

    def __str__(self) -> str:
        workers = f"{self.replicas:,} worker{'s' if self.replicas > 1 else ''}"
        return f"{workers} of {self.worker.name} under {self.policy}"


@dataclass(frozen=True)
class Fleet:
    """Workers that serve all models: ``pools`` with each model's policy and latencies, ``verdicts`` by simulation."""

    pools: Mapping[str, Pool]
    verdicts: Mapping[str, Verdict]

    @property
    def pool(self) -> Pool:
        """Pool of the first model, the only one of a fleet that is not shared."""
        return next(iter(self.pools.values()))

    @property
    def verdict(self) -> Verdict:
        """Verdict on the first model."""
        return next(iter(self.verdicts.values()))

    @property
    def replicas(self) -> int:
        return self.pool.replicas

    @property
    def cost(self) -> float:
        return self.pool.cost

    @property
    def utilisation(self) -> float:
        """Share of the time that a worker is busy, on average."""
        return sum(verdict.utilisation for verdict in self.verdicts.values())

    def misses(self, promises: Mapping[str, Promise]) -> dict[str, list[str]]:
        """Return by model what of its promise is not shown to hold; without models whose promise is."""
        distances = {name: verdict.misses(promises[name]) for name, verdict in self.verdicts.items()}
        return {name: missed for name, missed in distances.items() if missed}

    def shortfall(self, promises: Mapping[str, Promise]) -> float:
        """Return by how much what is shown lies below the promises; 0 where all hold."""
        return sum(verdict.shortfall(promises[name]) for name, verdict in self.verdicts.items())

    def __str__(self) -> str:
        return str(self.pool)


@dataclass(frozen=True)
class SmallestFleet:
    """Smallest ``fleet`` of its type and policies that ``holds`` the promises, or else the nearest one.

    ``fewer``: with one worker less, if that does not hold. ``confirmed``: with latencies drawn anew, on more of long
    traffic. ``rank``: the lowest of those that hold is the plan, whatever it costs. ``most``: closest approach if no
    point has the promised accuracy; ``limited``: more workers would come no closer.
    """

    fleet: Fleet
    holds: bool
    fewer: Fleet | None = None
    confirmed: bool = False
    rank: float = 0.0
    most: Reach | None = None
    limited: bool = False
