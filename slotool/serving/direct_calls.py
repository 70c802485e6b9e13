"""Calls that the event loop computes itself, past the queue: answered before the caller goes on, counted afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slotool.data.columns import Inputs
from slotool.scheduling import Query
from slotool.serving.call_results import CallResults
from slotool.serving.engines import InferenceEngine
from slotool.serving.model_queue import InferenceResult, ModelQueue
from slotool.serving.outputs import lowest
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint


@dataclass(slots=True)
class RequestCounts:
    """Of a router: requests that have ``arrived``, whatever became of them, and how many got a number: its queries are
    called by it."""

    arrived: int = 0
    numbered: int = 0


class DirectCalls:
    """Answers a request that is the only one, where the event loop itself computes: without the queue, and without what
    its client need not wait for.

    ``queues``: the router's, by name; ``is_free``: whether a request that comes now is admitted and the only one;
    ``loop_was_busy``: called with the µs that one took.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        queues: Mapping[str, ModelQueue],
        results: CallResults,
        counts: RequestCounts,
        now_us: Callable[[], float],
        is_free: Callable[[], bool],
        loop_was_busy: Callable[[float], None],
    ):
        self._engine, self._queues, self._results, self._counts = engine, queues, results, counts
        self._now_us, self._is_free, self._loop_was_busy = now_us, is_free, loop_was_busy
        # Of the last answer: its queue, query, worker and point, when it began and when it ended.
        self._unsettled: tuple[ModelQueue, Query, int, OperatingPoint, float, float] | None = None

    def answer(
        self, served: ServedModel, x: Inputs, options: RequestOptions, arrival_us: float
    ) -> InferenceResult | None:
        """The answer of ``Router.submit`` to a request that is the only one, where it would be there before ``submit``
        returns and nothing goes wrong. ``settle`` must follow, once it is on its way: nothing that its client waits
        for.

        ``options``: without a tolerance or a minimum of accuracy. None: nothing has happened, and ``submit`` is asked.
        """
        model_queue = self._queues.get(served.name)
        if model_queue is None or model_queue.served is not served or model_queue.is_closing or not self._is_free():
            return None
        headroom_us = self._results.headroom.of(options.timeout_us, arrival_us)
        deadline_us = arrival_us + options.timeout_us - headroom_us
        name = str(self._counts.numbered + 1)
        query = Query(name, arrival_us, deadline_us, None, options.objective, None, options.priority, len(x))
        begun_us = self._now_us()
        decided = model_queue.dispatcher.decide_alone(query, begun_us)
        if decided is None or decided[1].switches:
            return None
        worker, decision = decided
        try:
            scored = self._engine.compute(served.name, decision.point, x)
        except Exception:
            return None  # ``submit`` has it fail again, and finds out whose fault it is
        done_us = self._now_us()
        sure = None if scored.confidence is None else lowest(scored.confidence)
        if sure is not None and math.isnan(sure):
            return None
        self._unsettled = model_queue, query, worker, decision.point, begun_us, done_us
        timing = begun_us - arrival_us, done_us - begun_us, query.deadline_us - done_us + headroom_us
        return InferenceResult(scored, decision, *timing, len(scored), query.id, "", served.version, sure)

    def settle(self) -> None:
        """Note what follows of the last answer."""
        assert self._unsettled is not None
        (model_queue, query, worker, point, begun_us, done_us), self._unsettled = self._unsettled, None
        self._counts.arrived += 1
        self._counts.numbered += 1
        examples = query.examples
        model_queue.dispatcher.answered_alone(query, worker, done_us)
        planned_us = model_queue.served.policy.planned_us(point, examples)
        self._results.note_call(model_queue, point, examples, begun_us, done_us)
        self._results.all_answered(done_us - begun_us, planned_us or 0.0, done_us, 1)
        self._loop_was_busy(self._now_us() - begun_us)
