"""Queue of a served model: its pending requests, waiting or in a call, and their outcomes."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from slotool.scheduling import Dispatcher, Drop, Query, RequestOutcome, Workers
from slotool.scheduling.demand import ACCURACY_UNKNOWN
from slotool.scheduling.policy import PolicyFailure
from slotool.serving import rejections
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.rejections import Rejection
from slotool.serving.request import Request
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

LOG = logging.getLogger("uvicorn.error")

# Wait that is no sign of overload, µs: clients that ask one request after the other wait as long for each other.
SHORT_WAIT_US = 10_000.0


class ModelQueue:
    """Served model, its dispatcher, and its pending requests, waiting or in a call.

    ``no_worker``: the rejection while no worker is alive, then the reason of expired deadlines.
    """

    def __init__(
        self,
        served: ServedModel,
        workers: Workers,
        no_worker: Callable[[], Rejection | None],
        now_us: Callable[[], float],
        metrics: Metrics,
    ):
        self.served, self._metrics = served, metrics
        self._no_worker, self._now_us = no_worker, now_us
        self._switched_to: OperatingPoint | None = None
        self.dispatcher = Dispatcher(served.policy, workers, self._policy_failed)
        # Methods of its policy whose failure was reported.
        self._failing: set[str] = set()
        self.pending: dict[str, Request] = {}
        # It takes no further requests, and ends when its own are answered.
        self.is_closing = False
        # Instant since which requests have always waited, infinite while none do, and those begun since then.
        self.behind_us, self.begun = math.inf, 0
        # When the last call began, the requests that waited were too many to begin within ``SHORT_WAIT_US``.
        self.is_behind = False
        # Earlier calls were computed by another model than ``served``.
        self.changed_us = -math.inf

    def replace(self, served: ServedModel) -> None:
        """Use another policy, and the model of ``served``, from the next dispatch on."""
        if served.model is not self.served.model:
            self.changed_us = self._now_us()
        if served.policy is not self.served.policy:
            self._failing.clear()
        self.served, self.dispatcher.policy = served, served.policy

    def _policy_failed(self, failure: PolicyFailure) -> None:
        """Count the failure, and report it once for each method: it may recur with every request."""
        self._metrics.policy_failures.labels(self.served.name, failure.method).inc()
        if failure.method not in self._failing:
            self._failing.add(failure.method)
            LOG.error("%s: %s; %s", self.served.name, failure, failure.instead, exc_info=failure.error)

    def begin(self, requests: int, now_us: float) -> None:
        """Note that a call with so many requests begins."""
        self.begun += requests
        if not self.dispatcher.queue:
            self.behind_us = math.inf
        elif self.behind_us == math.inf:
            self.behind_us, self.begun = now_us, 0
        self.is_behind = self.wait_us(len(self.dispatcher.queue), now_us) > SHORT_WAIT_US

    def wait_us(self, requests: int, now_us: float) -> float:
        """Return the time in which so many requests begin, µs, at the rate since some have always waited; else 0."""
        return 0.0 if self.behind_us == math.inf else requests * (now_us - self.behind_us) / max(1, self.begun)

    def switches_to(self, point: OperatingPoint) -> OperatingPoint | None:
        """Return the previous point if ``point`` differs from it; else None."""
        before, self._switched_to = self._switched_to, point
        return before if before != point else None

    def reject(self, drops: Sequence[Drop], now_us: float) -> None:
        for drop in drops:
            request = self.pending.pop(drop.query.id)
            no_worker = self._no_worker() if drop.outcome is RequestOutcome.EXPIRED else None
            request.end(no_worker or rejection_of(drop, now_us, request.headroom_us))

    def expire(self, query: Query, now_us: float) -> bool:
        """Reject a query without a deadline that has waited too long; True if it still waited."""
        if not self.dispatcher.withdraw(query, RequestOutcome.EXPIRED):
            return False
        rejection = self._no_worker() or rejections.waited_too_long(now_us - query.arrival_us)
        self.pending.pop(query.id).end(rejection)
        return True

    def end(self, rejection: Rejection) -> None:
        """Reject all pending requests."""
        for query in list(self.dispatcher.queue):
            self.dispatcher.withdraw(query)
            self.pending.pop(query.id).end(rejection)
        for request in self.pending.values():
            request.end(rejection)

    def withdraw(self, query: Query) -> None:
        self.dispatcher.withdraw(query)
        self.pending.pop(query.id).end(rejections.client_gone())


def earliest_deadline(queues: Iterable[ModelQueue]) -> ModelQueue | None:
    """Return the queue with the most urgent first request; None where nothing waits."""
    earliest, first = None, None
    for model_queue in queues:
        query = model_queue.dispatcher.queue.peek()
        if query is not None and (first is None or query.urgency < first.urgency):
            earliest, first = model_queue, query
    return earliest


def rejection_of(drop: Drop, now_us: float, headroom_us: float) -> Rejection:
    if drop.outcome is RequestOutcome.EXPIRED:
        left_us, timeout_us = (drop.query.slack_us(at) + headroom_us for at in (now_us, drop.query.arrival_us))
        if left_us <= 0:
            return rejections.expired(timeout_us)
        return rejections.deadline_infeasible(timeout_us, left_us, headroom_us, drop.reason)
    if drop.outcome is RequestOutcome.FAILED:
        return Rejection(500, "failed", drop.reason)
    if drop.reason == ACCURACY_UNKNOWN:
        return rejections.bad_request(f"{drop.reason}: ask without a minimum accuracy")
    return rejections.shed(drop.reason) if drop.outcome is RequestOutcome.SHED else rejections.cannot_meet(drop.reason)


class DefaultDeadline:
    """Longest wait of requests without a deadline: ``default_us``, or infinite.

    Policies do not see it: a request without a deadline still gets the most accurate point.
    """

    def __init__(self, default_us: float):
        self._default_us = default_us
        self._waiting: deque[tuple[float, ModelQueue, str]] = deque()

    def begin(self, model_queue: ModelQueue, query: Query) -> None:
        if math.isinf(query.deadline_us) and not math.isinf(self._default_us):
            self._waiting.append((query.arrival_us + self._default_us, model_queue, query.id))

    def has_passed(self, query: Query, now_us: float) -> bool:
        return math.isinf(query.deadline_us) and now_us >= query.arrival_us + self._default_us

    @property
    def next_us(self) -> float:
        """Latest instant of the next call of ``expire``."""
        self._forget()
        return self._waiting[0][0] if self._waiting else math.inf

    def expire(self, now_us: float) -> None:
        """Reject requests that have waited too long. One in a call may finish it."""
        while self._waiting:
            at_us, model_queue, name = self._waiting[0]
            request = model_queue.pending.get(name)
            if request is not None and at_us > now_us:
                return
            self._waiting.popleft()
            if request is not None:
                model_queue.expire(request.query, now_us)

    def _forget(self) -> None:
        """Drop entries of requests that have ended."""
        while self._waiting and self._waiting[0][2] not in self._waiting[0][1].pending:
            self._waiting.popleft()


# Answers considered, and their maximum age.
REMEMBERED, FORGOTTEN_US = 1_000, 2e6
# Share of them that the headroom covers: this share of answers that use all of their slack is in time. It is recomputed
# at the first use after ``EVERY`` answers.
QUANTILE, EVERY = 0.999, 50
# Before ``FEW`` answers the headroom is at least ``CAREFUL_SHARE`` of a request's timeout: otherwise a policy that
# waits as long as plans allow would give its first answers late.
FEW, CAREFUL_SHARE = 100, 0.05
# Largest share of a request's timeout for the headroom; where calls are measured, of the rest beside a call: a new
# request can be in time.
MAX_SHARE = 0.5


class LatencyHeadroom:
    """Time by which deadlines are brought forward, to make room for delays outside the latency profile.

    ``observe`` receives how much later than planned, in µs, answers left together; the headroom is the ``QUANTILE`` of
    the recent values. While few are known, at first and after ``FORGOTTEN_US`` without any, it is careful.
    """

    def __init__(self) -> None:
        self._excess_us: deque[float] = deque(maxlen=REMEMBERED)
        self._seen_at_us = 0.0
        self._since = 0
        self._needed_us = 0.0

    def observe(self, excess_us: float, now_us: float, answers: int = 1) -> None:
        if now_us - self._seen_at_us > FORGOTTEN_US:
            self._excess_us.clear()
        self._excess_us.extend([excess_us] * answers)
        self._seen_at_us = now_us
        self._since += answers

    def of(self, timeout_us: float, now_us: float, call_us: float = 0.0) -> float:
        """Return by how many µs to bring forward the deadline of a request with ``timeout_us``.

        ``call_us``: measured duration of the call that it needs; 0 where a policy knows it.
        """
        if math.isinf(timeout_us):
            return 0.0
        if now_us - self._seen_at_us > FORGOTTEN_US:
            return CAREFUL_SHARE * timeout_us
        if self._since >= EVERY:
            self._since = 0
            self._needed_us = max(0.0, _quantile(self._excess_us, QUANTILE))
        careful_us = CAREFUL_SHARE * timeout_us if len(self._excess_us) < FEW else 0.0
        return min(max(self._needed_us, careful_us), MAX_SHARE * max(0.0, timeout_us - call_us))


def _quantile(values: Iterable[float], share: float) -> float:
    """Compute ``numpy.quantile`` in a fifth of NumPy's time for few values, as requests wait."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
