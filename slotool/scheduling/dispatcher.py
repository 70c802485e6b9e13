"""The state of a service without its clock and its tensors: queue, workers, and outcomes of requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from slotool.scheduling.edf import DEADLINE_PASSED, EdfQueue, Query
from slotool.scheduling.policy import CannotMeet, Decision, Policy, PolicyFailure
from slotool.scheduling.workers import Batch, CallTimes, Workers
from slotool.tables import OperatingPoint

# Queries that a batch may pass to be filled with others behind them.
MAX_PASSED = 64

_T = TypeVar("_T")

NO_POLICY = "no policy applies to it"


class RequestOutcome(StrEnum):
    """The outcome of a query.

    ``IN_TIME``, ``LATE``: answered. ``EXPIRED``: its deadline came while it waited. ``REJECTED``: the policy had no way
    to meet it. ``SHED``: dropped for queries of higher priority, as not all could be in time. ``GONE``: withdrawn.
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
class Drop:
    """A query that will not be served, and why: ``EXPIRED``, ``REJECTED``, ``SHED`` or ``FAILED``."""

    query: Query
    outcome: RequestOutcome
    reason: str


class Dispatcher:
    """Queue with its workers and a policy; the caller has the clock, the tensors and the processes.

    Report events by ``arrive``, ``finished``, ``joined``, ``withdraw``, then call ``next_batch`` until it returns
    nothing; ``outcomes`` counts the outcomes of all queries. A batch on two workers has no single end: report of each
    worker that it ``ended`` or was ``lost``, and of the batch that it was ``answered`` or is ``returned``.
    Instants are µs of one clock and need not ascend. An unknown worker raises ``InputError``. ``workers``: their
    number, or those of another queue. A policy that raises costs at most the query under decision; ``on_failure`` is
    called each time.

    Source: superserve, §5 (the router: a global EDF queue, the scheduler called whenever a worker is idle).
    """

    def __init__(
        self,
        policy: Policy,
        workers: int | Workers = 1,
        on_failure: Callable[[PolicyFailure], None] = lambda failure: None,
    ):
        self.policy, self._on_failure = policy, on_failure
        self.workers = Workers(workers) if isinstance(workers, int) else workers
        self.queue = EdfQueue(self.workers)
        self.outcomes: Counter[RequestOutcome] = Counter()
        # Latency of the last call, for policies that do not know it; 0 for those that do.
        self._times, self.measured_us = CallTimes(), 0.0

    @property
    def running(self) -> Mapping[int, Batch]:
        """Batches of busy workers, those of other queues included."""
        return self.workers.running

    def arrive(self, query: Query, *, returning: bool = False) -> None:
        """Queue a query; ``returning``: it was here before, so it is no new arrival."""
        self.queue.push(query, returning=returning)

    def withdraw(self, query: Query, outcome: RequestOutcome = RequestOutcome.GONE) -> bool:
        """Remove a query whose client is gone or out of patience; return True if it still waited.

        A running batch is not cancelled.
        """
        was_waiting = self.queue.remove(query)
        self.outcomes[outcome] += was_waiting
        return was_waiting

    def next_batch(self, now_us: float) -> tuple[Batch | None, list[Drop]]:
        """Return the next batch, None when no query waits or no worker is idle, and the queries dropped before it.

        The batch begins at ``now_us``. Expired queries are dropped even while all workers are busy.
        """
        dropped: list[Drop] = []
        for query in self.queue.expire(now_us):
            dropped.append(self._dropped(query, RequestOutcome.EXPIRED, DEADLINE_PASSED))
        worker = self.workers.idle()
        while worker is not None and self.queue:
            dropped += self._shed(now_us)
            if not self.queue:
                break
            first = self.queue.peek()
            decision = self._decided(self.policy.decide, now_us, self.queue)
            assert first is not None
            if not isinstance(decision, Decision):
                dropped.append(self._undecided(self.queue.pop(), decision))
            elif (late := self._too_late(first, decision.point, now_us)) is not None:
                self.queue.pop()
                dropped.append(late)
            else:
                return self._begin(worker, decision, now_us), dropped
        return None, dropped

    def finished(self, worker: int, now_us: float) -> Batch:
        """Record the answers of ``worker``, now idle, and return their batch."""
        batch = self.ended(worker, now_us)
        self.answered(batch, now_us)
        return batch

    def ended(self, worker: int, now_us: float) -> Batch:
        """Mark ``worker`` idle and return its batch, whatever becomes of that."""
        batch = self.workers.ends(worker)
        self.workers.becomes_idle(worker, now_us)
        return batch

    def lost(self, worker: int) -> Batch | None:
        """Remove ``worker`` and return its batch, whatever becomes of that; None if it was idle."""
        batch = self.workers.ends(worker) if worker in self.running else None
        self.workers.remove(worker)
        return batch

    def answered(self, batch: Batch, now_us: float) -> None:
        """Record that ``batch`` is answered."""
        for query in batch.queries:
            self.outcomes[RequestOutcome.IN_TIME if now_us <= query.deadline_us else RequestOutcome.LATE] += 1

    def returned(self, batch: Batch) -> None:
        """Queue the queries of ``batch`` again."""
        for query in batch.queries:
            self.queue.push(query, returning=True)

    def joined(self, now_us: float) -> int:
        """Add an idle worker and return its number, that of a dead one if there is one."""
        return self.workers.adds(now_us)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        """Return the expected time of a call by the policy, or else by earlier calls; 0 without any."""
        planned_us = self._call_policy("planned_us", float, 0.0, point, examples)
        self.measured_us = 0.0 if planned_us else self._times.of(point, examples)
        return planned_us or self.measured_us

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        """Note how long a call took."""
        self._times.observe(point, examples, took_us)
        self._call_policy("observe", _anything, None, point, examples, took_us)

    def _needs_us(self, query: Query, point: OperatingPoint) -> float:
        """Return how long a call is expected to take of which the policy does not know it, in µs; 0 for others."""
        needs_us = self._times.of(point, query.examples) if math.isfinite(query.deadline_us) else 0.0
        return 0.0 if needs_us and self._call_policy("planned_us", float, 0.0, point, query.examples) else needs_us

    def _too_late(self, query: Query, point: OperatingPoint, now_us: float) -> Drop | None:
        """Return the drop of a query that cannot be in time by the calls before; None if it can."""
        needs_us = self._needs_us(query, point)
        if needs_us <= query.slack_us(now_us):
            return None
        if needs_us > query.slack_us(query.arrival_us):
            self._times.doubt(point, query.examples)
        return self._dropped(query, RequestOutcome.EXPIRED, f"a call takes {needs_us:.0f} µs")

    def _call_policy(self, method: str, read: Callable[[Any], _T], otherwise: _T, *arguments: object) -> _T:
        """Call a policy's method and return ``read`` of the result, or ``otherwise`` if either fails.

        The policy may be a user's, and the call goes on.
        """
        try:
            return read(getattr(self.policy, method)(*arguments))
        except Exception as error:
            self._on_failure(PolicyFailure(self.policy, method, error))
            return otherwise

    def _decided(self, decide: Callable[..., Any], *arguments: object) -> Decision | CannotMeet | PolicyFailure | None:
        """Return the policy's decision. A query that it fails on must not take the others with it."""
        try:
            decision = decide(*arguments)
            if decision is not None and not isinstance(decision, (Decision, CannotMeet)):
                raise TypeError(f"it answered {decision!r:.60}, and neither Decision, CannotMeet nor None")
        except Exception as error:
            failure = PolicyFailure(self.policy, "decide", error)
            self._on_failure(failure)
            return failure
        return decision

    def _undecided(self, query: Query, decision: CannotMeet | PolicyFailure | None) -> Drop:
        if isinstance(decision, PolicyFailure):
            return self._dropped(query, RequestOutcome.FAILED, str(decision))
        return self._dropped(query, RequestOutcome.REJECTED, NO_POLICY if decision is None else decision.reason)

    @property
    def next_expiry_us(self) -> float:
        """Latest instant of the next call of ``next_batch``; ``inf`` when no query waits."""
        query = self.queue.peek()
        return math.inf if query is None else query.deadline_us

    def _shed(self, now_us: float) -> list[Drop]:
        """Shed queries and return them; none, or no more, if the policy fails."""
        dropped = []
        while (candidate := self._call_policy("shed_candidate", self._removed, None, now_us, self.queue)) is not None:
            dropped.append(self._dropped(candidate, RequestOutcome.SHED, "more important queries need the time"))
        return dropped

    def _removed(self, query: Query | None) -> Query | None:
        if query is not None and not self.queue.remove(query):
            raise ValueError(f"it names a query that does not wait: {query!r:.60}")
        return query

    def _begin(self, worker: int, decision: Decision, now_us: float) -> Batch:
        first = self.queue.peek()
        assert first is not None
        room, key, point = 0 if first.alone else decision.batch_size, first.batch_key, decision.point

        def joins(query: Query) -> bool:
            return not query.alone and query.batch_key == key and self._serves(point, query)

        queries = self.queue.take(room, joins)
        behind = self.queue.peek()
        if room > 1 and behind is not None and self._may_pass(first, decision.point, behind):
            queries += self._fitting(first, room, sum(query.examples for query in queries), decision.point, now_us)
        second = self.workers.second_idle(worker) if decision.concurrent else None
        examples = queries[0].examples if len(queries) == 1 else sum([query.examples for query in queries])
        decisions = [self._decision_for(query, decision) for query in queries] if len(queries) > 1 else ()
        bound = "queue-empty"
        if behind is not None and self.queue:
            bound = "alone" if first.alone else "full" if examples >= room else "no-fit"
        planned_us = self.planned_us(decision.point, examples)
        batch = Batch(worker, queries, decision, now_us, second, planned_us, decisions, bound)
        self.workers.begins(batch)
        return batch

    def _decision_for(self, query: Query, decision: Decision) -> Decision:
        return self._call_policy("decision_for", _decision, decision, query, decision)

    def _may_pass(self, first: Query, point: OperatingPoint, query: Query) -> bool:
        """True if others may pass ``query`` to join the batch of ``first``, because it never could."""
        if query.alone or query.batch_key != first.batch_key:
            return True
        own_point = self._own_point
        return own_point(query) is not None and own_point(first) is not None and not self._serves(point, query)

    def _serves(self, point: OperatingPoint, query: Query) -> bool:
        return self._call_policy("serves", bool, False, point, query)

    def _own_point(self, query: Query) -> OperatingPoint | None:
        point_of_query: OperatingPoint | None = self._call_policy("own_point", _anything, None, query)
        return point_of_query

    def _fitting(self, first: Query, room: int, count: int, point: OperatingPoint, now_us: float) -> list[Query]:
        """Take queries like ``first`` from behind others, to fill a batch of ``count`` examples.

        As many as let every query that they pass begin in time at its own point, by default the same one, once the
        batch has ended.
        """
        was_waiting: list[Query] = []
        ends_by_us, passed = math.inf, 0
        for query in self.queue:
            if self._may_pass(first, point, query):
                point_of_query = self._own_point(query) or point
                ends_by_us = min(ends_by_us, query.deadline_us - self.planned_us(point_of_query, query.examples))
                passed += 1
                if passed > MAX_PASSED:
                    break
                continue
            count += query.examples
            in_time = now_us + self.planned_us(point, count) <= ends_by_us
            if count > room or not in_time or not self._serves(point, query):
                break
            was_waiting.append(query)
        for query in was_waiting:
            self.queue.remove(query)
        return was_waiting

    def _dropped(self, query: Query, outcome: RequestOutcome, reason: str) -> Drop:
        self.outcomes[outcome] += 1
        return Drop(query, outcome, reason)


def _anything(answer: _T) -> _T:
    return answer


def _decision(answer: object) -> Decision:
    if not isinstance(answer, Decision):
        raise TypeError(f"it answered {answer!r:.60}, and no Decision")
    return answer
