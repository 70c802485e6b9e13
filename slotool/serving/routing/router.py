"""Router: admits requests to one EDF queue per model, which the dispatch loop serves."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from slotool.data.columns import Inputs
from slotool.errors import InputError
from slotool.scheduling import Query, Workers
from slotool.serving import rejections
from slotool.serving.engines import InferenceEngine, InlineInferenceEngine
from slotool.serving.events import Events
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Request, answer_of
from slotool.serving.request_options import RequestOptions, with_objective
from slotool.serving.routing.dispatch_loop import DispatchLoop
from slotool.serving.routing.model_queue import DefaultDeadline, LatencyHeadroom, ModelQueue
from slotool.serving.served import ServedModel

_IS_BEHIND = attrgetter("is_behind")
# Time for the last requests of a removed model, and interval of checks.
DRAIN_S, DRAINED_LOOK_S = 30.0, 0.02
# Random bytes of an id, and ids drawn at a time.
ID_BYTES, IDS_AT_ONCE = 12, 1_024


def monotonic_us() -> float:
    """Return the router's time: µs from an arbitrary origin."""
    return time.monotonic_ns() * 1e-3


def request_ids() -> Iterator[str]:
    """Yield ids that nobody can guess and no other process yields: 96 random bits each.

    They are drawn in batches: 0.1 µs an id, where ``secrets.token_hex`` takes 1 µs.
    """
    while True:
        drawn = os.urandom(IDS_AT_ONCE * ID_BYTES).hex()
        for at in range(0, len(drawn), 2 * ID_BYTES):
            yield drawn[at : at + 2 * ID_BYTES]


class Router:
    """Router that queues requests in EDF order and gives the most urgent to the next idle worker.

    Batches form at dispatch, as far as the policy's decision allows. If calls run in the event loop, it reads new
    arrivals after each long call and after each millisecond of short calls, so that an urgent request overtakes. If a
    worker is lost, its request goes to another one until its deadline. Deadlines are brought forward by ``headroom``, a
    latency headroom estimated from recent answers. Versions behind another server are called outside the workers
    (``RemoteCall``). Use it from one event loop.

    ``max_queue``: maximum number of waiting requests; more are rejected on arrival. ``default_deadline_us``: longest
    wait of a request without a deadline (``inf``: unbounded). ``events``: receives workers lost and replaced and points
    switched. ``clock_us`` may be replaced in tests. Raises ``InputError`` when there are no models or the engine cannot
    serve one, ``RunError`` when one cannot run.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        engine: InferenceEngine | None = None,
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
        self.engine = engine or InlineInferenceEngine()
        self.now_us = clock_us
        self.headroom = LatencyHeadroom()
        self._workers = Workers(self.engine.workers)
        self._queues = {name: self._new_queue(served) for name, served in models.items()}
        # Called when the served models have changed.
        self.models_listener: Callable[[], None] | None = None
        self._max_queue = max_queue
        self._default_deadline = DefaultDeadline(default_deadline_us)
        self._dispatch_loop = DispatchLoop(
            self.engine,
            self._queues,
            self._workers,
            self._default_deadline,
            self.headroom,
            metrics=self.metrics,
            events=self.events,
            now_us=clock_us,
        )
        self._ended: Rejection | None = None
        self._is_draining = False
        # All requests so far, whatever their outcomes.
        self.arrived = 0
        self._ids = request_ids()
        self.metrics.waiting.set_function(self.waiting)
        self.metrics.oldest_wait_s.set_function(self.oldest_wait_s)
        self.metrics.workers.set_function(self.alive)
        self.metrics.worker_bytes.set_function(self.engine.worker_bytes)
        for device in self.engine.devices:
            self.metrics.device_workers.labels(device).set_function(partial(self.alive_on, device))
        self.engine.open(models, self._dispatch_loop.calls.worker_changed)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """Served models by name, without those that take no further requests."""
        return {name: queue.served for name, queue in self._queues.items() if not queue.is_closing}

    def model(self, name: str) -> ServedModel | None:
        """Return the served model of this name, or None."""
        model_queue = self._queues.get(name)
        return None if model_queue is None or model_queue.is_closing else model_queue.served

    def listen_to_batches(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever all requests of a call have their answers."""
        self._dispatch_loop.batch_listener = listener

    def waiting(self, model: str | None = None) -> int:
        """Return the number of requests in the queue of a model, by default in all."""
        if model is not None:
            return len(self._queues[model].dispatcher.queue)
        return self._dispatch_loop.waiting()

    @property
    def is_behind(self) -> bool:
        """True if a model's queue is behind, see ``ModelQueue``."""
        return any(map(_IS_BEHIND, self._queues.values()))

    def expected_wait_us(self, model: str, deadline_us: float, now_us: float, least_us: float) -> float:
        """Return the wait behind more urgent requests, µs; 0 if the queue was empty less than ``least_us`` ago."""
        model_queue = self._queues[model]
        if now_us - model_queue.behind_us < least_us:
            return 0.0
        return model_queue.wait_us(model_queue.dispatcher.queue.before(deadline_us), now_us)

    def oldest_wait_s(self) -> float:
        """Return the seconds that the oldest request in a queue has waited; 0 where none waits."""
        now_us, queues = self.now_us(), self._queues.values()
        return max(
            (1e-6 * (now_us - query.arrival_us) for queue in queues for query in queue.dispatcher.queue), default=0.0
        )

    def alive(self) -> int:
        """Number of live workers, busy or not."""
        return self._workers.alive()

    def alive_on(self, device: str) -> int:
        """Return the number of live workers on ``device``."""
        devices = self.engine.devices
        return sum(
            self._workers.is_alive(worker) and devices[worker % len(devices)] == device
            for worker in range(self.engine.workers)
        )

    def workers(self) -> int:
        """Number of workers, including those that are dead or not warm yet."""
        return self.engine.workers

    def busy(self) -> int:
        """Number of workers with a call in progress."""
        return len(self._workers.running)

    def worker_states(self) -> list[dict[str, Any]]:
        """Return each worker's ``state`` (idle, busy, starting or dead), ``model`` of its call and ``device``."""
        return self._dispatch_loop.calls.worker_states()

    def unready(self) -> Rejection | None:
        """Return why the server is not ready; None while some worker has every model warm."""
        return rejections.stopping() if self._is_draining else self._no_worker()

    def listen(self) -> None:
        """Watch idle workers for losses, in the running event loop."""
        self.engine.listen()

    def begin_drain(self) -> None:
        """Report not ready from now on; requests that still come are answered."""
        self._is_draining = True

    def end(self) -> None:
        """Reject all requests in the queue and in progress, and all later ones."""
        self._ended = rejections.stopping()
        for model_queue in self._queues.values():
            model_queue.end(self._ended)

    def close(self) -> None:
        """Close the engine."""
        self._dispatch_loop.close()
        self.engine.close()

    def replace(self, served: ServedModel) -> None:
        """Use another policy or other rules from the next dispatch on; waiting requests stay in the queue.

        Raises ``InputError`` when the model lacks the new policy's points; then nothing has changed.
        """
        self.engine.prepare(served.name, served.policy.points)
        self._queues[served.name].replace(served)

    async def exchange(self, models: Mapping[str, ServedModel], workers: tuple[int, int] | None = None) -> None:
        """Serve these models in place of all others from the next dispatch on.

        Waiting requests stay in the queue; calls in progress end on their models. A missing model takes no further
        requests once the others are ready, and leaves when its requests are answered, after ``DRAIN_S`` at most.

        ``workers``: their new number, and the threads of each. Raises ``InputError`` or ``RunError`` when the engine
        cannot make them ready; then nothing has changed.
        """
        change_over = await (self.engine.stage(models) if workers is None else self.engine.stage(models, workers))
        await self._drain([queue for name, queue in self._queues.items() if name not in models])
        change_over()
        for name, served in models.items():
            if name in self._queues:
                self._queues[name].replace(served)
            else:
                self._queues[name] = self._new_queue(served)
        for name in self._queues.keys() - models.keys():
            del self._queues[name]
        self._models_changed()

    async def _drain(self, leaving: Sequence[ModelQueue]) -> None:
        """Let these models answer their requests, and take no more."""
        for model_queue in leaving:
            model_queue.is_closing = True
        if leaving:
            self._models_changed()
        until_us = self.now_us() + 1e6 * DRAIN_S
        while any(queue.pending for queue in leaving) and self.now_us() < until_us:
            await asyncio.sleep(DRAINED_LOOK_S)
        for model_queue in leaving:
            model_queue.end(rejections.no_longer_served(model_queue.served.name))

    def _new_queue(self, served: ServedModel) -> ModelQueue:
        return ModelQueue(served, self._workers, self._no_worker, self.now_us, self.metrics)

    def _models_changed(self) -> None:
        if self.models_listener is not None:
            self.models_listener()

    async def answer(
        self,
        name: str,
        x: Inputs,
        options: RequestOptions,
        arrival_us: float,
        is_disconnected: Callable[[], bool],
    ) -> InferenceResult:
        """Return the result of ``submit``, for callers that wait. Raises ``Rejection``."""
        return await answer_of(self, name, x, options, arrival_us, is_disconnected)

    def submit(self, request: Request, *, alone: bool = False) -> None:
        """Queue the request for its model.

        All requests that one turn of the event loop reads are decided on at its end. ``alone``: no other request
        arrived in this turn, so that its end is now.
        """
        options, x = request.options, request.x
        model_queue = self._queues.get(request.served.name)
        if model_queue is None:
            request.end(rejections.no_longer_served(request.served.name))
            return
        self.arrived += 1
        rejection = self._rejection_on_arrival(options.timeout_us)
        if rejection is None and options.tolerance is not None:
            try:
                options = with_objective(options, model_queue.served.objectives)
            except Rejection as other:
                rejection = other
        if rejection is not None:
            request.end(rejection)
            return
        dispatcher, arrival_us = model_queue.dispatcher, request.arrival_us
        headroom_us = self.headroom.of(options.timeout_us, arrival_us, dispatcher.measured_us)
        query = Query(
            next(self._ids),
            arrival_us,
            arrival_us + options.timeout_us - headroom_us,
            options.tolerance,
            options.objective,
            options.min_accuracy,
            options.priority,
            len(x),
            None if options.min_accuracy is None else model_queue.served.accuracy_for(x),
            alone=not model_queue.served.model.max_batch,
            batch_key=x.batch_key,
        )
        request.query, request.headroom_us = query, headroom_us
        model_queue.pending[query.id] = request
        dispatcher.arrive(query)
        self._default_deadline.begin(model_queue, query)
        if alone and not self._dispatch_loop.is_scheduled:
            self._dispatch_loop.dispatch()
        else:
            self._dispatch_loop.wake()

    def _rejection_on_arrival(self, timeout_us: float) -> Rejection | None:
        """Return why a request is not even queued; None when it is."""
        if self._ended is not None:
            return self._ended
        if not self._workers.running and self._workers.idle() is None:
            no_worker = self._no_worker()
            # Its deadline precedes the expected recovery.
            if no_worker is not None and timeout_us < self.engine.ready_in_s() * 1e6:
                return no_worker
        waiting = self.waiting()
        return rejections.queue_full(waiting) if waiting >= self._max_queue else None

    def _no_worker(self) -> Rejection | None:
        if self.alive():
            return None
        return rejections.no_worker(self.engine.workers, self.engine.workers, self.engine.ready_in_s())
