"""Who waits, who works, and what became of everybody: the state of a service without its clock and its tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query


class RequestOutcome(StrEnum):
    """What became of a query.

    ``IN_TIME``, ``LATE``: answered. ``EXPIRED``: its deadline came while it waited. ``REJECTED``: the policy had no way
    to meet it. ``SHED``: it gave way to more important ones, as not everybody could be in time. ``GONE``: withdrawn.
    ``FAILED``: the policy broke on it.
    """

    IN_TIME = "in time"
    LATE = "late"
    EXPIRED = "expired"
    REJECTED = "rejected"
    SHED = "shed"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Batch:
    """A call that ``worker`` is to make at once: ``queries``, most urgent first, at ``decision.point``.

    ``second_worker``: the worker of an ensemble's second version, when both begin at the same time.
    """

    worker: int
    queries: list[Query]
    decision: Decision
    begun_us: float
    second_worker: int | None = None

    @property
    def examples(self) -> int:
        return sum(query.examples for query in self.queries)


@dataclass(frozen=True, slots=True)
class Drop:
    """A query that will not be served, and why: ``EXPIRED``, ``REJECTED``, ``SHED`` or ``FAILED``."""

    query: Query
    outcome: RequestOutcome
    reason: str


class Workers:
    """Who is there, who is at what, and who has rested longest; the queues of several models may share them.

    ``free_us``: float64 [workers], the instant at which each comes free, infinite for a dead one. ``running``: the
    batch each busy one is at. ``runs_ensemble_calls``: one worker begins both versions of an ensemble at the same time
    by itself.
    """

    def __init__(self, count: int, *, runs_ensemble_calls: bool = False):
        self.free_us = np.zeros(count)
        self.running: dict[int, Batch] = {}
        self.runs_ensemble_calls = runs_ensemble_calls
        self._idle = [(0.0, worker) for worker in range(count)]

    def idle(self) -> int | None:
        """The worker that has been idle for longest, None when there is none."""
        while self._idle:
            if self._is_idle(*self._idle[0]):
                return self._idle[0][1]
            # It has died, or died and come back.
            heappop(self._idle)
        return None

    def second_idle(self, worker: int) -> int | None:
        """Of the others the one that has been idle for longest, None when there is none."""
        others = [rest for rest in self._idle if rest[1] != worker and self._is_idle(*rest)]
        return min(others)[1] if others else None

    def concurrent_slots(self) -> int:
        """How many versions of one query could begin now."""
        idle = sum(worker not in self.running for worker in np.flatnonzero(np.isfinite(self.free_us)))
        return 2 * idle if self.runs_ensemble_calls else idle

    def begins(self, batch: Batch, planned_us: float) -> None:
        """The batch's workers are at it, for as long as planned."""
        for worker in (batch.worker, batch.second_worker):
            if worker is not None:
                self.running[worker] = batch
                self.free_us[worker] = batch.begun_us + planned_us

    def ends(self, worker: int) -> Batch:
        """What ``worker`` was at. Raises ``InputError`` when that is nothing."""
        if worker not in self.running:
            raise InputError(f"worker {worker} has no batch")
        return self.running.pop(worker)

    def becomes_idle(self, worker: int, now_us: float) -> None:
        """``worker`` is there and idle."""
        self.free_us[worker] = now_us
        heappush(self._idle, (now_us, worker))

    def _is_idle(self, since_us: float, worker: int) -> bool:
        return worker not in self.running and since_us == self.free_us[worker]

    def adds(self, now_us: float, worker: int | None = None) -> int:
        """A worker has come, idle. Its number: the one given, or that of a dead one where there is one."""
        dead = [at for at in np.flatnonzero(np.isinf(self.free_us)) if at not in self.running]
        if worker is None and not dead:
            self.free_us = np.append(self.free_us, now_us)
        number = int(dead[0] if dead else len(self.free_us) - 1) if worker is None else worker
        self.becomes_idle(number, now_us)
        return number


class Dispatcher:
    """One queue, its workers and a policy; the caller has the clock, the tensors and the processes.

    Tell it what happens, ``arrive``, ``finished``, ``died``, ``joined``, ``withdraw``, then ask ``next_batch`` what to
    do until there is nothing more to do; ``outcomes`` counts what became of everybody. A batch on two workers has no
    single end: tell of each worker that it ``ended`` or was ``lost``, and of the batch that it was ``answered`` or is
    ``returned``. Instants are µs of one clock and need not ascend. Whoever is asked in vain for a worker that was never
    there gets an ``InputError``. ``workers``: how many, or those of another queue.

    Source: superserve, §5 (the router: a global EDF queue, the scheduler asked whenever a worker is free).
    """

    def __init__(self, policy: Policy, workers: int | Workers = 1):
        self.policy = policy
        self.workers = Workers(workers) if isinstance(workers, int) else workers
        self.queue = EdfQueue()
        self.queue.free_us, self.queue.concurrent_slots = self.workers.free_us, self.workers.concurrent_slots
        self.outcomes: Counter[RequestOutcome] = Counter()

    @property
    def running(self) -> Mapping[int, Batch]:
        """What the busy workers are at, those of other queues included."""
        return self.workers.running

    def arrive(self, query: Query, *, returning: bool = False) -> None:
        """``returning``: it was here before, so it is no new arrival."""
        self.queue.push(query, returning=returning)

    def withdraw(self, query: Query, outcome: RequestOutcome = RequestOutcome.GONE) -> bool:
        """Its client is gone, or will not wait any longer. Whether it still waited; a batch at work is not called
        back."""
        found = self.queue.remove(query)
        self.outcomes[outcome] += found
        return found

    def next_batch(self, now_us: float) -> tuple[Batch | None, list[Drop]]:
        """The next batch, None when nobody waits or no worker is idle, and who was given up on the way to it.

        The batch is taken to begin at ``now_us``. Expired queries are given up even while all workers are busy.
        """
        dropped = [
            self._dropped(query, RequestOutcome.EXPIRED, "the deadline has passed")
            for query in self.queue.expire(now_us)
        ]
        worker = self.workers.idle()
        self.queue.free_us = self.workers.free_us
        while worker is not None and self.queue:
            dropped += self._shed(now_us)
            outcome = RequestOutcome.REJECTED
            try:
                decision = self.policy.decide(now_us, self.queue)
            except Exception as error:
                # One query that a policy breaks on must not take the others with it.
                outcome, decision = (
                    RequestOutcome.FAILED,
                    CannotMeet(f"the policy failed: {type(error).__name__}: {error}"),
                )
            if isinstance(decision, Decision):
                return self._begin(worker, decision, now_us), dropped
            reason = "no policy applies to it" if decision is None else decision.reason
            dropped.append(self._dropped(self.queue.pop(), outcome, reason))
        return None, dropped

    def finished(self, worker: int, now_us: float) -> Batch:
        """The answers of ``worker`` are there; it is idle again. The batch they are of."""
        batch = self.ended(worker, now_us)
        self.answered(batch, now_us)
        return batch

    def died(self, worker: int) -> Batch | None:
        """``worker`` is no more. The batch it was at goes back to the queue, and is returned; None when it was idle."""
        batch = self.lost(worker)
        if batch is not None:
            self.returned(batch)
        return batch

    def ended(self, worker: int, now_us: float) -> Batch:
        """``worker`` is idle again, whatever becomes of its batch, which is returned."""
        batch = self.workers.ends(worker)
        self.workers.becomes_idle(worker, now_us)
        return batch

    def lost(self, worker: int) -> Batch | None:
        """``worker`` is no more, whatever becomes of its batch, which is returned; None when it was idle."""
        batch = self.workers.ends(worker) if worker in self.running else None
        self.workers.free_us[worker] = math.inf
        return batch

    def answered(self, batch: Batch, now_us: float) -> None:
        """The answers of ``batch`` are there."""
        for query in batch.queries:
            self.outcomes[RequestOutcome.IN_TIME if now_us <= query.deadline_us else RequestOutcome.LATE] += 1

    def returned(self, batch: Batch) -> None:
        """Those of ``batch`` wait again."""
        for query in batch.queries:
            self.queue.push(query, returning=True)

    def joined(self, now_us: float) -> int:
        """A worker has come, idle. Its number: that of a dead one where there is one."""
        return self.workers.adds(now_us)

    def expects(self, worker: int, free_us: float) -> None:
        """``worker`` will come free at this instant, and not as planned (``inf``: never)."""
        self.workers.free_us[worker] = free_us

    @property
    def next_expiry_us(self) -> float:
        """When ``next_batch`` should be asked at the latest, if nothing happens; ``inf`` when nobody waits."""
        query = self.queue.peek()
        return math.inf if query is None else query.deadline_us

    def _shed(self, now_us: float) -> list[Drop]:
        shed = []
        while (given := self.policy.shed_candidate(now_us, self.queue)) is not None:
            self.queue.remove(given)
            shed.append(self._dropped(given, RequestOutcome.SHED, "more important queries need the time"))
        return shed

    def _begin(self, worker: int, decision: Decision, now_us: float) -> Batch:
        serves, first = self.policy.serves, self.queue.peek()
        room = 0 if first is not None and first.alone else decision.batch_size
        queries = self.queue.take(room, lambda query: not query.alone and serves(decision.point, query))
        second = (
            self.workers.second_idle(worker) if decision.concurrent and not self.workers.runs_ensemble_calls else None
        )
        batch = Batch(worker, queries, decision, now_us, second)
        self.workers.begins(batch, self.policy.planned_us(decision.point, batch.examples))
        return batch

    def _dropped(self, query: Query, outcome: RequestOutcome, reason: str) -> Drop:
        self.outcomes[outcome] += 1
        return Drop(query, outcome, reason)
