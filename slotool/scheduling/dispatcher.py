"""Who waits, who works, and what became of everybody: the state of a service without its clock and its tensors."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import Decision, Policy
from slotool.scheduling.query import Query


class Fate(StrEnum):
    """What became of a query.

    ``IN_TIME``, ``LATE``: answered. ``EXPIRED``: its deadline came while it waited. ``REFUSED``: the policy had no way
    to meet it. ``SHED``: it gave way to more important ones, as not everybody could be in time. ``GONE``: withdrawn.
    """

    IN_TIME = "in time"
    LATE = "late"
    EXPIRED = "expired"
    REFUSED = "refused"
    SHED = "shed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Batch:
    """A call that ``worker`` is to make at once: ``queries``, most urgent first, at ``decision.point``."""

    worker: int
    queries: list[Query]
    decision: Decision
    begun_us: float

    @property
    def examples(self) -> int:
        return sum(query.examples for query in self.queries)


@dataclass(frozen=True, slots=True)
class Drop:
    """A query that will not be served, and why: ``EXPIRED``, ``REFUSED`` or ``SHED``."""

    query: Query
    fate: Fate
    reason: str


class Dispatcher:
    """One queue, its workers and a policy; the caller has the clock, the tensors and the processes.

    Tell it what happens, ``arrive``, ``finished``, ``died``, ``joined``, ``withdraw``, then ask ``turn`` what to do
    until there is nothing more to do; ``fates`` counts what became of everybody. Instants are µs of one clock and need
    not ascend. Whoever is asked in vain for a worker that was never there gets an ``InputError``.

    Source: superserve, §5 (the router: a global EDF queue, the scheduler asked whenever a worker is free).
    """

    def __init__(self, policy: Policy, workers: int = 1):
        self.policy = policy
        self.queue = EdfQueue()
        self.queue.free_us = np.zeros(workers)
        self.fates: Counter[Fate] = Counter()
        self.running: dict[int, Batch] = {}
        self._resting = [(0.0, worker) for worker in range(workers)]

    def arrive(self, query: Query) -> None:
        self.queue.push(query)

    def withdraw(self, query: Query) -> bool:
        """Its client is gone. Whether it still waited; a batch at work is not called back."""
        found = self.queue.remove(query)
        self.fates[Fate.GONE] += found
        return found

    def turn(self, now_us: float) -> tuple[Batch | None, list[Drop]]:
        """The next batch, None when nobody waits or no worker is idle, and who was given up on the way to it.

        The batch is taken to begin at ``now_us``. Expired queries are given up even while all workers are busy.
        """
        dropped = [self._dropped(query, Fate.EXPIRED, "the deadline has passed") for query in self.queue.expire(now_us)]
        worker = self._idle()
        while worker is not None and self.queue:
            while (given := self.policy.gives_way(now_us, self.queue)) is not None:
                self.queue.remove(given)
                dropped.append(self._dropped(given, Fate.SHED, "more important queries need the time"))
            decision = self.policy.decide(now_us, self.queue)
            if isinstance(decision, Decision):
                return self._begin(worker, decision, now_us), dropped
            reason = "the policy says nothing about it" if decision is None else decision.reason
            dropped.append(self._dropped(self.queue.pop(), Fate.REFUSED, reason))
        return None, dropped

    def finished(self, worker: int, now_us: float) -> Batch:
        """The answers of ``worker`` are there; it is idle again. The batch they are of."""
        batch = self._ended(worker)
        for query in batch.queries:
            self.fates[Fate.IN_TIME if now_us <= query.deadline_us else Fate.LATE] += 1
        self._rests(worker, now_us)
        return batch

    def died(self, worker: int) -> Batch | None:
        """``worker`` is no more. The batch it was at goes back to the queue, and is returned; None when it was idle."""
        batch = self._ended(worker) if worker in self.running else None
        for query in [] if batch is None else batch.queries:
            self.queue.push(query, returning=True)
        self.queue.free_us[worker] = math.inf
        return batch

    def joined(self, now_us: float) -> int:
        """A worker has come, idle. Its number: that of a dead one where there is one."""
        free_us = self.queue.free_us
        dead = [worker for worker in np.flatnonzero(np.isinf(free_us)) if worker not in self.running]
        if not dead:
            self.queue.free_us = np.append(free_us, now_us)
        worker = int(dead[0]) if dead else len(free_us)
        self._rests(worker, now_us)
        return worker

    def expects(self, worker: int, free_us: float) -> None:
        """``worker`` will come free at this instant, and not as planned (``inf``: never)."""
        self.queue.free_us[worker] = free_us

    @property
    def next_expiry_us(self) -> float:
        """When ``turn`` should be asked at the latest, if nothing happens; ``inf`` when nobody waits."""
        query = self.queue.peek()
        return math.inf if query is None else query.deadline_us

    def _idle(self) -> int | None:
        """The worker that has been idle for longest."""
        while self._resting:
            since_us, worker = self._resting[0]
            if worker not in self.running and since_us == self.queue.free_us[worker]:
                return worker
            # It has died, or died and come back.
            heappop(self._resting)
        return None

    def _rests(self, worker: int, now_us: float) -> None:
        self.queue.free_us[worker] = now_us
        heappush(self._resting, (now_us, worker))

    def _begin(self, worker: int, decision: Decision, now_us: float) -> Batch:
        serves = self.policy.serves
        queries = self.queue.take(decision.batch_size, lambda query: serves(decision.point, query))
        batch = self.running[worker] = Batch(worker, queries, decision, now_us)
        self.queue.free_us[worker] = now_us + self.policy.planned_us(decision.point, batch.examples)
        return batch

    def _ended(self, worker: int) -> Batch:
        if worker not in self.running:
            raise InputError(f"worker {worker} has no batch")
        return self.running.pop(worker)

    def _dropped(self, query: Query, fate: Fate, reason: str) -> Drop:
        self.fates[fate] += 1
        return Drop(query, fate, reason)
