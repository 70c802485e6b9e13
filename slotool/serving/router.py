"""The router: one EDF queue per model, policies that choose a point and a batch, workers of an engine that compute."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slotool.elastic import ElasticModel
from slotool.scheduling import Decision, EdfQueue, Policy, Query
from slotool.serving import refusals
from slotool.serving.demands import Demands
from slotool.serving.engines import Engine, InlineEngine, WorkerLost
from slotool.serving.ensemble import Scored
from slotool.serving.metrics import Metrics
from slotool.serving.refusals import Refusal
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

# Turns of the event loop between two dispatches: requests are read in the first, in the second their handlers run and
# closed connections are read, in the third these are noted. Only then does the queue hold all that arrived during the
# last dispatch, and is it known who has left.
READING_TURNS = 3
# A request is given to a worker so often; one that takes three workers with it is taken to be the reason.
MOST_ATTEMPTS = 3


def monotonic_us() -> float:
    """The router's clock: µs from an arbitrary origin."""
    return time.monotonic_ns() * 1e-3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got and what it took: ``queue_us`` from arrival to dispatch, ``compute_us`` from there to the
    answer, ``slack_us`` left to the deadline by then (negative: too late; ``inf``: no deadline), ``batch``: examples
    in the call that answered it, those of other requests included."""

    scored: Scored
    decision: Decision
    queue_us: float
    compute_us: float
    slack_us: float
    batch: int

    @property
    def labels(self) -> np.ndarray:
        """int64 [n]: the class of the highest score."""
        return self.scored.logits.argmax(axis=1).astype(np.int64)


@dataclass(slots=True)
class _Ticket:
    """A request that waits. ``attempts``: calls it has been in; ``alone``: a call it shared failed, so it shares no
    other."""

    query: Query
    x: np.ndarray
    future: asyncio.Future[Answer]
    is_gone: Callable[[], bool]
    attempts: int = 0
    alone: bool = False

    @property
    def unwanted(self) -> bool:
        return self.future.cancelled() or self.is_gone()


class _Lane:
    """A served model with its queue, and the tickets of the queries waiting in it."""

    def __init__(self, served: ServedModel, free_us: np.ndarray):
        self.served = served
        self.queue = EdfQueue()
        self.queue.free_us = free_us
        self.tickets: dict[str, _Ticket] = {}

    def put(self, ticket: _Ticket, *, returning: bool = False) -> None:
        self.tickets[ticket.query.id] = ticket
        self.queue.push(ticket.query, returning=returning)

    def take(self, decision: Decision) -> list[_Ticket]:
        """The most urgent and those that may share its call."""
        policy, tickets = self.served.policy, self.tickets
        first = self.queue.peek()
        assert first is not None
        room = 0 if tickets[first.id].alone else decision.batch_size
        batch = self.queue.take(
            room, lambda query: not tickets[query.id].alone and policy.serves(decision.point, query)
        )
        return [tickets.pop(query.id) for query in batch]

    def expire(self, now_us: float) -> None:
        for late in self.queue.expire(now_us):
            _refuse(self.tickets.pop(late.id), refusals.expired(now_us - late.arrival_us))


class Router:
    """Has requests wait in EDF order, and gives the most urgent to a worker as soon as one is idle.

    Batches form at dispatch, as far as the policy's decision allows. Where calls run in the event loop, the loop reads
    what has arrived between two of them, so that an urgent newcomer overtakes. A request whose worker is lost is given
    to another one while its deadline lasts. ``max_queue``: requests waiting beyond this are refused on arrival.
    Use it from one event loop. ``clock_us`` may be replaced in tests.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        engine: Engine | None = None,
        metrics: Metrics | None = None,
        *,
        max_queue: int = 1_000,
        clock_us: Callable[[], float] = monotonic_us,
    ):
        self.metrics = metrics or Metrics()
        self.engine = engine or InlineEngine()
        self.now_us = clock_us
        # By worker the instant at which it comes free, as far as that can be told; infinite once it is lost.
        self._free_us = np.zeros(self.engine.workers)
        self._idle = set(range(self.engine.workers))
        self._lanes = {name: _Lane(served, self._free_us) for name, served in models.items()}
        self._max_queue = max_queue
        self._numbered = 0
        self._scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        self.metrics.watch_queue(self.waiting)
        self.metrics.watch_workers(self.alive)
        self.engine.open(models, self._worker_changed)

    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    def alive(self) -> int:
        """Workers that are there, busy or not."""
        return int(np.isfinite(self._free_us).sum())

    def close(self) -> None:
        """Let go of the engine."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.engine.close()

    def replace(self, served: ServedModel) -> None:
        """From the next dispatch on, choose by another policy or other rules; nobody who waits is lost.

        Raises ``InputError`` when the model does not have the new policy's points; then nothing has changed.
        """
        self.engine.prepare(served.name, served.policy.points)
        self._lanes[served.name].served = served

    async def answer(
        self, name: str, x: np.ndarray, demands: Demands, arrival_us: float, is_gone: Callable[[], bool]
    ) -> Answer:
        """The answer for ``x`` (float32 [n, *input_shape]) of the model ``name``, when its turn has come.

        ``is_gone`` tells, just before any work is done, whether the client has left. Raises ``Refusal``.
        """
        lane = self._lanes[name]
        waiting = self.waiting()
        if waiting >= self._max_queue:
            raise refusals.queue_full(waiting)
        self._numbered += 1
        query = Query(
            str(self._numbered),
            arrival_us,
            arrival_us + demands.timeout_us,
            demands.tolerance,
            demands.objective,
            demands.min_accuracy,
            demands.priority,
            len(x),
            None if demands.min_accuracy is None else _expected(lane.served.model, x),
        )
        ticket = _Ticket(query, x, asyncio.get_running_loop().create_future(), is_gone)
        lane.put(ticket)
        self._wake()
        return await ticket.future

    def _wake(self, turns: int = 0) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._dispatch_after(turns)

    def _dispatch_after(self, turns: int) -> None:
        then = (self._dispatch_after, turns - 1) if turns else (self._dispatch,)
        asyncio.get_running_loop().call_soon(*then)

    def _dispatch(self) -> None:
        """Serve the most urgent queries of all lanes while a worker is idle; in the loop itself one call at a time,
        for the loop has to read what arrives meanwhile."""
        self._scheduled = False
        calls, now_us = 0, self.now_us()
        for each in self._lanes.values():
            each.expire(now_us)
        while self._idle and not (calls and self.engine.in_loop):
            lane = min((lane for lane in self._lanes.values() if lane.queue), key=_urgency, default=None)
            if lane is None:
                break
            calls += self._dispatch_from(lane, now_us)
        if self.waiting():
            if self._idle:
                self._wake(READING_TURNS)
            else:
                self._set_alarm()

    def _dispatch_from(self, lane: _Lane, now_us: float) -> bool:
        """Whether the most urgent query led to a call; if not, it is refused and gone."""
        query = lane.queue.peek()
        assert query is not None
        if lane.tickets[query.id].unwanted:
            refusal: Decision | Refusal = refusals.client_gone()
        else:
            refusal = _decide(lane.served.policy, now_us, lane.queue)
        if isinstance(refusal, Refusal):
            lane.queue.pop()
            _refuse(lane.tickets.pop(query.id), refusal)
            return False
        batch = lane.take(refusal)
        for ticket in batch[1:]:
            if ticket.unwanted:
                _refuse(ticket, refusals.client_gone())
        self._call(lane, refusal, [ticket for ticket in batch if not ticket.future.done()], now_us)
        return True

    def _call(self, lane: _Lane, decision: Decision, batch: list[_Ticket], now_us: float) -> None:
        served, worker = lane.served, min(self._idle)
        x = batch[0].x if len(batch) == 1 else np.concatenate([ticket.x for ticket in batch])
        self._idle.discard(worker)
        self._free_us[worker] = now_us + served.policy.planned_us(decision.point, len(x))

        def done(result: Scored | Exception) -> None:
            done_us = self.now_us()
            if not isinstance(result, WorkerLost):
                self._free_us[worker] = done_us
                self._idle.add(worker)
            self._wake(READING_TURNS)
            if isinstance(result, Scored):
                self._finish(lane, decision, batch, result, now_us, done_us)
            else:
                self._again_or_never(lane, batch, result)

        try:
            self.engine.begin(worker, served.name, decision.point, x, done)
        except Exception as error:
            done(error)

    def _worker_changed(self, worker: int, alive: bool) -> None:
        """The engine's word on a worker that is not in a call, or comes back."""
        self._free_us[worker] = self.now_us() if alive else math.inf
        if alive:
            self._idle.add(worker)
            self.metrics.worker_restarted()
            self._wake()
        else:
            self._idle.discard(worker)

    def _finish(
        self,
        lane: _Lane,
        decision: Decision,
        batch: Sequence[_Ticket],
        scored: Scored,
        dispatched_us: float,
        done_us: float,
    ) -> None:
        took_us = done_us - dispatched_us
        examples = len(scored.logits)
        lane.served.policy.observe(decision.point, examples, took_us)
        self.metrics.computed(lane.served.name, examples)
        first = 0
        for ticket in batch:
            query, last = ticket.query, first + len(ticket.x)
            part = scored if len(batch) == 1 else Scored(scored.logits[first:last], scored.confidence[first:last])
            first = last
            if np.isnan(part.confidence).any():
                overflow = "the model's scores overflow on this input: its values are too large"
                _refuse(ticket, refusals.bad_request(overflow))
            elif not ticket.future.done():
                timing = dispatched_us - query.arrival_us, took_us, query.slack_us(done_us)
                ticket.future.set_result(Answer(part, decision, *timing, examples))

    def _again_or_never(self, lane: _Lane, batch: Sequence[_Ticket], error: Exception) -> None:
        """A lost worker's batch is tried on another one; of a batch that failed each request by itself, so that one
        does not take the others with it."""
        lost = isinstance(error, WorkerLost)
        for ticket in batch:
            ticket.attempts += 1
            if ticket.attempts < MOST_ATTEMPTS and (lost or len(batch) > 1):
                ticket.alone = not lost or ticket.attempts > 1
                lane.put(ticket, returning=True)
                self.metrics.retried(lane.served.name)
            else:
                _refuse(ticket, refusals.failed(error))

    def _set_alarm(self) -> None:
        """All workers are busy: come back when the first deadline passes, so that nobody is left without a word."""
        if self._alarm is not None:
            self._alarm.cancel()
        heads = (lane.queue.peek() for lane in self._lanes.values())
        soonest_us = min((query.deadline_us for query in heads if query is not None), default=math.inf)
        if not math.isinf(soonest_us):
            wait_s = max(0.0, soonest_us - self.now_us()) * 1e-6
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._wake)


def _urgency(lane: _Lane) -> tuple[float, float, float]:
    query = lane.queue.peek()
    assert query is not None
    return query.urgency


def _decide(policy: Policy, now_us: float, queue: EdfQueue) -> Decision | Refusal:
    try:
        answer = policy.decide(now_us, queue)
    except Exception as error:
        return refusals.failed(error)
    if isinstance(answer, Decision):
        return answer
    return refusals.cannot_meet(answer.reason if answer else "no policy of this server applies to the request")


def _refuse(ticket: _Ticket, refusal: Refusal) -> None:
    # A cancelled future has nobody behind it.
    if not ticket.future.done():
        ticket.future.set_exception(refusal)


def _expected(model: ElasticModel, x: np.ndarray) -> dict[OperatingPoint, float] | None:
    """Per point the least accuracy any example of ``x`` may expect, so that the request's minimum holds for each."""
    each = [model.expected_accuracy(x[i : i + 1]) for i in range(len(x))]
    known = [expected for expected in each if expected is not None]
    if len(known) < len(each):
        return None
    return {point: min(expected.get(point, 0.0) for expected in known) for point in known[0]}
