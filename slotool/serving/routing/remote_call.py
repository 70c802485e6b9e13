"""A batch that a version behind another server is to answer, alone or with another version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from slotool.data.columns import Inputs
from slotool.elastic import ElasticModel
from slotool.elastic.evaluation import version_name
from slotool.errors import RunError
from slotool.rules.policies.cascades import Cascade
from slotool.serving import rejections
from slotool.serving.engines.cascade_run import cascade_run
from slotool.serving.engines.ensemble import EnsemblePlan, ensemble_plan
from slotool.serving.outputs import Outputs, combined
from slotool.serving.routing.remote_endpoints import RemoteEndpoints, RemoteFailure
from slotool.serving.served import ServedModel
from slotool.tables import OperatingPoint

AskLocal = Callable[[OperatingPoint, Inputs], Awaitable[Outputs]]
# Of the time left, the share that a local version which answers in place of a remote one may take.
FALLBACK_SHARE = 0.5
# Kept back for it: so many times what is planned. Kept back in any case, to notice that there is no answer and to send
# what there is: so long, and a share of the time left, as timers of a busy machine are late.
CAUTION, NOTICE_US, NOTICE_SHARE = 1.5, 3_000.0, 0.02


def remote_plan(model: ElasticModel, point: OperatingPoint) -> EnsemblePlan | None:
    """What answering at ``point`` takes, where that involves another server; None otherwise."""
    if not model.remote_points:
        return None
    plan = ensemble_plan(model, point)
    return plan if any(each in model.remote_points for each in plan.points) else None


class RemoteCall:
    """Runs ``plan``, of whose versions one or both are remote, on ``x``; local versions are asked by ``ask_local``.

    A remote version that gives no answer is done without: the other version's answer goes out, or that of the most
    accurate local version there is time for. One that rejects the request ends it: versions of one service take the
    same inputs. ``alone``: whether ``x`` is one request. ``deadline_us``: by ``now_us``; a remote version is given what
    a local one does not need of the time until then.
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
        """The answer, and what the client should know of it: which version did not answer, empty if all did.

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
                # Its failure matters to nobody now.
                second.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _in_turn(self, cascade: Cascade) -> tuple[Outputs, str]:
        """A cascade's versions one after the other; one that does not answer is passed over."""
        run, plan, failed = cascade_run(cascade, self._x, self._plan.names), self._plan, None
        while (rows := run.next_rows) is not None:
            point, then = plan.points[run.step], (*plan.points, self._fallback())[run.step + 1]
            try:
                run.given(await self._ask(point, self._x if len(rows) == len(self._x) else self._x[rows], then))
            except RemoteFailure as failure:
                failed = failure
                run.missing()
        if run.unanswered:
            assert failed is not None
            return await self._instead(self._fallback(), None, failed)
        if failed is None:
            return run.answers(), ""
        first, *others = [name for name, (_, answers) in run.asked.items() if answers is not None]
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
            return first, _said(failure, plan.first)
        return combined(first, unsure, other), ""

    async def _instead(
        self, point: OperatingPoint | None, running: Awaitable[Outputs] | None, failure: RemoteFailure
    ) -> tuple[Outputs, str]:
        """The answer of ``point``, which may be ``running`` already, after the first version's failure."""
        try:
            if point is not None:
                return await (running or self._ask(point, self._x, self._fallback())), _said(failure, point)
        except RemoteFailure as also:
            point, failure = self._fallback(), also
            if point is not None:
                return await self._ask(point, self._x), _said(failure, point)
        raise rejections.no_version(str(failure))

    async def _ask(self, point: OperatingPoint, x: Inputs, then: OperatingPoint | None = None) -> Outputs:
        """The answer to ``x``. Of the time left a remote version leaves what ``then`` needs if it fails."""
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
        """The most accurate local version that leaves time for another to be asked first, else the fastest; None
        without any."""
        local = [point for point in self._served.model.points if point not in self._remote]
        max_us = FALLBACK_SHARE * self._left_us
        planned_us, examples = self._served.policy.planned_us, len(self._x)
        return next((p for p in reversed(local) if planned_us(p, examples) <= max_us), local[0] if local else None)

    @property
    def _left_us(self) -> float:
        return self._deadline_us - self._now_us()


def _said(failure: RemoteFailure, answered: OperatingPoint) -> str:
    return f"{failure}; {version_name(answered)} answered alone"
