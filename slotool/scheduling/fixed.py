"""One point for all queries: a service with a fixed point, and the fallback of other policies."""

from __future__ import annotations

import math

from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# The longest call that queries share: they wait for no other that is longer.
SHARED_US = 1_000.0
# The share of the latest call in what an example is taken to cost.
LATEST = 0.125


class FixedPoint(Policy):
    """Always ``point`` (default: the last and greatest of the space); rejects a deadline it is known to miss.

    Queries share a call, as many as are expected to take a millisecond, and to be in time, by the calls before: what a
    call costs beyond its examples is spent once for all of them. Calls of longer than that are not shared.
    Raises ``InputError`` when the space does not hold the point.
    """

    def __init__(self, space: ControlSpace, point: OperatingPoint | None = None):
        self._example_us = math.inf
        self._space = space
        self._point = space.points[-1] if point is None else space.require(point)
        self._is_given = point is not None
        self._reason = "always this point" if self._is_given else "no option excludes it: the most accurate point"
        self.points = (self._point,)

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None:
            return None
        slack_us = query.slack_us(now_us)
        if math.isfinite(slack_us) and not self._space.fits(self._point, query.examples, slack_us):
            return CannotMeet(self._space.too_slow(self.points, query.examples, slack_us))
        shared = int(min(SHARED_US, slack_us) / self._example_us)
        return Decision(self._point, max(query.examples, shared), self._reason)

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        if point != self._point:
            return False
        return self._is_given or (query.tolerance is None and query.min_accuracy is None)

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        if point == self._point:
            latest_us = max(took_us / examples, 1.0)
            before_us = self._example_us if math.isfinite(self._example_us) else latest_us
            self._example_us = before_us + LATEST * (latest_us - before_us)
