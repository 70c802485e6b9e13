"""A fleet: workers of one type, what the simulation says of it, and what a search found of its kind."""

from __future__ import annotations

from dataclasses import dataclass

from slotool.planning.promise import Reach, Verdict
from slotool.planning.worker import WorkerType


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

    def __str__(self) -> str:
        workers = f"{self.replicas:,} worker{'s' if self.replicas > 1 else ''}"
        return f"{workers} of {self.worker.name} under {self.policy}"


@dataclass(frozen=True)
class Fleet:
    """A pool of workers that serves one model, and what the simulation says of it."""

    pool: Pool
    verdict: Verdict

    @property
    def cost(self) -> float:
        return self.pool.cost

    @property
    def replicas(self) -> int:
        return self.pool.replicas

    def __str__(self) -> str:
        return str(self.pool)


@dataclass(frozen=True)
class Found:
    """``tried``: the smallest fleet of its type and policy that ``holds`` the promise; where none does, the largest
    one tried. ``fewer``: with one worker less, where that does not. ``confirmed``: with latencies drawn anew, on
    more of long traffic. ``rank``: the lowest of those that hold is the plan, whatever it costs. ``most``: where no
    point has the promised accuracy, how near the nearest comes; ``limited``: more workers would come no closer.
    """

    tried: Fleet
    holds: bool
    fewer: Fleet | None = None
    confirmed: bool = False
    rank: float = 0.0
    most: Reach | None = None
    limited: bool = False
