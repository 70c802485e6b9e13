"""What becomes of requests whose call gave no answer: tried again, by themselves where they may be the cause."""

from __future__ import annotations

from functools import partial

from slotool.models.signature import RowCountError
from slotool.scheduling import Batch
from slotool.serving import rejections
from slotool.serving.calls import Calls
from slotool.serving.engines import WorkerLost
from slotool.serving.fault import shapes_of
from slotool.serving.metrics import Metrics
from slotool.serving.model_queue import DefaultDeadline, ModelQueue
from slotool.serving.request import Request

# Calls that a request may be part of. One whose call kills three workers is taken to be the cause.
MAX_ATTEMPTS = 3


class Retries:
    """Decides of a router's requests after a lost worker and after a call that failed."""

    def __init__(self, calls: Calls, metrics: Metrics, default_deadline: DefaultDeadline):
        self._calls, self._metrics, self._default_deadline = calls, metrics, default_deadline

    def after_loss(self, model_queue: ModelQueue, batch: Batch, error: WorkerLost, now_us: float) -> None:
        """The batch of a lost worker waits again, except requests that were in too many such calls."""
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
                self._metrics.retried(model_queue.served.name)

    def separately(self, model_queue: ModelQueue, batch: Batch, error: Exception) -> None:
        """Try each request of a failed batch once more, by itself: one bad request must not fail the others."""
        for query in batch.queries:
            request = model_queue.pending[query.id]
            if request.is_over:
                del model_queue.pending[query.id]
            elif query.alone and batch.begun_us >= model_queue.changed_us:
                self._calls.start_task(self._blame(model_queue, batch, request, error))
            else:
                request.query = query._replace(alone=True)
                model_queue.dispatcher.arrive(request.query, returning=True)
                self._metrics.retried(model_queue.served.name)

    async def _blame(self, model_queue: ModelQueue, batch: Batch, request: Request, error: Exception) -> None:
        """Reject a request on which the model failed for the second time: as a bad one, where it answers a good one.
        Outputs of other rows than there are examples are never the request's fault."""
        served = model_queue.served
        ask = partial(self._calls.ask_local, model_queue, batch._replace(queries=[]))
        is_of_input = not isinstance(error, RowCountError) and await model_queue.fault_check.is_of_input(
            served.model, batch.decision.point, ask
        )
        model_queue.pending.pop(request.query.id, None)
        if is_of_input:
            request.end(rejections.input_rejected(error, shapes_of(request.x)))
        else:
            request.end(rejections.failed(error))
