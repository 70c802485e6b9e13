"""The router: one EDF queue per model, policies that choose a point and a batch, workers of an engine that compute."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from slotool.elastic import ElasticModel
from slotool.errors import InputError
from slotool.scheduling import Batch, Query, Workers
from slotool.serving import rejections
from slotool.serving.demands import Demands
from slotool.serving.engines import Engine, InlineEngine, WorkerLost
from slotool.serving.ensemble import Scored, plan_of
from slotool.serving.events import Events
from slotool.serving.lanes import Answer, DefaultDeadline, Lane, Ticket, urgency
from slotool.serving.margin import Margin
from slotool.serving.metrics import Metrics
from slotool.serving.pair import Outcome, Pair, Told
from slotool.serving.rejections import Rejection
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

# Turns of the event loop between two dispatches: requests are read in the first, in the second their handlers run and
# closed connections are read, in the third these are noted. Only then does the queue hold all that arrived during the
# last dispatch, and is it known who has left.
READING_TURNS = 3
# The loop has been away for so long that somebody may have come, more urgent than those who wait, or left again.
LONG_US = 1_000.0
# A request is given to a worker so often; one that takes three workers with it is taken to be the reason.
MOST_ATTEMPTS = 3


def monotonic_us() -> float:
    """The router's clock: µs from an arbitrary origin."""
    return time.monotonic_ns() * 1e-3


class Router:
    """Has requests wait in EDF order, and gives the most urgent to a worker as soon as one is idle.

    Batches form at dispatch, as far as the policy's decision allows. Where calls run in the event loop, the loop reads
    what has arrived after each that is long, and after a millisecond of short ones, so that an urgent newcomer
    overtakes. A request whose worker is lost is given to another one while its deadline lasts. Deadlines are brought
    forward by ``margin``, learnt from answers. ``max_queue``: requests waiting beyond this are rejected on arrival.
    ``default_deadline_us``: for so long those without a deadline wait for a worker (``inf``: for ever).
    ``events``: told of workers lost and replaced and of models switched. ``clock_us`` may be replaced in tests. Use it
    from one event loop. Raises ``InputError`` when there are no models or one cannot be served by the engine,
    ``RunError`` when one cannot run.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        engine: Engine | None = None,
        metrics: Metrics | None = None,
        *,
        max_queue: int = 1_000,
        default_deadline_us: float = math.inf,
        events: Events | None = None,
        clock_us: Callable[[], float] = monotonic_us,
    ):
        if not models:
            raise InputError("there is no model to serve")
        self.metrics = metrics or Metrics()
        self.events = events or Events()
        self.engine = engine or InlineEngine()
        self.now_us = clock_us
        self.margin = Margin()
        # Whether nobody else has come in this turn of the event loop, who might be more urgent or share a call. The
        # server knows.
        self.comes_alone: Callable[[], bool] = lambda: False
        self._workers = Workers(self.engine.workers, pairs=self.engine.pairs)
        self._lanes = {name: Lane(served, self._workers, self._no_worker) for name, served in models.items()}
        self._max_queue = max_queue
        self._default_deadline = DefaultDeadline(default_deadline_us)
        self._ended: Rejection | None = None
        self.is_draining = False
        self._numbered = 0
        self._scheduled = False
        self._alarm: asyncio.TimerHandle | None = None
        self.metrics.watch_queue(self.waiting)
        self.metrics.watch_workers(self.alive)
        self.engine.open(models, self._worker_changed)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """What is served, as it is now."""
        return {name: lane.served for name, lane in self._lanes.items()}

    def model(self, name: str) -> ServedModel | None:
        """The model of this name as it is served now."""
        lane = self._lanes.get(name)
        return None if lane is None else lane.served

    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(len(lane.state.queue) for lane in self._lanes.values())

    def alive(self) -> int:
        """Workers that are there, busy or not."""
        return int(np.isfinite(self._workers.free_us).sum())

    def busy(self) -> int:
        """Workers that are at a call."""
        return len(self._workers.running)

    def unready(self) -> Rejection | None:
        """Why no request could be answered now; None while a worker is there that has every model warm."""
        return rejections.stopping() if self.is_draining else self._no_worker()

    def listen(self) -> None:
        """From now on notice, in the running event loop, workers that are lost while they are idle."""
        self.engine.listen()

    def end(self) -> None:
        """Reject everybody who is not answered yet, also those whose call has not ended, and all who come."""
        self._ended = rejections.stopping()
        for lane in self._lanes.values():
            lane.end(self._ended)

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
        lane = self._lanes[served.name]
        lane.served, lane.state.policy = served, served.policy

    async def answer(
        self, name: str, x: np.ndarray, demands: Demands, arrival_us: float, is_gone: Callable[[], bool]
    ) -> Answer:
        """The answer for ``x`` (float32 [n, *input_shape]) of the model ``name``, when its turn has come.

        ``is_gone`` tells, just before any work is done, whether the client has left. Raises ``Rejection``.
        """
        lane = self._lanes[name]
        if self._ended is not None:
            raise self._ended
        if not self._workers.running and self._workers.idle() is None:
            self._require_worker(demands.timeout_us)
        waiting = self.waiting()
        if waiting >= self._max_queue:
            raise rejections.queue_full(waiting)
        self._numbered += 1
        margin_us = self.margin.of(demands.timeout_us, arrival_us)
        query = Query(
            str(self._numbered),
            arrival_us,
            arrival_us + demands.timeout_us - margin_us,
            demands.tolerance,
            demands.objective,
            demands.min_accuracy,
            demands.priority,
            len(x),
            None if demands.min_accuracy is None else _expected(lane.served.model, x),
        )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        ticket = lane.tickets[query.id] = Ticket(query, x, future, is_gone, margin_us)
        lane.state.arrive(query)
        self._default_deadline.begin(lane, query)
        if self._scheduled or not self.comes_alone():
            self._wake()
        else:
            self._dispatch()
        answer = await future
        now_us = self.now_us()
        lag_us = now_us - arrival_us - answer.queue_us - answer.compute_us
        loop.call_soon(self.margin.saw, lag_us + ticket.overrun_us, now_us)
        return answer

    def _no_worker(self) -> Rejection | None:
        alive = self.alive()
        return (
            None if alive else rejections.no_worker(self.engine.workers, self.engine.workers, self.engine.ready_in_s())
        )

    def _require_worker(self, timeout_us: float) -> None:
        """Raises ``Rejection`` for a request whose deadline comes before a worker is expected to be there."""
        no_worker = self._no_worker()
        if no_worker is not None and timeout_us < self.engine.ready_in_s() * 1e6:
            raise no_worker

    def _wake(self, turns: int = 0) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._dispatch_after(turns)

    def _wake_if_needed(self, blocked_us: float = 0.0) -> None:
        # A turn of the loop costs a look at all sockets: it is for those who wait, or may have come meanwhile.
        if self.waiting() or blocked_us > LONG_US:
            self._wake(READING_TURNS)

    def _dispatch_after(self, turns: int) -> None:
        then = (self._dispatch_after, turns - 1) if turns else (self._dispatch,)
        asyncio.get_running_loop().call_soon(*then)

    def _dispatch(self) -> None:
        """Serve the most urgent queries of all lanes while a worker is idle; in the loop itself not for long at a time,
        for the loop has to read what arrives meanwhile."""
        self._scheduled = False
        began_us = now_us = self.now_us()
        self._default_deadline.expire(now_us)
        while self._workers.idle() is not None and not (self.engine.in_loop and now_us - began_us > LONG_US):
            lane = min((lane for lane in self._lanes.values() if lane.state.queue), key=urgency, default=None)
            if lane is None:
                break
            self._turn(lane, now_us)
            now_us = self.now_us()
        if self._workers.idle() is not None:
            self._wake_if_needed(blocked_us=now_us - began_us)
        elif self.waiting():
            for lane in self._lanes.values():
                lane.reject(lane.state.turn(now_us)[1], now_us)  # those whose deadline has come
            self._set_alarm()

    def _turn(self, lane: Lane, now_us: float) -> None:
        while (query := lane.state.queue.peek()) is not None and lane.tickets[query.id].unwanted:
            lane.withdraw(query)
        batch, drops = lane.state.turn(now_us)
        lane.reject(drops, now_us)
        if batch is None:
            return
        tickets = [lane.tickets[query.id] for query in batch.queries]
        for ticket in tickets[1:]:
            if ticket.unwanted:
                ticket.reject(rejections.client_gone())
        self._call(lane, batch, [ticket for ticket in tickets if not ticket.future.done()])

    def _note_switch(self, lane: Lane, point: OperatingPoint) -> None:
        before, lane.switched_to = lane.switched_to, point
        if before is not None and before != point:
            name = lane.served.name
            self.metrics.switched(name)
            self.events.tell("switch", f"{name}: {before} to {point}", model=name, before=before.key, point=point.key)

    def _call(self, lane: Lane, batch: Batch, wanted: Sequence[Ticket]) -> None:
        if batch.decision.switches:
            self._note_switch(lane, batch.decision.point)
        x = wanted[0].x if len(wanted) == 1 else np.concatenate([ticket.x for ticket in wanted])
        settle = partial(self._settle, lane, batch, wanted)
        if batch.beside is None:
            self._give(batch.worker, lane, batch.decision.point, x, settle)
            return
        plan = plan_of(lane.served.model, batch.decision.point)
        assert plan.second is not None
        pair = Pair(plan, settle, partial(self._call_off, batch.beside, lane))
        self._give(batch.beside, lane, plan.second, x, pair.second)
        self._give(batch.worker, lane, plan.first, x, pair.first)

    def _give(self, worker: int, lane: Lane, point: OperatingPoint, x: np.ndarray, tell: Told) -> None:
        """A call for one worker; ``tell`` is told its outcome when the worker is idle again or gone."""

        def done(outcome: Outcome) -> None:
            now_us = self.now_us()
            if isinstance(outcome, WorkerLost):
                lane.state.lost(worker)
                self.events.tell("worker-lost", str(outcome), worker=worker)
            else:
                lane.state.ended(worker, now_us)
            tell(outcome, now_us)
            self._wake_if_needed()

        try:
            self.engine.begin(worker, lane.served.name, point, x, done)
        except Exception as error:
            done(error)

    def _call_off(self, worker: int, lane: Lane) -> None:
        self.metrics.called_off(lane.served.name)
        self.engine.call_off(worker)

    def _settle(self, lane: Lane, batch: Batch, wanted: Sequence[Ticket], outcome: Outcome, done_us: float) -> None:
        if isinstance(outcome, WorkerLost):
            lane.state.returned(batch)
            self._again_or_never(lane, batch, outcome, done_us)
            return
        lane.state.answered(batch, done_us)
        if isinstance(outcome, Scored):
            self._finish(lane, batch, wanted, outcome, done_us)
        else:
            self._take_apart(lane, batch, outcome)

    def _finish(self, lane: Lane, batch: Batch, wanted: Sequence[Ticket], scored: Scored, done_us: float) -> None:
        took_us, examples = done_us - batch.begun_us, len(scored.logits)
        lane.served.policy.observe(batch.decision.point, examples, took_us)
        self.metrics.computed(lane.served.name, examples)
        planned_us = lane.served.policy.planned_us(batch.decision.point, examples)
        for query in batch.queries:
            del lane.tickets[query.id]
        first = 0
        for ticket in wanted:
            query, last = ticket.query, first + len(ticket.x)
            part = scored if len(wanted) == 1 else Scored(scored.logits[first:last], scored.confidence[first:last])
            first = last
            if np.isnan(part.confidence).any():
                overflow = "the model's scores overflow on this input: its values are too large"
                ticket.reject(rejections.bad_request(overflow))
            elif not ticket.future.done():
                ticket.overrun_us = took_us - planned_us if planned_us else 0.0
                timing = batch.begun_us - query.arrival_us, took_us, query.slack_us(done_us) + ticket.margin_us
                ticket.future.set_result(Answer(part, batch.decision, *timing, examples, query.id))

    def _again_or_never(self, lane: Lane, batch: Batch, error: WorkerLost, now_us: float) -> None:
        """The batch of a lost worker waits again, but for those who have been in too many such calls."""
        for query in batch.queries:
            ticket = lane.tickets[query.id]
            ticket.attempts += 1
            if ticket.attempts >= MOST_ATTEMPTS:
                lane.state.withdraw(query)
                del lane.tickets[query.id]
                ticket.reject(rejections.failed(error))
            elif self._default_deadline.has_passed(query, now_us):
                lane.expire(query, now_us)
            else:
                self.metrics.retried(lane.served.name)

    def _take_apart(self, lane: Lane, batch: Batch, error: Exception) -> None:
        """Of a batch that failed each request is tried by itself, so that one does not take the others with it."""
        for query in batch.queries:
            ticket = lane.tickets.pop(query.id)
            if len(batch.queries) > 1 and not ticket.future.done():
                ticket.query = replace(query, alone=True)
                lane.tickets[query.id] = ticket
                lane.state.arrive(ticket.query, returning=True)
                self.metrics.retried(lane.served.name)
            else:
                ticket.reject(rejections.failed(error))

    def _worker_changed(self, worker: int, alive: bool) -> None:
        """The engine's word on a worker that is not in a call, or is there again."""
        if alive:
            self._workers.joins(self.now_us(), worker)
            self.metrics.worker_restarted()
            self._wake()
            self.events.tell("worker-replaced", f"worker {worker} is replaced", worker=worker)
        else:
            self._workers.free_us[worker] = math.inf
            self.events.tell("worker-lost", f"worker {worker} ended while it was in no call", worker=worker)

    def _set_alarm(self) -> None:
        """All workers are busy: come back when the first deadline passes, so that nobody is left without a word."""
        if self._alarm is not None:
            self._alarm.cancel()
        soonest_us = min(lane.state.next_expiry_us for lane in self._lanes.values())
        soonest_us = min(soonest_us, self._default_deadline.next_us)
        if not math.isinf(soonest_us):
            wait_s = max(0.0, soonest_us - self.now_us()) * 1e-6
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self._wake)


def _expected(model: ElasticModel, x: np.ndarray) -> dict[OperatingPoint, float] | None:
    """Per point the least accuracy any example of ``x`` may expect, so that the request's minimum holds for each."""
    each = [model.expected_accuracy(x[i : i + 1]) for i in range(len(x))]
    known = [expected for expected in each if expected is not None]
    if len(known) < len(each):
        return None
    return {point: min(expected.get(point, 0.0) for expected in known) for point in known[0]}
