"""Request for an inference, from a front end through the router to its reply; outputs of calls, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from slotool.data.columns import Columns, Inputs
from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.models import Classification
from slotool.models.tasks import class_texts
from slotool.rules.policies.routing import takes_second
from slotool.scheduling import Decision, Query
from slotool.serving.rejections import Rejection, no_longer_served
from slotool.serving.request_options import RequestOptions
from slotool.serving.served import CLASS, CONFIDENCE, LABEL, ServedModel

Rows = slice | np.ndarray


@dataclass(slots=True, eq=False)
class Outputs:
    """Outputs of one or more examples.

    Attributes:
        tensors: arrays [n, ...] by name: those of the model's signature, else ``logits`` alone.
        model: model whose task gives their meaning.
        confidence: float64 [n], NaN where scores are not numbers; None where the model states none.
    """

    tensors: Mapping[str, np.ndarray]
    model: ElasticModel
    confidence: np.ndarray | None
    # Computed once, when first read, for all requests of a call.
    _answers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    @property
    def answers(self) -> np.ndarray:
        """Answer to each example: [n, ...], class numbers int64 [n] of a classification."""
        if self._answers is None:
            self._answers = self.model.answers(self.tensors)
        return self._answers

    @property
    def first(self) -> object:
        """Answer to the first example, which is often the only one."""
        return self.answers[:1].tolist()[0]

    def take(self, rows: Rows) -> Outputs:
        """Return the outputs of these examples."""
        tensors = {name: array[rows] for name, array in self.tensors.items()}
        confidence = None if self.confidence is None else self.confidence[rows]
        return Outputs(tensors, self.model, confidence, self.answers[rows])


def lowest(confidence: np.ndarray) -> float:
    """Return the lowest confidence; NaN where one is NaN."""
    return float(confidence.item() if len(confidence) == 1 else np.minimum.reduce(confidence))


def combined(first: Outputs, unsure: np.ndarray, second: Outputs) -> Outputs:
    """Take the surer of two answers; ``second`` holds the examples where ``unsure`` (bool [n]) is set.

    Raises ``RunError`` when the versions' output shapes do not fit in one batch.
    """
    assert first.confidence is not None
    assert second.confidence is not None
    better = takes_second(first.confidence[unsure], second.confidence)
    rows = np.flatnonzero(unsure)[better]
    if len(rows) == len(first):
        return second
    confidence = _replaced(first.confidence, rows, second.confidence[better])
    for name, array in first.tensors.items():
        if array.shape[1:] != second.tensors[name].shape[1:] and len(rows):
            other = list(second.tensors[name].shape[1:])
            raise RunError(f"output {name} has shape {list(array.shape[1:])} of one version and {other} of the other")
    tensors = {name: _replaced(array, rows, second.tensors[name][better]) for name, array in first.tensors.items()}
    return Outputs(tensors, first.model, confidence)


def gathered(parts: Sequence[tuple[np.ndarray, Outputs | None]], chosen: np.ndarray) -> Outputs:
    """Gather a batch from several versions' answers.

    ``parts``: per version its examples (int, ascending) and answers; ``chosen``: int [n], each example's part. Raises
    ``RunError`` when the versions' output shapes do not fit in one batch.
    """
    selected = []
    for number, (rows, part) in enumerate(parts):
        examples = np.flatnonzero(chosen == number)
        if len(examples):
            assert part is not None
            selected.append((examples, part.take(np.searchsorted(rows, examples))))
    order = np.argsort(np.concatenate([rows for rows, _ in selected]))
    answers = [part for _, part in selected]
    sure = [part.confidence for part in answers if part.confidence is not None]
    confidence = np.concatenate(sure)[order] if len(sure) == len(answers) else None
    first = answers[0]
    named = [part.tensors for part in answers]
    for name, array in first.tensors.items():
        for other in named:
            if other[name].shape[1:] != array.shape[1:]:
                shapes = f"{list(array.shape[1:])} of one version and {list(other[name].shape[1:])} of the other"
                raise RunError(f"output {name} has shape {shapes}")
    tensors = {name: np.concatenate([other[name] for other in named])[order] for name in first.tensors}
    return Outputs(tensors, first.model, confidence)


def _replaced(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    replaced = array.copy()
    replaced[rows] = values
    return replaced


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
