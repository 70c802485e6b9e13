"""ACLO: accuracy-constrained, latency-optimised."""

from __future__ import annotations

from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# Why no minimum can be asked for, ever: unlike other reasons it does not pass.
ACCURACY_UNKNOWN = "nothing is known of the accuracy of this model's points"


class AccuracyConstrained(Policy):
    """The cheapest point expected to reach the query's ``min_accuracy``; nothing to say on a query without one.

    Expected is what the query brings for its own input, else the space's mean accuracy.
    Source: slo-aware-neural-networks, §2.2, Eq. 2.
    """

    def __init__(self, space: ControlSpace):
        self._space = space
        self.points = space.points

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        query = queue.peek()
        if query is None or query.min_accuracy is None:
            return None
        expected = {point: self._expected(query, point) for point in self.points}
        known = {point: accuracy for point, accuracy in expected.items() if accuracy is not None}
        if not known:
            return CannotMeet(ACCURACY_UNKNOWN)
        enough = [point for point, accuracy in known.items() if accuracy >= query.min_accuracy]
        if not enough:
            best = max(known.values())
            return CannotMeet(f"accuracy {query.min_accuracy:g} is out of reach; the most to expect is {best:.4g}")
        slack_us = query.slack_us(now_us)
        for point in enough:
            if self._space.fits(point, query.examples, slack_us):
                whose = "of this input" if query.expected_accuracy else "on average"
                reason = f"cheapest point that reaches accuracy {query.min_accuracy:g} ({known[point]:.4g} {whose})"
                return Decision(point, query.examples, reason)
        return CannotMeet(self._space.too_slow(enough, query.examples, slack_us))

    def _expected(self, query: Query, point: OperatingPoint) -> float | None:
        if query.expected_accuracy is not None:
            return query.expected_accuracy.get(point)
        return self._space.accuracy(point)
