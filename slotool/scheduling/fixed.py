"""One point for all queries: a service with a fixed point, and the fallback of other policies."""

from __future__ import annotations

import math

from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint


class FixedPoint(Policy):
    """Always ``point`` (default: the last and greatest of the space); rejects a deadline it is known to miss.

    Raises ``InputError`` when the space does not hold the point.
    """

    def __init__(self, space: ControlSpace, point: OperatingPoint | None = None):
        self._space = space
        self._point = space.points[-1] if point is None else space.require(point)
        self._is_given = point is not None
        self.points = (self._point,)

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None:
            return None
        slack_us = query.slack_us(now_us)
        if not self._space.fits(self._point, query.examples, slack_us):
            return CannotMeet(self._space.too_slow(self.points, query.examples, slack_us))
        return Decision(self._point, query.examples, self._reason(query))

    def _reason(self, query: Query) -> str:
        if self._is_given:
            return "always this point"
        if math.isfinite(query.deadline_us):
            return "the most accurate point: no latency is known, so the deadline only limits the wait"
        return "no option set: the most accurate point"
