"""Calls of models: on workers of an engine, on two at once, and of versions behind other servers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

import numpy as np

from slotool.data.columns import Inputs
from slotool.errors import SlotoolError
from slotool.scheduling import Batch, Workers
from slotool.serving.engines import InferenceEngine, WorkerLost
from slotool.serving.engines.ensemble import EnsemblePlan, ensemble_plan
from slotool.serving.events import Events, warn
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.request import Outputs, combined, settle
from slotool.serving.routing.model_queue import ModelQueue
from slotool.serving.routing.remote import RemoteCall, RemoteEndpoints, remote_plan
from slotool.tables import OperatingPoint

CallOutcome = Outputs | Exception
# Called with an outcome and its instant in µs.
OutcomeCallback = Callable[[CallOutcome, float], None]


class BatchCallback(Protocol):
    """Receiver of an outcome, its instant in µs, and which version answered in place of another."""

    def __call__(self, outcome: CallOutcome, done_us: float, fallback: str = "") -> None: ...


class ModelCalls:
    """Calls of a router; reports to ``workers`` which of them are busy, idle, lost or back.

    ``wake``: called when a call waits for a worker; ``on_idle``: when a worker may be idle again. ``waiting``: calls of
    local versions for batches without a worker, as in ensembles with a remote version; each begins on the worker that
    it is called with. Use it from one event loop.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        workers: Workers,
        metrics: Metrics,
        events: Events,
        now_us: Callable[[], float],
        wake: Callable[[], None],
        on_idle: Callable[[], None],
    ):
        self._engine, self._workers, self._metrics, self._events = engine, workers, metrics, events
        self._now_us, self._wake, self._on_idle = now_us, wake, on_idle
        self.waiting: deque[Callable[[int], None]] = deque()
        self._remote = RemoteEndpoints(metrics, events)
        self._lost: set[int] = set()
        # Model of the worker's current or last call.
        self.models: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close connections to other servers."""
        self._remote.close()

    def worker_states(self) -> list[dict[str, Any]]:
        """Return ``Router.worker_states``."""
        states, devices = [], self._engine.devices
        for worker in range(self._engine.workers):
            model = self.models.get(worker) if worker in self._workers.running else None
            if model is None and self._workers.is_alive(worker):
                state = "idle"
            elif model is None:
                state = "starting" if self._engine.is_starting(worker) else "dead"
            else:
                state = "busy"
            states.append({"state": state, "model": model, "device": devices[worker % len(devices)]})
        return states

    def make(self, model_queue: ModelQueue, batch: Batch, x: Inputs, on_end: BatchCallback) -> None:
        """Compute a batch's ``x`` at its point; ``on_end`` receives the outcome, perhaps before this returns."""
        model = model_queue.served.model
        if model.remote_points and (plan := remote_plan(model, batch.decision.point)) is not None:
            self._call_remote(model_queue, batch, plan, x, on_end)
            return
        if batch.second_worker is None:
            self._start(batch.worker, model_queue, batch.decision.point, x, on_end)
            return
        plan = ensemble_plan(model, batch.decision.point)
        assert plan.second is not None
        ensemble_call = EnsembleCall(plan, on_end, partial(self._cancel, batch.second_worker, model_queue))
        self._start(batch.second_worker, model_queue, plan.second, x, ensemble_call.second)
        self._start(batch.worker, model_queue, plan.first, x, ensemble_call.first)

    def _call_remote(
        self, model_queue: ModelQueue, batch: Batch, plan: EnsemblePlan, x: Inputs, on_end: BatchCallback
    ) -> None:
        """Make a call that a remote version answers in whole or part, without a worker waiting for it.

        A local version that begins at once has the batch's worker; a later one takes the next idle worker.
        """
        served, free_workers = model_queue.served, [batch.worker]
        begins = {plan.first, plan.second} if plan.concurrent else {plan.first}
        if begins <= served.model.remote_points.keys():
            model_queue.dispatcher.ended(free_workers.pop(), self._now_us())
        if batch.second_worker is not None:
            model_queue.dispatcher.ended(batch.second_worker, self._now_us())

        def ask_local(point: OperatingPoint, rows: Inputs) -> asyncio.Future[Outputs]:
            if not free_workers:
                return self.ask_local(model_queue, batch, point, rows)
            future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
            self._start(free_workers.pop(), model_queue, point, rows, partial(settle, future))
            return future

        deadline_us = min(query.deadline_us for query in batch.queries)
        call = RemoteCall(served, plan, x, len(batch.queries) == 1, deadline_us, ask_local, self._remote, self._now_us)
        self.start_task(self._report_remote(call, on_end))
        self._on_idle()

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` to its end."""
        # The loop holds tasks by weak references only.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask_local(
        self, model_queue: ModelQueue, batch: Batch, point: OperatingPoint, x: Inputs
    ) -> asyncio.Future[Outputs]:
        """Compute ``x`` on the next idle worker, before all waiting requests."""
        future: asyncio.Future[Outputs] = asyncio.get_running_loop().create_future()
        self.waiting.append(partial(self._start_local, model_queue, batch, point, x, future))
        self._wake()
        return future

    def _start_local(
        self,
        model_queue: ModelQueue,
        batch: Batch,
        point: OperatingPoint,
        x: Inputs,
        future: asyncio.Future[Outputs],
        worker: int,
    ) -> None:
        if future.done():  # not needed any more
            return
        planned_us = model_queue.served.policy.planned_us(point, len(x))
        begun = Batch(worker, batch.queries, batch.decision, self._now_us(), planned_us=planned_us)
        self._workers.begins(begun)
        self._start(worker, model_queue, point, x, partial(settle, future))

    async def _report_remote(self, call: RemoteCall, on_end: BatchCallback) -> None:
        try:
            outcome, fallback = await call.run()
        except Exception as error:
            on_end(error, self._now_us(), "")
        else:
            on_end(outcome, self._now_us(), fallback)

    def _start(
        self, worker: int, model_queue: ModelQueue, point: OperatingPoint, x: Inputs, report: OutcomeCallback
    ) -> None:
        """Start a call on one worker; ``report`` receives its outcome when the worker is idle again or lost."""
        name = model_queue.served.name

        def done(outcome: CallOutcome) -> None:
            now_us = self._now_us()
            if isinstance(outcome, WorkerLost):
                model_queue.dispatcher.lost(worker)
                self._lose(worker, str(outcome), model=name)
            else:
                model_queue.dispatcher.ended(worker, now_us)
            report(outcome, now_us)
            self._on_idle()

        self.models[worker] = name
        try:
            self._engine.begin(worker, name, point, x, done)
        except Exception as error:
            done(error)

    def _cancel(self, worker: int, model_queue: ModelQueue) -> None:
        self._metrics.cancelled_calls.labels(model_queue.served.name).inc()
        self._engine.cancel(worker)

    def worker_changed(self, worker: int, alive: bool, exit_code: int | None = None) -> None:
        """Handle a worker without a call that was lost, removed, replaced or added."""
        if alive:
            self._workers.adds(self._now_us(), worker)
            self._wake()
            if worker in self._lost:
                self._lost.remove(worker)
                self._events.emit("worker-replaced", f"worker {worker} is replaced", worker=worker)
            else:
                self._events.emit("worker-added", f"worker {worker} is ready", worker=worker)
        elif worker >= self._engine.workers:
            self._workers.remove(worker)
            self._lost.discard(worker)
            self._events.emit("worker-removed", f"worker {worker} is not needed any more", worker=worker)
        else:
            at = "was idle" if self._workers.is_alive(worker) else "was loading"
            self._workers.remove(worker)
            how = "" if exit_code is None else f" (exit code {exit_code})"
            self._lose(worker, f"worker {worker} ended while it {at}{how}")

    def _lose(self, worker: int, sentence: str, **fields: Any) -> None:
        """Count a restart now: a worker that keeps dying as it loads never serves."""
        self._lost.add(worker)
        self._metrics.restarts.inc()
        warn(f"{sentence}; another is started")
        self._events.emit("worker-lost", sentence, worker=worker, **fields)


class EnsembleCall:
    """Call of the ``first`` version, and of the ``second`` if the first is not confident; calls ``done`` once.

    If the first is confident or fails before the second has ended, ``cancel`` is called. So the answers are Seq's,
    example by example (tolerance-tiers, §IV-C).
    """

    def __init__(self, plan: EnsemblePlan, done: OutcomeCallback, cancel: Callable[[], None]):
        self._plan, self._done, self._cancel = plan, done, cancel
        self._first: Outputs | None = None
        self._unsure: np.ndarray | None = None
        self._second: CallOutcome | None = None
        self.over = False

    def first(self, outcome: CallOutcome, now_us: float) -> None:
        """Take the first version's outcome."""
        if not isinstance(outcome, Exception):
            try:
                self._unsure = self._plan.consults(outcome)
            except SlotoolError as error:
                outcome = error
        if not isinstance(outcome, Exception) and self._unsure is not None and self._unsure.any():
            self._first = outcome
            self._combine(now_us)
            return
        if self._second is None:
            self._cancel()
        self._report(outcome, now_us)

    def second(self, outcome: CallOutcome, now_us: float) -> None:
        """Take the second version's outcome."""
        self._second = outcome
        self._combine(now_us)

    def _combine(self, now_us: float) -> None:
        if self.over or self._first is None or self._second is None or self._unsure is None:
            return
        if isinstance(self._second, Exception):
            self._report(self._second, now_us)
            return
        try:
            self._report(combined(self._first, self._unsure, self._second.take(self._unsure)), now_us)
        except SlotoolError as error:
            self._report(error, now_us)

    def _report(self, outcome: CallOutcome, now_us: float) -> None:
        self.over = True
        self._done(outcome, now_us)
