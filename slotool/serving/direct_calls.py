"""Calls that the event loop computes itself, past the queue: answered before the caller goes on, counted afterwards."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slotool.data.columns import Inputs
from slotool.scheduling import Query
from slotool.serving.call_results import CallResults
from slotool.serving.engines import InferenceEngine
from slotool.serving.model_queue import DefaultDeadline, InferenceResult, ModelQueue
from slotool.serving.outputs import Computed, lowest
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

# Random bytes of an id, and ids drawn at a time.
ID_BYTES, IDS_AT_ONCE = 12, 1_024


def request_ids() -> Iterator[str]:
    """Yield ids that nobody can guess and no other process yields: 96 random bits each.

    They are drawn many at a time: 0.1 µs an id, where ``secrets.token_hex`` takes 1 µs.
    """
    while True:
        drawn = os.urandom(IDS_AT_ONCE * ID_BYTES).hex()
        for at in range(0, len(drawn), 2 * ID_BYTES):
            yield drawn[at : at + 2 * ID_BYTES]


@dataclass(slots=True)
class RequestCounts:
    """Requests that have ``arrived`` at a router, whatever became of them, and the ``ids`` of those that are queued."""

    arrived: int = 0
    ids: Iterator[str] = field(default_factory=request_ids)


class _Call(NamedTuple):
    """A call that was made and is not noted yet. ``query``: of the only request, or of the first of those alike that
    came at ``arrivals_us``."""

    model_queue: ModelQueue
    query: Query
    arrivals_us: Sequence[float]
    worker: int
    point: OperatingPoint
    begun_us: float
    done_us: float

    @property
    def examples(self) -> int:
        return self.query.examples * len(self.arrivals_us)


class DirectCalls:
    """Answers a request that is the only one, or several that are alike but for their values, where the event loop
    itself computes: without the queue, and without what their clients need not wait for.

    ``queues``: the router's, by name; ``is_free``: whether so many requests that come now are admitted and the only
    ones; ``is_catching_up``: whether so many would be admitted, and what waits is being computed and has no deadline;
    ``default_deadline``: of requests without one; ``loop_was_busy``: called with the µs that a call took.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        queues: Mapping[str, ModelQueue],
        results: CallResults,
        counts: RequestCounts,
        now_us: Callable[[], float],
        is_free: Callable[[int], bool],
        is_catching_up: Callable[[int], bool],
        default_deadline: DefaultDeadline,
        loop_was_busy: Callable[[float], None],
    ):
        self._engine, self._queues, self._results, self._counts = engine, queues, results, counts
        self._now_us, self._is_free, self._is_catching_up = now_us, is_free, is_catching_up
        self._default_deadline, self._loop_was_busy = default_deadline, loop_was_busy
        self._unsettled: _Call | None = None

    def is_free(self) -> bool:
        """Whether nothing waits, so that ``answer`` and ``answer_alike`` are worth asking."""
        return self._is_free(1)

    def is_soon_free(self, count: int) -> bool:
        """True if so many requests without a deadline may wait until ``answer_alike`` is worth asking."""
        return self._is_catching_up(count)

    def first_arrival_us(self, served: ServedModel, options: RequestOptions) -> float:
        """Return the arrival, in µs, before which such requests can no longer be in time, or have waited too long
        without a deadline."""
        now_us, model_queue = self._now_us(), self._queues.get(served.name)
        if math.isinf(options.timeout_us) or model_queue is None:
            return self._default_deadline.first_arrival_us(now_us)
        return now_us - options.timeout_us + self._headroom_us(model_queue, options, now_us)

    def answer(
        self, served: ServedModel, x: Inputs, options: RequestOptions, arrival_us: float
    ) -> InferenceResult | None:
        """The answer of ``Router.submit`` to a request that is the only one, where it would be there before ``submit``
        returns and nothing goes wrong. ``settle`` must follow, once it is on its way: nothing that its client waits
        for.

        ``options``: without a tolerance or a minimum of accuracy. None: nothing has happened, and ``submit`` is asked.
        """
        model_queue = self._queue_of(served)
        if model_queue is None or not self._is_free(1):
            return None
        headroom_us = self._headroom_us(model_queue, options, arrival_us)
        deadline_us = arrival_us + options.timeout_us - headroom_us
        query = self._query(options, arrival_us, deadline_us, len(x))
        begun_us = self._now_us()
        decided = model_queue.dispatcher.decide_alone(query, begun_us)
        if decided is None or decided[1].switches:
            return None
        worker, decision = decided
        scored = self._computed(served, decision.point, x)
        done_us = self._now_us()
        if scored is None:
            return None
        sure = None if scored.confidence is None else lowest(scored.confidence)
        if sure is not None and math.isnan(sure):
            return None
        self._unsettled = _Call(model_queue, query, (arrival_us,), worker, decision.point, begun_us, done_us)
        timing = begun_us - arrival_us, done_us - begun_us, query.deadline_us - done_us + headroom_us
        return InferenceResult(scored, decision, *timing, len(scored), query.id, "", sure)

    def answer_alike(
        self,
        served: ServedModel,
        options: RequestOptions,
        arrivals_us: Sequence[float],
        examples: int,
        joined: Callable[[int], Inputs],
    ) -> Sequence[InferenceResult]:
        """The answers of ``Router.submit`` to the first of several requests that came in one iteration of the event
        loop, as many as the policy has share a call. ``settle`` must follow if there are any; if there are none,
        nothing has happened, and ``submit`` is asked.

        ``options``: of all of them, without a tolerance or a minimum of accuracy; ``arrivals_us``: ascending;
        ``examples``: of each; ``joined``: the examples of so many of the first, which it may fail to join.
        """
        model_queue = self._queue_of(served)
        if model_queue is None or not self._is_free(len(arrivals_us)):
            return ()
        headroom_us = self._headroom_us(model_queue, options, arrivals_us[0])
        query = self._query(options, arrivals_us[0], arrivals_us[0] + options.timeout_us - headroom_us, examples)
        begun_us = self._now_us()
        decided = model_queue.dispatcher.decide_alike(query, begun_us)
        if decided is None or decided[1].switches:
            return ()
        (worker, decision), count = decided, min(len(arrivals_us), decided[1].batch_size // examples)
        scored = self._computed(served, decision.point, joined(count)) if count > 1 else None
        done_us = self._now_us()
        if scored is None or len(scored) != count * examples:
            return ()
        sure = _lowest_of_each(scored.confidence, examples)
        if sure is None and scored.confidence is not None:
            return ()
        answered_us = tuple(arrivals_us[:count])
        self._unsettled = _Call(model_queue, query, answered_us, worker, decision.point, begun_us, done_us)
        took_us, batch, ids = done_us - begun_us, len(scored), self._counts.ids
        return [
            InferenceResult(
                scored.take(slice(at * examples, (at + 1) * examples)),
                decision,
                begun_us - arrival_us,
                took_us,
                arrival_us + options.timeout_us - done_us,
                batch,
                next(ids),
                confidence=None if sure is None else sure[at],
                is_shared=True,
            )
            for at, arrival_us in enumerate(answered_us)
        ]

    def settle(self) -> None:
        """Note what follows of the last answers."""
        assert self._unsettled is not None
        call, self._unsettled = self._unsettled, None
        count = len(call.arrivals_us)
        self._counts.arrived += count
        if count == 1:
            call.model_queue.dispatcher.answered_alone(call.query, call.worker, call.done_us)
        else:
            call.model_queue.dispatcher.answered_alike(call.query, call.arrivals_us, call.worker, call.done_us)
        planned_us = call.model_queue.dispatcher.planned_us(call.point, call.examples)
        self._results.note_call(call.model_queue, call.point, call.examples, call.begun_us, call.done_us)
        self._results.all_answered(call.done_us - call.begun_us, planned_us or 0.0, call.done_us, count)
        self._loop_was_busy(self._now_us() - call.begun_us)

    def _queue_of(self, served: ServedModel) -> ModelQueue | None:
        """The queue of a model that is still served as it is."""
        model_queue = self._queues.get(served.name)
        is_there = model_queue is not None and model_queue.served is served and not model_queue.is_closing
        return model_queue if is_there else None

    def _headroom_us(self, model_queue: ModelQueue, options: RequestOptions, now_us: float) -> float:
        return self._results.headroom.of(options.timeout_us, now_us, model_queue.dispatcher.measured_us)

    def _query(self, options: RequestOptions, arrival_us: float, deadline_us: float, examples: int) -> Query:
        return Query(
            next(self._counts.ids), arrival_us, deadline_us, None, options.objective, None, options.priority, examples
        )

    def _computed(self, served: ServedModel, point: OperatingPoint, x: Inputs) -> Computed | None:
        try:
            return self._engine.compute(served.name, point, x)
        except Exception:
            return None  # ``submit`` has it fail again, and finds out whose fault it is


def _lowest_of_each(confidence: np.ndarray | None, examples: int) -> list[float] | None:
    """Of each request; None where the model states none, and where one of them is no number."""
    if confidence is None:
        return None
    sure = confidence if examples == 1 else confidence.reshape(-1, examples).min(axis=1)
    return None if np.isnan(sure).any() else sure.tolist()
