"""Workers of a service: alive, busy with a batch, or idle and for how long; and the latency of calls as observed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.edf import Query
from slotool.scheduling.policy import Decision
from slotool.tables import OperatingPoint


class Batch(NamedTuple):
    """A call that ``worker`` is to make at once: ``queries``, most urgent first, at ``decision.point``.

    ``second_worker``: the worker of an ensemble's second version, when both begin at the same time. ``planned_us``: how
    long it is expected to take, 0 where that is not known. ``decisions``: of each of several queries, what ``decision``
    is for it; empty where only one is there. ``bound``: what kept further queries out: ``queue-empty``, ``full``,
    ``no-fit`` (the next is too large or unlike), ``alone``.
    """

    worker: int
    queries: list[Query]
    decision: Decision
    begun_us: float
    second_worker: int | None = None
    planned_us: float = 0.0
    decisions: Sequence[Decision] = ()
    bound: str = "queue-empty"

    def decision_of(self, at: int) -> Decision:
        """Return the decision for the query at this place."""
        return self.decisions[at] if self.decisions else self.decision

    @property
    def examples(self) -> int:
        return sum([query.examples for query in self.queries])


class Workers:
    """The state of each worker; the queues of several models may share them.

    ``free_us``: float64 [workers], the instant at which each becomes idle, infinite for a dead one. ``running``: the
    batch of each busy worker.
    """

    def __init__(self, count: int):
        self.free_us = np.zeros(count)
        self.running: dict[int, Batch] = {}
        self._idle = [(0.0, worker) for worker in range(count)]

    def idle(self) -> int | None:
        """Return the worker that has been idle for longest, or None."""
        waiting, running, free_us = self._idle, self.running, self.free_us
        while waiting:
            since_us, worker = waiting[0]
            if worker not in running and since_us == free_us[worker]:
                return worker
            # Dead, or replaced.
            heappop(waiting)
        return None

    def alive(self) -> int:
        """Return the number of workers that are not dead."""
        return int(np.isfinite(self.free_us).sum())

    def is_alive(self, worker: int) -> bool:
        """True if ``worker`` is there, busy or not."""
        return worker < len(self.free_us) and math.isfinite(self.free_us[worker])

    def second_idle(self, worker: int) -> int | None:
        """Return another worker that has been idle for longest, or None."""
        others = [
            (since_us, other)
            for since_us, other in self._idle
            if other != worker and other not in self.running and since_us == self.free_us[other]
        ]
        return min(others)[1] if others else None

    def concurrent_slots(self) -> int:
        """Return the number of versions of one query that could begin now."""
        return sum(worker not in self.running for worker in np.flatnonzero(np.isfinite(self.free_us)))

    def begins(self, batch: Batch) -> None:
        """Mark the batch's workers busy, for the planned time."""
        for worker in (batch.worker, batch.second_worker):
            if worker is not None:
                self.running[worker] = batch
                self.free_us[worker] = batch.begun_us + batch.planned_us

    def ends(self, worker: int) -> Batch:
        """Return the batch of ``worker``. Raises ``InputError`` if it has none."""
        if worker not in self.running:
            raise InputError(f"worker {worker} has no batch")
        return self.running.pop(worker)

    def becomes_idle(self, worker: int, now_us: float) -> None:
        """Mark ``worker`` present and idle."""
        self.free_us[worker] = now_us
        heappush(self._idle, (now_us, worker))

    def remove(self, worker: int) -> None:
        """Mark ``worker`` dead."""
        self.free_us[worker] = math.inf

    def adds(self, now_us: float, worker: int | None = None) -> int:
        """Add an idle worker and return its number: the given one, or that of a dead one."""
        if worker is not None and worker >= len(self.free_us):
            # Earlier ones are still to come.
            self.free_us = np.append(self.free_us, np.full(worker + 1 - len(self.free_us), math.inf))
        dead = [at for at in np.flatnonzero(np.isinf(self.free_us)) if at not in self.running]
        if worker is None and not dead:
            self.free_us = np.append(self.free_us, now_us)
        number = int(dead[0] if dead else len(self.free_us) - 1) if worker is None else worker
        self.becomes_idle(number, now_us)
        return number


# Share of the latest call in an estimate, and what one call may at most do to it: a stall is none of the model's.
LATEST, MAX_RISE = 0.125, 2.0
# Factor on an estimate at each query that it alone rules out: it may have been learnt in a bad moment.
DOUBT = 1 - 1 / 128
MAX_KNOWN = 4_096


class CallTimes:
    """Estimates of the latency of calls, µs, by operating point and number of examples."""

    def __init__(self) -> None:
        self._us: dict[tuple[OperatingPoint, int], float] = {}

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        before_us = self._us.get((point, examples))
        if before_us is None:
            if len(self._us) >= MAX_KNOWN:
                self._us.clear()
            before_us = took_us
        self._us[point, examples] = before_us + LATEST * (min(took_us, MAX_RISE * before_us) - before_us)

    def of(self, point: OperatingPoint, examples: int) -> float:
        """Return the estimate, 0 where such a call was never observed."""
        return self._us.get((point, examples), 0.0)

    def forget(self, point: OperatingPoint, examples: int) -> None:
        """Drop the estimate, as if such a call was never observed."""
        self._us.pop((point, examples), None)

    def doubt(self, point: OperatingPoint, examples: int) -> None:
        """Lower the estimate a little, so that after many queries that it rules out one is tried again."""
        self._us[point, examples] *= DOUBT
