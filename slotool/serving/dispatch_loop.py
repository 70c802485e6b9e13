"""The dispatch loop: gives the most urgent requests of all queues to idle workers, in turns of the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from slotool.data.columns import concatenate
from slotool.scheduling import Batch, Workers
from slotool.serving import rejections
from slotool.serving.call_results import CallResults
from slotool.serving.calls import Calls
from slotool.serving.engines import InferenceEngine
from slotool.serving.events import Events
from slotool.serving.headroom import LatencyHeadroom
from slotool.serving.metrics import Metrics
from slotool.serving.model_queue import DefaultDeadline, ModelQueue, earliest_deadline
from slotool.serving.request import Request
from slotool.serving.retries import Retries
from slotool.tables import OperatingPoint

# Iterations of the event loop between two dispatches. The first reads requests, the second runs their handlers and
# reads closed connections, the third marks those requests. Only then does the queue hold all that arrived during the
# last dispatch, without the requests of clients that have left.
READING_ITERATIONS = 3
# After a blocking call of this length more urgent requests may have arrived, or clients may have left.
LONG_US = 1_000.0


class DispatchLoop:
    """Asks policies for batches while a worker is idle, and makes their calls.

    ``queues``: the router's, by name; ``default_deadline``: of requests without one; ``calls``: those in progress;
    ``results``: what becomes of them; ``hand_over``: called after requests came to wait again, with the queue that they
    wait in.
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
        self.calls = Calls(engine, workers, metrics, events, now_us, self.wake, self._worker_is_idle)
        retries = Retries(self.calls, metrics, default_deadline)
        self.results = CallResults(headroom, retries, metrics, now_us)
        # Whether a dispatch is to come, and whether one goes on.
        self.is_scheduled = self._is_dispatching = False
        self._alarm: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Dispatch no more at deadlines, and close connections to other servers."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.calls.close()

    def waiting(self) -> int:
        """Requests in all queues."""
        waiting = 0
        for model_queue in self._queues.values():
            waiting += len(model_queue.dispatcher.queue)
        return waiting

    def wake(self, iterations: int = 0) -> None:
        """Dispatch in the next iteration of the event loop, or after so many more."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._dispatch_after(iterations)

    def _worker_is_idle(self) -> None:
        # A dispatch that goes on looks for itself. A loop that does not compute has read what has arrived: the worker
        # would wait while it reads more, images say.
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
        """Serve the most urgent queries of all queues while a worker is idle. Where calls run in the loop itself, this
        takes at most ``LONG_US`` at a time, so that the loop reads new arrivals."""
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
            # An iteration of the loop polls all sockets: worth it only for requests that wait or may have arrived
            # meanwhile.
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
        if drops:
            model_queue.reject(drops, now_us)
        if batch is None:
            return
        requests = [pending[query.id] for query in batch.queries]
        if len(requests) > 1:
            for request in requests[1:]:
                if request.is_disconnected():
                    request.end(rejections.client_gone())
            requests = [request for request in requests if not request.is_over]
        self._call(model_queue, batch, requests)

    def _note_switch(self, model_queue: ModelQueue, point: OperatingPoint) -> None:
        before = model_queue.switches_to(point)
        if before is not None:
            name = model_queue.served.name
            self._metrics.switched(name)
            self._events.emit(
                "switch", f"{name}: {before} to {point}", model=name, before=before.label, point=point.label
            )

    def _call(self, model_queue: ModelQueue, batch: Batch, wanted: Sequence[Request]) -> None:
        if batch.decision.switches:
            self._note_switch(model_queue, batch.decision.point)
        x = wanted[0].x if len(wanted) == 1 else concatenate([request.x for request in wanted])
        self.calls.make(model_queue, batch, x, partial(self.results.ended, model_queue, batch, wanted))

    def _set_alarm(self) -> None:
        """All workers are busy: wake at the next deadline, to reject what expires."""
        if self._alarm is not None:
            self._alarm.cancel()
        soonest_us = min(model_queue.dispatcher.next_expiry_us for model_queue in self._queues.values())
        soonest_us = min(soonest_us, self._default_deadline.next_us)
        if not math.isinf(soonest_us):
            wait_s = max(0.0, soonest_us - self._now_us()) * 1e-6
            self._alarm = asyncio.get_running_loop().call_later(wait_s, self.wake)
