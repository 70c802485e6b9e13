"""LCAO: latency-constrained, accuracy-optimised."""

from __future__ import annotations

import math

from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint


class LatencyConstrained(Policy):
    """The most accurate point whose latency fits the slack that is left; of equals the cheapest.

    Accuracy is what the query brings for its own input, else the space's; where neither knows every point, the
    greater point counts as the more accurate. Nothing to say on a query without a deadline, or when no point's
    latency is known. Source: slo-aware-neural-networks, §2.3, Eq. 3; queueing time is part of the slack.
    """

    def __init__(self, space: ControlSpace):
        self._space = space
        self.points = tuple(point for point in space.points if space.latency_us(point) is not None)

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None or math.isinf(query.deadline_us) or not self.points:
            return None
        slack_us = query.slack_us(now_us)
        fitting = [point for point in self.points if self._space.fits(point, query.examples, slack_us)]
        if not fitting:
            return CannotMeet(self._space.too_slow(self.points, query.examples, slack_us))
        point = self._most_accurate(query, fitting)
        took_us = self._space.latency_us(point, query.examples)
        reason = f"most accurate point that fits {slack_us:.0f} µs of slack (it takes {took_us:.0f} µs)"
        return Decision(point, query.examples, reason)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._space.latency_us(point, examples) or 0.0

    def _most_accurate(self, query: Query, fitting: list[OperatingPoint]) -> OperatingPoint:
        own = query.expected_accuracy
        expected = [own.get(p) if own is not None else self._space.accuracy(p) for p in fitting]
        known = [accuracy for accuracy in expected if accuracy is not None]
        return fitting[known.index(max(known))] if len(known) == len(fitting) else fitting[-1]
