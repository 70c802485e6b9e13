"""Versions behind another server: called in threads, within a time limit, and not while they fail."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel
from slotool.elastic.model import version_name
from slotool.errors import RunError, TimedOut
from slotool.models.adapters.remote import RemoteRejection, RemoteUnavailable
from slotool.printable import reason
from slotool.rules.policies.cascades import Cascade
from slotool.serving import rejections
from slotool.serving.engines.ensemble import CascadeRun, EnsemblePlan, compute, ensemble_plan
from slotool.serving.events import Events
from slotool.serving.monitoring.metrics import Metrics
from slotool.serving.request import Outputs, combined
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

# Concurrent calls of all endpoints; each waits in a thread.
MAX_CALLS = 64
# Consecutive failures that pause an endpoint; an endpoint that does not listen is paused at once.
MAX_FAILURES = 3
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0
# Expected duration of the first call, and weight of later ones.
FIRST_GUESS_S, SMOOTHING = 0.1, 0.2
# A timed-out call is the endpoint's failure if it had this multiple of the usual duration.
PATIENCE = 2.0

_SENTENCES = {
    "unavailable": "cannot be reached",
    "timeout": "did not answer in time",
    "failed": "failed",
    "rejected": "rejected the request",
    "paused": "is not called, as it failed lately",
    "no-time": "is not called, as too little time was left",
}


class RemoteFailure(Exception):
    """Failure of a version behind another server; ``str()`` is for clients and names no address.

    ``cause``: unavailable, timeout, failed, rejected, paused or no-time.
    """

    def __init__(self, version: str, cause: str, detail: str = ""):
        super().__init__(f"{version} {_SENTENCES[cause]}{detail and ': '}{detail}")
        self.version, self.cause = version, cause


class EndpointHealth:
    """Circuit breaker of one endpoint, a version behind another server.

    After failures it is paused, each time twice as long; then one call tries it, and the others wait for its success.
    Instants are seconds of one clock. ``usual_s``: usual duration of a call.
    """

    def __init__(self) -> None:
        self.usual_s = FIRST_GUESS_S
        self._failures = 0
        self._pause_s = 0.0
        self._paused_until_s = -math.inf
        self._is_trying = False

    @property
    def is_paused(self) -> bool:
        return self._pause_s > 0

    def admits(self, now_s: float) -> bool:
        """True if a call may begin; one of the methods below then ends it."""
        if self.is_paused:
            if self._is_trying or now_s < self._paused_until_s:
                return False
            self._is_trying = True
        return True

    def succeeded(self, took_s: float) -> bool:
        """End a call; True if the endpoint was paused until now."""
        self.usual_s += SMOOTHING * (took_s - self.usual_s)
        was_paused = self.is_paused
        self._failures, self._pause_s, self._is_trying = 0, 0.0, False
        return was_paused

    def failed(self, now_s: float, *, unavailable: bool) -> bool:
        """End a call; True if the endpoint is paused now and was not before."""
        self._failures += 1
        was_paused, self._is_trying = self.is_paused, False
        if was_paused or unavailable or self._failures >= MAX_FAILURES:
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), MAX_PAUSE_S)
            self._paused_until_s = now_s + self._pause_s
        return self.is_paused and not was_paused

    def ended_early(self) -> None:
        """End a call without a verdict on the endpoint."""
        self._is_trying = False


class RemoteEndpoints:
    """Calls of versions behind other servers; neither workers nor the event loop wait for them.

    Emits ``remote-lost`` when an endpoint is paused, with the failure, and ``remote-back`` when it answers again.
    """

    def __init__(self, metrics: Metrics, events: Events):
        self._metrics, self._events = metrics, events
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="slotool-remote")
        self._free = threading.BoundedSemaphore(MAX_CALLS)
        self._health: dict[tuple[str, OperatingPoint], EndpointHealth] = {}

    async def call(self, served: ServedModel, point: OperatingPoint, x: Inputs, left_s: float) -> Outputs:
        """Compute ``x`` at ``point`` within ``left_s`` and the version's limit. Raises ``RemoteFailure``."""
        health = self._health.setdefault((served.name, point), EndpointHealth())
        version, began_s = version_name(point), time.monotonic()
        within_s = min(left_s, served.model.remote_points[point])
        try:
            if within_s <= 0:
                raise RemoteFailure(version, "no-time")
            if not health.admits(began_s):
                raise RemoteFailure(version, "paused")
            try:
                computed = await self._within(served, point, x, within_s)
            except asyncio.CancelledError:
                health.ended_early()
                raise
            except RemoteRejection as rejection:
                # An endpoint that rejects a request is alive: one bad input must not pause it for all clients.
                self._answered(served, health, version, began_s)
                raise RemoteFailure(version, "rejected", rejection.sentence) from rejection
            except Exception as error:
                raise self._failure(served, health, version, error, within_s) from error
        except RemoteFailure as failure:
            self._metrics.fallbacks.labels(served.name, version, failure.cause).inc()
            raise
        self._answered(served, health, version, began_s)
        return computed

    def _answered(self, served: ServedModel, health: EndpointHealth, version: str, began_s: float) -> None:
        if health.succeeded(time.monotonic() - began_s):
            sentence = f"{served.name}: {version} answers again"
            self._events.emit("remote-back", sentence, model=served.name, version=version)

    def close(self) -> None:
        """Let calls in progress end within their time; their answers are lost."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _within(self, served: ServedModel, point: OperatingPoint, x: Inputs, within_s: float) -> Outputs:
        if not self._free.acquire(blocking=False):
            raise RemoteUnavailable(f"{MAX_CALLS} calls of other servers are in progress already")
        call = self._pool.submit(_compute, served, point, x, within_s)
        call.add_done_callback(lambda _: self._free.release())
        return await asyncio.wait_for(asyncio.wrap_future(call), within_s)

    def _failure(
        self, served: ServedModel, health: EndpointHealth, version: str, error: Exception, within_s: float
    ) -> RemoteFailure:
        timed_out, unavailable = isinstance(error, TimeoutError | TimedOut), isinstance(error, RemoteUnavailable)
        if timed_out and within_s < PATIENCE * health.usual_s:
            health.ended_early()
        elif health.failed(time.monotonic(), unavailable=unavailable):
            detail = f"no answer within {within_s:.3g} s" if isinstance(error, TimeoutError) else reason(error)
            sentence = f"{served.name}: {version} is not called for now: {detail}"
            self._events.emit("remote-lost", sentence, model=served.name, version=version)
        return RemoteFailure(version, "timeout" if timed_out else "unavailable" if unavailable else "failed")


def _compute(served: ServedModel, point: OperatingPoint, x: Inputs, within_s: float) -> Outputs:
    computed = compute(served.model, x, point, within_s)
    if computed.confidence is not None and np.isnan(computed.confidence).any():
        raise RemoteRejection("the version", "its scores of these inputs are no numbers")
    return computed


AskLocal = Callable[[OperatingPoint, Inputs], Awaitable[Outputs]]
# Share of the time left for a local version that answers in place of a remote one.
FALLBACK_SHARE = 0.5
# Time reserved for it, as a multiple of the plan; and time always reserved to notice a missing answer and to send one:
# a constant, and a share of the time left, as timers of a busy machine are late.
CAUTION, NOTICE_US, NOTICE_SHARE = 1.5, 3_000.0, 0.02


def remote_plan(model: ElasticModel, point: OperatingPoint) -> EnsemblePlan | None:
    """Return the plan for answers at ``point`` if that involves another server; else None."""
    if not model.remote_points:
        return None
    plan = ensemble_plan(model, point)
    return plan if any(version in model.remote_points for version in plan.points) else None


class RemoteCall:
    """Run of ``plan``, with one or more remote versions, on ``x``; ``ask_local`` asks local versions.

    If a remote version gives no answer, the other version's is sent, or that of the most accurate local version that is
    fast enough. A rejection ends the request: versions of one service take the same inputs. ``alone``: ``x`` is one
    request. ``deadline_us``: by ``now_us``; a remote version gets the time until then that a local one does not need.
    """

    def __init__(
        self,
        served: ServedModel,
        plan: EnsemblePlan,
        x: Inputs,
        alone: bool,
        deadline_us: float,
        ask_local: AskLocal,
        endpoints: RemoteEndpoints,
        now_us: Callable[[], float],
    ):
        self._served, self._plan, self._x, self._alone, self._deadline_us = served, plan, x, alone, deadline_us
        self._ask_local, self._endpoints, self._now_us = ask_local, endpoints, now_us
        self._remote = served.model.remote_points

    async def run(self) -> tuple[Outputs, str]:
        """Return the answer and, for the client, which version did not answer (empty if all did).

        Raises ``Rejection`` where no version is left to answer, what local versions raise, and ``RunError`` when a
        remote version rejects several requests together, of which one may be wrong.
        """
        plan = self._plan
        if plan.cascade is not None:
            return await self._in_turn(plan.cascade)
        second = asyncio.ensure_future(self._ask(plan.second, self._x)) if plan.second and plan.concurrent else None
        try:
            return await self._with_second(second)
        finally:
            if second is not None:
                second.cancel()
                # Its failure is not needed any more.
                second.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _in_turn(self, cascade: Cascade) -> tuple[Outputs, str]:
        """Ask a cascade's versions in turn, skipping those that do not answer."""
        run, plan, failed = CascadeRun(cascade, len(self._x)), self._plan, None
        while (rows := run.next_rows) is not None:
            point, then = plan.points[run.step], (*plan.points, self._fallback())[run.step + 1]
            try:
                run.record(await self._ask(point, self._x if len(rows) == len(self._x) else self._x[rows], then))
            except RemoteFailure as failure:
                failed = failure
                run.missing()
        if run.unanswered:
            assert failed is not None
            return await self._instead(self._fallback(), None, failed)
        if failed is None:
            return run.answers(), ""
        first, *others = [name for name, (_, answers) in run.answered.items() if answers is not None]
        who = f"{first} answered alone" if not others else f"{first} and {' and '.join(others)} answered"
        return run.answers(), f"{failed}; {who}"

    async def _with_second(self, second: asyncio.Future[Outputs] | None) -> tuple[Outputs, str]:
        plan = self._plan
        instead = plan.second or self._fallback()
        try:
            first = await self._ask(plan.first, self._x, None if second else instead)
        except RemoteFailure as failure:
            return await self._instead(instead, second, failure)
        unsure = None if plan.second is None else plan.consults(first)
        if plan.second is None or unsure is None or not unsure.any():
            return first, ""
        try:
            other = (await second).take(unsure) if second else await self._ask(plan.second, self._x[unsure])
        except RemoteFailure as failure:
            return first, _reason(failure, plan.first)
        return combined(first, unsure, other), ""

    async def _instead(
        self, point: OperatingPoint | None, running: Awaitable[Outputs] | None, failure: RemoteFailure
    ) -> tuple[Outputs, str]:
        """Answer at ``point``, which may be ``running`` already, after the first version's failure."""
        try:
            if point is not None:
                return await (running or self._ask(point, self._x, self._fallback())), _reason(failure, point)
        except RemoteFailure as also:
            point, failure = self._fallback(), also
            if point is not None:
                return await self._ask(point, self._x), _reason(failure, point)
        raise rejections.no_version(str(failure))

    async def _ask(self, point: OperatingPoint, x: Inputs, then: OperatingPoint | None = None) -> Outputs:
        """Return the answer to ``x``; a remote version leaves time for ``then``, in case it fails."""
        if point not in self._remote:
            return await self._ask_local(point, x)
        kept_us = NOTICE_US
        if then is not None and then not in self._remote:
            kept_us += CAUTION * self._served.policy.planned_us(then, len(x))
        left_us = (1 - NOTICE_SHARE) * self._left_us - kept_us
        try:
            return await self._endpoints.call(self._served, point, x, 1e-6 * left_us)
        except RemoteFailure as failure:
            if failure.cause != "rejected":
                raise
            raise (rejections.bad_request if self._alone else RunError)(str(failure)) from failure

    def _fallback(self) -> OperatingPoint | None:
        """Return the most accurate local version that can still be asked second, else the fastest; None without any."""
        local = [point for point in self._served.model.points if point not in self._remote]
        max_us = FALLBACK_SHARE * self._left_us
        planned_us, examples = self._served.policy.planned_us, len(self._x)
        return next((p for p in reversed(local) if planned_us(p, examples) <= max_us), local[0] if local else None)

    @property
    def _left_us(self) -> float:
        return self._deadline_us - self._now_us()


def _reason(failure: RemoteFailure, answered: OperatingPoint) -> str:
    return f"{failure}; {version_name(answered)} answered alone"
