"""Dispatch loop: gives the most urgent requests of all queues to idle workers, and ends those of each call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.models.signature import RowCountError
from slotool.scheduling import Batch, Workers
from slotool.serving import rejections
from slotool.serving.engines import InferenceEngine, WorkerLost
from slotool.serving.engines.ensemble import ensemble_plan, warm_up_examples
from slotool.serving.events import Events
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Outputs, Request, lowest
from slotool.serving.routing.calls import CallOutcome, ModelCalls
from slotool.serving.routing.model_queue import DefaultDeadline, LatencyHeadroom, ModelQueue, earliest_deadline
from slotool.tables import OperatingPoint

# Computes examples with a version of a model.
Ask = Callable[[OperatingPoint, Inputs], Awaitable[Outputs]]
# Iterations of the event loop between two dispatches. The first reads requests, the second runs their handlers and
# reads closed connections, the third marks those requests. Only then does the queue hold all that arrived during the
# last dispatch, without the requests of clients that have left.
READING_ITERATIONS = 3
# After a blocking call of this length more urgent requests may have arrived, or clients may have left.
LONG_US = 1_000.0
# Lost calls after which a request fails: it is taken for their cause.
MAX_ATTEMPTS = 3
# Time for which the answer to a version's warm-up example holds, however many requests fail.
VALID_US = 1e6


class DispatchLoop:
    """Loop that asks policies for batches while a worker is idle, makes their calls, and ends their requests.

    ``queues``: the router's, by name; ``default_deadline``: of requests without one; ``calls``: those in progress;
    ``headroom``: observes how much later than planned answers left.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        queues: Mapping[str, ModelQueue],
        workers: Workers,
        default_deadline: DefaultDeadline,
        headroom: LatencyHeadroom,
        *,
        metrics: Metrics,
        events: Events,
        now_us: Callable[[], float],
    ):
        self._engine, self._queues, self._workers = engine, queues, workers
        self._default_deadline, self._now_us = default_deadline, now_us
        self._metrics, self._events = metrics, events
        self.calls = ModelCalls(engine, workers, metrics, events, now_us, self.wake, self._worker_is_idle)
        self._headroom, self._faults = headroom, FaultCheck(now_us)
        # Called when all requests of a call are answered.
        self.batch_listener: Callable[[], None] = _nothing
        # True if a dispatch is scheduled, or in progress.
        self.is_scheduled = self._is_dispatching = False
        self._alarm: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop dispatching at deadlines, and close connections to other servers."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.calls.close()

    def waiting(self) -> int:
        """Return the number of requests in all queues."""
        waiting = 0
        for model_queue in self._queues.values():
            waiting += len(model_queue.dispatcher.queue)
        return waiting

    def wake(self, iterations: int = 0) -> None:
        """Dispatch in the next iteration of the event loop, or after ``iterations`` more."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._dispatch_after(iterations)

    def _worker_is_idle(self) -> None:
        # A dispatch in progress needs no wake-up. A loop that does not compute has read all arrivals: the worker would
        # wait while it reads more, such as images.
        if self._is_dispatching:
            return
        if self._engine.in_loop:
            self.wake_if_needed()
        elif self.waiting() or self.calls.waiting:
            self.dispatch()

    def wake_if_needed(self) -> None:
        """Dispatch what waits, once the loop has read what has arrived."""
        if self.waiting() or self.calls.waiting:
            self.wake(READING_ITERATIONS)

    def _dispatch_after(self, iterations: int) -> None:
        then = (self._dispatch_after, iterations - 1) if iterations else (self.dispatch,)
        asyncio.get_running_loop().call_soon(*then)

    def dispatch(self) -> None:
        """Serve the most urgent queries of all queues while a worker is idle.

        Where calls run in the loop itself, this ends after ``LONG_US``, so that the loop reads new arrivals.
        """
        self.is_scheduled = False
        began_us = now_us = self._now_us()
        self._default_deadline.expire(now_us)
        while self.calls.waiting and (worker := self._workers.idle()) is not None:
            self.calls.waiting.popleft()(worker)
            now_us = self._now_us()
        self._is_dispatching = True
        try:
            while (idle := self._workers.idle()) is not None:
                model_queue = earliest_deadline(self._queues.values())
                if model_queue is None or (self._engine.in_loop and now_us - began_us > LONG_US):
                    break
                self._turn(model_queue, now_us)
                now_us = self._now_us()
        finally:
            self._is_dispatching = False
        if idle is not None:
            # An iteration polls all sockets: worth it only for requests that wait or may have arrived meanwhile.
            if model_queue is not None or self.calls.waiting or now_us - began_us > LONG_US:
                self.wake(READING_ITERATIONS)
        elif self.waiting():
            for model_queue in self._queues.values():
                model_queue.reject(model_queue.dispatcher.next_batch(now_us)[1], now_us)  # expired ones
            self._set_alarm()

    def _turn(self, model_queue: ModelQueue, now_us: float) -> None:
        queue, pending = model_queue.dispatcher.queue, model_queue.pending
        while (query := queue.peek()) is not None and pending[query.id].is_disconnected():
            model_queue.withdraw(query)
        batch, drops = model_queue.dispatcher.next_batch(now_us)
        if batch is not None:
            model_queue.begin(len(batch.queries), now_us)
            requests = [pending[query.id] for query in batch.queries]
            if len(requests) > 1:
                for request in requests[1:]:
                    if request.is_disconnected():
                        request.end(rejections.client_gone())
                requests = [request for request in requests if not request.is_over]
            self._call(model_queue, batch, requests)
        # After the call, whose time does not include writing rejections.
        if drops:
            model_queue.reject(drops, now_us)

    def _note_switch(self, model_queue: ModelQueue, point: OperatingPoint) -> None:
        before = model_queue.switches_to(point)
        if before is not None:
            name = model_queue.served.name
            self._metrics.switches.labels(name).inc()
            self._events.emit(
                "switch", f"{name}: {before} to {point}", model=name, before=before.label, point=point.label
            )

    def _call(self, model_queue: ModelQueue, batch: Batch, requests: Sequence[Request]) -> None:
        if batch.decision.switches:
            self._note_switch(model_queue, batch.decision.point)
        x = requests[0].x if len(requests) == 1 else Columns.concatenate([request.x for request in requests])
        self.calls.make(model_queue, batch, x, partial(self._ended, model_queue, batch, requests))

    def _set_alarm(self) -> None:
        """Wake at the next deadline, to reject what expires while all workers are busy."""
        if self._alarm is not None:
            self._alarm.cancel()
        soonest_us = min(model_queue.dispatcher.next_expiry_us for model_queue in self._queues.values())
        soonest_us = min(soonest_us, self._default_deadline.next_us)
        if not math.isinf(soonest_us):
            wait_s = max(0.0, soonest_us - self._now_us()) * 1e-6
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self.wake)

    def _ended(
        self,
        model_queue: ModelQueue,
        batch: Batch,
        requests: Sequence[Request],
        outcome: CallOutcome,
        done_us: float,
        fallback: str = "",
    ) -> None:
        """End the call of ``batch``, which computed its ``requests``."""
        if isinstance(outcome, WorkerLost):
            model_queue.dispatcher.returned(batch)
            self._after_loss(model_queue, batch, outcome, done_us)
            return
        model_queue.dispatcher.answered(batch, done_us)
        if isinstance(outcome, Rejection):
            for query in batch.queries:
                model_queue.pending.pop(query.id).end(outcome)
        elif isinstance(outcome, Exception):
            self._separately(model_queue, batch, outcome)
        else:
            self._answer(model_queue, batch, requests, outcome, done_us, fallback)

    def _answer(
        self,
        model_queue: ModelQueue,
        batch: Batch,
        requests: Sequence[Request],
        scored: Outputs,
        done_us: float,
        fallback: str,
    ) -> None:
        took_us, examples = done_us - batch.begun_us, len(scored)
        # No lesson from a call that another point answered.
        planned_us = 0.0 if fallback else batch.planned_us
        if not fallback:
            model_queue.dispatcher.observe(batch.decision.point, examples, took_us)
        self._metrics.computed(model_queue.served.name, examples, batch.bound, took_us)
        for query in batch.queries:
            del model_queue.pending[query.id]
        first, answered, shared = 0, 0, len(requests) > 1
        decisions = {id(query): batch.decision_of(at) for at, query in enumerate(batch.queries)} if shared else {}
        for request in requests:
            query, last = request.query, first + request.query.examples
            part = scored.take(slice(first, last)) if shared else scored
            first = last
            sure = None if part.confidence is None else lowest(part.confidence)
            if sure is not None and math.isnan(sure):
                request.end(rejections.no_confidence())
            elif not request.is_over:
                queue_us, slack_us = batch.begun_us - query.arrival_us, query.deadline_us - done_us
                timing = queue_us, took_us, slack_us + request.headroom_us
                decision = decisions.get(id(query), batch.decision)
                request.end(InferenceResult(part, decision, *timing, examples, query.id, fallback, sure, shared))
                answered += 1
        self._all_answered(took_us, planned_us, done_us, answered)

    def _all_answered(self, took_us: float, planned_us: float, done_us: float, answers: int) -> None:
        """Observe by how much a call exceeded its plan, once its answers are sent; ``planned_us``: 0 without a plan."""
        self.batch_listener()
        # The time when they were sent, which may be much later than their results.
        now_us = self._now_us()
        self._headroom.observe(now_us - done_us + (took_us - planned_us if planned_us else 0.0), now_us, answers)

    def _after_loss(self, model_queue: ModelQueue, batch: Batch, error: WorkerLost, now_us: float) -> None:
        """Queue the batch of a lost worker again, except requests that were in too many lost calls."""
        for query in batch.queries:
            request = model_queue.pending[query.id]
            request.attempts += 1
            if request.attempts >= MAX_ATTEMPTS:
                model_queue.dispatcher.withdraw(query)
                del model_queue.pending[query.id]
                request.end(rejections.failed(error))
            elif self._default_deadline.has_passed(query, now_us):
                model_queue.expire(query, now_us)
            else:
                self._metrics.retries.labels(model_queue.served.name).inc()

    def _separately(self, model_queue: ModelQueue, batch: Batch, error: Exception) -> None:
        """Try each request of a failed batch once more, alone: one bad request must not fail the others."""
        for query in batch.queries:
            request = model_queue.pending[query.id]
            if request.is_over:
                del model_queue.pending[query.id]
            elif query.alone and batch.begun_us >= model_queue.changed_us:
                self.calls.start_task(self._blame(model_queue, batch, request, error))
            else:
                request.query = query._replace(alone=True)
                model_queue.dispatcher.arrive(request.query, returning=True)
                self._metrics.retries.labels(model_queue.served.name).inc()

    async def _blame(self, model_queue: ModelQueue, batch: Batch, request: Request, error: Exception) -> None:
        """Reject a request on which the model failed twice: as a bad one if the model answers a good one.

        A wrong number of output rows is never the request's fault.
        """
        served = model_queue.served
        ask = partial(self.calls.ask_local, model_queue, batch._replace(queries=[]))
        is_of_input = not isinstance(error, RowCountError) and await self._faults.is_of_input(
            served.model, batch.decision.point, ask
        )
        model_queue.pending.pop(request.query.id, None)
        if is_of_input:
            request.end(rejections.input_rejected(error, shapes_of(request.x)))
        else:
            request.end(rejections.failed(error))


class FaultCheck:
    """Search for the cause of a failed call: its input, if the model still answers its warm-up example."""

    def __init__(self, now_us: Callable[[], float]):
        self._now_us = now_us
        self._checks: dict[tuple[ElasticModel, OperatingPoint], tuple[float, asyncio.Task[bool]]] = {}

    async def is_of_input(self, model: ElasticModel, point: OperatingPoint, ask: Ask) -> bool:
        """True if ``model`` still answers a good input at ``point``, which ``ask`` sends; cached for a second.

        False where only versions behind other servers answer.
        """
        now_us = self._now_us()
        self._checks = {
            key: (asked_us, task)
            for key, (asked_us, task) in self._checks.items()
            if not task.done() or now_us - asked_us <= VALID_US
        }
        if (model, point) not in self._checks:
            self._checks[model, point] = now_us, asyncio.get_running_loop().create_task(_answers(model, point, ask))
        return await asyncio.shield(self._checks[model, point][1])


async def _answers(model: ElasticModel, point: OperatingPoint, ask: Ask) -> bool:
    plan = ensemble_plan(model, point)
    # The second version alone too: a confident first one would never consult it.
    local = [version for version in plan.points if version not in model.remote_points]
    points = [point, *local[1:]] if len(local) == len(plan.points) else local
    for example in warm_up_examples(model):
        try:
            for version in points:
                await ask(version, example)
        except WorkerLost:
            return False
        except Exception:  # the model may not take this size
            continue
        return bool(points)
    return False


def shapes_of(x: Columns) -> str:
    """Format the inputs of a request with their shapes."""
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in x.arrays.items())
    return listed if len(listed) <= 120 else f"{listed[:120]}…"


def _nothing() -> None:
    """Do nothing."""
