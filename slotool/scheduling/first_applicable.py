"""Several policies in order: the first that has something to say decides."""

from __future__ import annotations

from collections.abc import Sequence

from slotool.rules.ruleset.rules import RuleSet
from slotool.scheduling.accuracy_constrained import AccuracyConstrained
from slotool.scheduling.co_runners import InterferenceAware
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.fixed import FixedPoint
from slotool.scheduling.latency_constrained import LatencyConstrained
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.query import Query
from slotool.scheduling.space import ControlSpace
from slotool.scheduling.tolerance_tiers import ToleranceTiers
from slotool.tables import OperatingPoint


class FirstApplicable(Policy):
    """Asks ``policies`` in turn; a rejection counts as something to say."""

    def __init__(self, policies: Sequence[Policy]):
        self._policies = tuple(policies)
        self.points = tuple(dict.fromkeys(point for policy in self._policies for point in policy.points))
        # Those of them that have more to say than the base class: each is asked for every query.
        self._shedding, self._planning, self._observing, self._pointing = (
            tuple(policy for policy in self._policies if getattr(type(policy), method) is not getattr(Policy, method))
            for method in ("shed_candidate", "planned_us", "observe", "own_point")
        )
        sharing = [policy for policy in self._policies if type(policy).serves is not Policy.serves]
        self._sharing = {point: [policy for policy in sharing if point in policy.points] for point in self.points}

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        for policy in self._policies:
            answer = policy.decide(now_us, queue)
            if answer is not None:
                return answer
        return None

    def shed_candidate(self, now_us: float, queue: EdfQueue) -> Query | None:
        for policy in self._shedding:
            query = policy.shed_candidate(now_us, queue)
            if query is not None:
                return query
        return None

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        planned_us = 0.0
        for policy in self._planning:
            planned_us = max(planned_us, policy.planned_us(point, examples))
        return planned_us

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted({size for policy in self._policies for size in policy.batch_sizes}))

    def own_point(self, query: Query) -> OperatingPoint | None:
        for policy in self._pointing:
            point = policy.own_point(query)
            if point is not None:
                return point
        return None

    def decision_for(self, query: Query, decision: Decision) -> Decision:
        for policy in self._pointing:
            decision = policy.decision_for(query, decision)
        return decision

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        # No generator: it is asked for every request that might share a call.
        for policy in self._sharing.get(point, ()):  # noqa: SIM110
            if policy.serves(point, query):
                return True
        return False

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        for policy in self._observing:
            policy.observe(point, examples, took_us)


def by_demand(
    space: ControlSpace, rules: RuleSet | None = None, co_location: InterferenceAware | None = None
) -> FirstApplicable:
    """What a server does by default: whatever the query asks for decides which policy answers.

    A tolerance: its tier's rule, when there are ``rules``; a minimum accuracy: ACLO; a deadline: LCAO; nothing: the
    full point. The first three also keep the deadline, as far as latencies are known. ``co_location``: LCAO where
    co-located latencies are known too.
    """
    tiers = [ToleranceTiers(rules, space)] if rules is not None else []
    in_time = co_location or LatencyConstrained(space)
    return FirstApplicable([*tiers, AccuracyConstrained(space), in_time, FixedPoint(space)])
