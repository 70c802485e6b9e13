"""The inline engine: one EDF queue per model, one dispatcher on the event loop, the model run in the loop itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from slotool.elastic import ElasticModel
from slotool.errors import RunError
from slotool.rules.ruleset import RuleSet
from slotool.scheduling import Decision, EdfQueue, Policy, Query
from slotool.serving import refusals
from slotool.serving.demands import Demands
from slotool.serving.ensemble import PointRunner, Scored
from slotool.serving.metrics import Metrics
from slotool.serving.refusals import Refusal
from slotool.tables import OperatingPoint

# Turns of the event loop between two dispatches: requests are read in the first, in the second their handlers run and
# closed connections are read, in the third these are noted. Only then does the queue hold all that arrived during the
# last dispatch, and is it known who has left.
READING_TURNS = 3


def monotonic_us() -> float:
    """The engine's clock: µs from an arbitrary origin."""
    return time.monotonic_ns() * 1e-3


@dataclass(frozen=True)
class ServedModel:
    """A model, the policy that turns its dial, and the tolerance-tier rules the policy follows, if any."""

    name: str
    model: ElasticModel
    policy: Policy
    rules: RuleSet | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got and what it took: ``queue_us`` from arrival to dispatch, ``compute_us`` in the model,
    ``slack_us`` left to the deadline when the answer was there (negative: too late; ``inf``: no deadline)."""

    scored: Scored
    decision: Decision
    queue_us: float
    compute_us: float
    slack_us: float

    @property
    def labels(self) -> np.ndarray:
        """int64 [n]: the class of the highest score."""
        return self.scored.logits.argmax(axis=1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Ticket:
    query: Query
    x: np.ndarray
    future: asyncio.Future[Answer]
    is_gone: Callable[[], bool]


class _Lane:
    """A served model with its queue, and the tickets of the queries waiting in it."""

    def __init__(self, served: ServedModel):
        self.served = served
        self.runner = PointRunner(served.model, dict.fromkeys([*served.model.points, *served.policy.points]))
        self.queue = EdfQueue()
        self.tickets: dict[str, _Ticket] = {}


class InlineEngine:
    """Serves microsecond models without a hop: requests wait in EDF order, each dispatch runs in the event loop.

    Between two dispatches the loop reads what has arrived, so that an urgent newcomer overtakes. Only Conc ensembles
    leave the loop, for a pool of two threads. ``max_queue``: requests waiting beyond this are refused on arrival.
    Use it from one event loop. ``clock_us`` may be replaced in tests.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: Metrics | None = None,
        *,
        max_queue: int = 1_000,
        clock_us: Callable[[], float] = monotonic_us,
    ):
        self.metrics = metrics or Metrics()
        self.now_us = clock_us
        self._lanes = {name: _Lane(served) for name, served in models.items()}
        self._max_queue = max_queue
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="slotool-conc")
        self._numbered = 0
        self._busy = False
        self._concurrent: asyncio.Task[None] | None = None
        self.metrics.watch_queue(self.waiting)

    def waiting(self) -> int:
        """Requests in all queues."""
        return sum(len(lane.queue) for lane in self._lanes.values())

    def warm(self) -> None:
        """Run every model once at each point its policy may choose. Raises ``RunError`` when one cannot run."""
        for lane in self._lanes.values():
            try:
                lane.runner.warm(self._pool)
            except Exception as error:
                raise RunError(f"{lane.served.name} cannot run: {error}") from error

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self, name: str, x: np.ndarray, demands: Demands, arrival_us: float, is_gone: Callable[[], bool]
    ) -> Answer:
        """The answer for ``x`` (float32 [n, *input_shape]) of the model ``name``, when its turn has come.

        ``is_gone`` tells, just before any work is done, whether the client has left. Raises ``Refusal``.
        """
        lane = self._lanes[name]
        waiting = self.waiting()
        if waiting >= self._max_queue:
            raise refusals.queue_full(waiting)
        self._numbered += 1
        query = Query(
            str(self._numbered),
            arrival_us,
            arrival_us + demands.timeout_us,
            demands.tolerance,
            demands.objective,
            demands.min_accuracy,
            demands.priority,
            len(x),
            None if demands.min_accuracy is None else _expected(lane.served.model, x),
        )
        ticket = _Ticket(query, x, asyncio.get_running_loop().create_future(), is_gone)
        lane.tickets[query.id] = ticket
        lane.queue.push(query)
        self._wake()
        return await ticket.future

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Serve the most urgent query of all lanes, then come back after the loop has read what arrived meanwhile."""
        lane = min((lane for lane in self._lanes.values() if lane.queue), key=_urgency, default=None)
        self._busy = lane is not None
        if lane is not None:
            self._dispatch_from(lane)
            if self._concurrent is None:
                self._dispatch_after(READING_TURNS)

    def _dispatch_after(self, turns: int) -> None:
        then = (self._dispatch_after, turns - 1) if turns else (self._dispatch,)
        asyncio.get_running_loop().call_soon(*then)

    def _dispatch_from(self, lane: _Lane) -> None:
        now_us = self.now_us()
        for late in lane.queue.expire(now_us):
            _refuse(lane.tickets.pop(late.id), refusals.expired(now_us - late.arrival_us))
        query = lane.queue.peek()
        if query is None:
            return
        decision = _decide(lane.served.policy, now_us, lane.queue)
        lane.queue.pop()
        ticket = lane.tickets.pop(query.id)
        if ticket.future.cancelled() or ticket.is_gone():
            _refuse(ticket, refusals.client_gone())
        elif isinstance(decision, Refusal):
            _refuse(ticket, decision)
        elif lane.runner.is_concurrent(decision.point):
            work = self._serve_concurrently(lane.runner, ticket, decision, now_us)
            self._concurrent = asyncio.get_running_loop().create_task(work)
        else:
            self._serve(lane.runner, ticket, decision, now_us)

    def _serve(self, runner: PointRunner, ticket: _Ticket, decision: Decision, now_us: float) -> None:
        try:
            scored = runner.run(ticket.x, decision.point)
        except Exception as error:
            _refuse(ticket, refusals.failed(error))
        else:
            self._finish(ticket, decision, scored, now_us)

    async def _serve_concurrently(
        self, runner: PointRunner, ticket: _Ticket, decision: Decision, now_us: float
    ) -> None:
        try:
            scored = await runner.run_concurrently(ticket.x, decision.point, self._pool)
        except Exception as error:
            _refuse(ticket, refusals.failed(error))
        else:
            self._finish(ticket, decision, scored, now_us)
        finally:
            self._concurrent = None
            self._dispatch_after(READING_TURNS)

    def _finish(self, ticket: _Ticket, decision: Decision, scored: Scored, dispatched_us: float) -> None:
        done_us = self.now_us()
        if np.isnan(scored.confidence).any():
            _refuse(ticket, refusals.bad_request("the model's scores overflow on this input: its values are too large"))
        elif not ticket.future.done():
            query = ticket.query
            timing = dispatched_us - query.arrival_us, done_us - dispatched_us, query.slack_us(done_us)
            ticket.future.set_result(Answer(scored, decision, *timing))


def _urgency(lane: _Lane) -> tuple[float, float, float]:
    query = lane.queue.peek()
    assert query is not None
    return query.urgency


def _decide(policy: Policy, now_us: float, queue: EdfQueue) -> Decision | Refusal:
    try:
        answer = policy.decide(now_us, queue)
    except Exception as error:
        return refusals.failed(error)
    if isinstance(answer, Decision):
        return answer
    return refusals.cannot_meet(answer.reason if answer else "no policy of this server applies to the request")


def _refuse(ticket: _Ticket, refusal: Refusal) -> None:
    # A cancelled future has nobody behind it.
    if not ticket.future.done():
        ticket.future.set_exception(refusal)


def _expected(model: ElasticModel, x: np.ndarray) -> dict[OperatingPoint, float] | None:
    """Per point the least accuracy any example of ``x`` may expect, so that the request's minimum holds for each."""
    each = [model.expected_accuracy(x[i : i + 1]) for i in range(len(x))]
    known = [expected for expected in each if expected is not None]
    if len(known) < len(each):
        return None
    return {point: min(expected.get(point, 0.0) for expected in known) for point in known[0]}
