"""Request for an inference, from a front end through the router to its reply, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.models import Classification
from slotool.models.tasks import class_texts
from slotool.scheduling import Decision, Query
from slotool.serving.outputs import Outputs
from slotool.serving.rejections import Rejection, no_longer_served
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import CLASS, CONFIDENCE, LABEL, ServedModel


class InferenceResult(NamedTuple):
    """Result of a request and its timing.

    Attributes:
        scored: outputs of its examples.
        decision: operating point and its reason.
        queue_us: from arrival to dispatch.
        compute_us: from dispatch to the result.
        slack_us: time left to the deadline; negative if late, ``inf`` without a deadline.
        batch: examples in the call, those of other requests included.
        request: id of the request for feedback.
        fallback: which version did not answer and which did in its place; empty where all answered.
        confidence: lowest of all examples; None where the model has none.
        is_shared: other requests were in the call.
    """

    scored: Outputs
    decision: Decision
    queue_us: float
    compute_us: float
    slack_us: float
    batch: int
    request: str
    fallback: str = ""
    confidence: float | None = None
    is_shared: bool = False

    @property
    def labels(self) -> np.ndarray:
        """Answers: int64 [n], the class of the highest score, or the answer of another task."""
        return self.scored.answers

    def output(self, name: str) -> np.ndarray | None:
        """Return the protocol's tensor of this name, the model's before its task's; None where there is none."""
        scored = self.scored
        if name in scored.tensors:
            array = scored.tensors[name]
            return array if scored.model.max_batch else array[0, ...]
        if name == LABEL and isinstance(scored.model.task, Classification):
            return scored.answers.astype(np.int64, copy=False)
        if name == CLASS and scored.model.labels:
            return class_texts(scored.answers, scored.model.labels)
        return scored.confidence.astype(np.float32) if name == CONFIDENCE and scored.confidence is not None else None


Outcome = InferenceResult | Rejection


@dataclass(slots=True, eq=False)
class Request:
    """Inference on its way from a front end to its reply.

    Attributes:
        served: model.
        x: examples, as named columns.
        options: deadline, tolerance and the like.
        arrival_us: earliest arrival, by the router's clock.
        is_disconnected: returns True once the client has left.
        reply: receives the outcome, once and perhaps before ``Router.submit`` returns; may not raise.
        account: receives request and outcome in place of ``reply``, and calls that.
        read_us: from arrival until its tensors were read.
        query: request as policies see it; set by the router.
        headroom_us: time by which the query's deadline precedes the request's.
        attempts: calls with it whose worker was lost.
        is_over: it has its outcome.
    """

    served: ServedModel
    x: Columns
    options: RequestOptions
    arrival_us: float
    is_disconnected: Callable[[], bool]
    reply: Callable[[Outcome], None]
    account: Callable[[Request, Outcome], None] | None = None
    read_us: float = 0.0
    query: Query = field(init=False)
    headroom_us: float = 0.0
    attempts: int = 0
    is_over: bool = False

    def end(self, outcome: Outcome) -> None:
        """Reply, unless that has happened."""
        if not self.is_over:
            self.is_over = True
            if self.account is None:
                self.reply(outcome)
            else:
                self.account(self, outcome)


class Submitter(Protocol):
    """Receiver of requests: a router, or a front end before one."""

    def model(self, name: str) -> ServedModel | None: ...

    def submit(self, request: Request) -> None: ...


async def answer_of(
    router: Submitter,
    name: str,
    x: Inputs,
    options: RequestOptions,
    arrival_us: float,
    is_disconnected: Callable[[], bool],
) -> InferenceResult:
    """Return the result of a request for the model ``name``, for callers that wait. Raises ``Rejection``."""
    served = router.model(name)
    if served is None:
        raise no_longer_served(name)
    columns = x if isinstance(x, Columns) else Columns.unchecked(served.model.inputs(x))
    future: asyncio.Future[InferenceResult] = asyncio.get_running_loop().create_future()

    def has_left() -> bool:
        return future.cancelled() or is_disconnected()

    router.submit(Request(served, columns, options, arrival_us, has_left, partial(settle, future)))
    return await future


def settle(future: asyncio.Future[Any], outcome: Any, done_us: float = 0.0) -> None:
    """End the wait for an outcome or exception, unless it was cancelled, as when the client has left."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
