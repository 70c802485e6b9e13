"""What becomes of the requests of a call that has ended, and what is learnt from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from slotool.scheduling import Batch
from slotool.serving import rejections
from slotool.serving.engines import WorkerLost
from slotool.serving.ensemble_call import CallOutcome
from slotool.serving.headroom import LatencyHeadroom
from slotool.serving.metrics import Metrics
from slotool.serving.model_queue import ModelQueue
from slotool.serving.outputs import Computed, Scores, lowest
from slotool.serving.rejections import Rejection
from slotool.serving.request import InferenceResult, Request
from slotool.serving.retries import Retries
from slotool.tables import OperatingPoint


class CallResults:
    """Answers or rejects the requests of a router's calls, or has ``retries`` try them again.

    ``headroom``: observes how much later than planned answers left.
    """

    def __init__(
        self,
        headroom: LatencyHeadroom,
        retries: Retries,
        metrics: Metrics,
        now_us: Callable[[], float],
    ):
        self.headroom = headroom
        self._retries, self._metrics, self._now_us = retries, metrics, now_us
        # Receives of every call by itself: model, point, examples, µs it took, and the instant it ended.
        self.call_listener: Callable[[str, OperatingPoint, int, float, float], None] | None = None
        # Called when all requests of a call have their answers.
        self.batch_listener: Callable[[], None] = _nothing
        # Called when a worker was lost, and what it computed waits again.
        self.loss_listener: Callable[[], None] = _nothing

    def ended(
        self,
        model_queue: ModelQueue,
        batch: Batch,
        wanted: Sequence[Request],
        outcome: CallOutcome,
        done_us: float,
        fallback: str = "",
    ) -> None:
        """The call of ``batch`` has ended, which computed the requests ``wanted`` of it."""
        if isinstance(outcome, WorkerLost):
            model_queue.dispatcher.returned(batch)
            self._retries.after_loss(model_queue, batch, outcome, done_us)
            self.loss_listener()
            return
        model_queue.dispatcher.answered(batch, done_us)
        if isinstance(outcome, Rejection):
            for query in batch.queries:
                model_queue.pending.pop(query.id).end(outcome)
        elif isinstance(outcome, Exception):
            self._retries.separately(model_queue, batch, outcome)
        else:
            self._answer(model_queue, batch, wanted, outcome, done_us, fallback)

    def _answer(
        self,
        model_queue: ModelQueue,
        batch: Batch,
        wanted: Sequence[Request],
        scored: Computed,
        done_us: float,
        fallback: str,
    ) -> None:
        took_us, examples = done_us - batch.begun_us, len(scored)
        # Nothing is to be learnt of a call that another point answered.
        planned_us = 0.0 if fallback else batch.planned_us
        if fallback:
            self._metrics.computed(model_queue.served.name, examples)
        else:
            self.note_call(model_queue, batch.decision.point, examples, batch.begun_us, done_us)
        for query in batch.queries:
            del model_queue.pending[query.id]
        first, answered, shared = 0, 0, len(wanted) > 1
        decisions = {id(query): batch.decision_of(at) for at, query in enumerate(batch.queries)} if shared else {}
        for request in wanted:
            query, last = request.query, first + request.query.examples
            part = scored.take(slice(first, last)) if shared else scored
            first = last
            sure = None if part.confidence is None else lowest(part.confidence)
            if sure is not None and math.isnan(sure):
                request.end(rejections.no_confidence(finite=isinstance(part, Scores)))
            elif not request.is_over:
                queue_us, slack_us = batch.begun_us - query.arrival_us, query.deadline_us - done_us
                timing = queue_us, took_us, slack_us + request.headroom_us
                decision = decisions.get(id(query), batch.decision)
                request.end(InferenceResult(part, decision, *timing, examples, query.id, fallback, sure, shared))
                answered += 1
        self.all_answered(took_us, planned_us, done_us, answered)

    def note_call(
        self, model_queue: ModelQueue, point: OperatingPoint, examples: int, begun_us: float, done_us: float
    ) -> None:
        """What a call took that was answered by the point which was chosen."""
        model_queue.dispatcher.observe(point, examples, done_us - begun_us)
        if self.call_listener is not None and begun_us >= model_queue.changed_us:
            self.call_listener(model_queue.served.name, point, examples, done_us - begun_us, done_us)
        self._metrics.computed(model_queue.served.name, examples)

    def all_answered(self, took_us: float, planned_us: float, done_us: float, answers: int) -> None:
        """All requests of a call have their answers, so many of them. ``planned_us``: 0 where nothing was planned."""
        self.batch_listener()
        # When they have left, which may be long after they were there.
        now_us = self._now_us()
        self.headroom.observe(now_us - done_us + (took_us - planned_us if planned_us else 0.0), now_us, answers)


def _nothing() -> None:
    """What listeners do that there are none of."""
