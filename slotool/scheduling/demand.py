"""Policies by what a query asks for: a minimum accuracy (ACLO), a deadline (LCAO), nothing; the first that applies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slotool.errors import InputError
from slotool.rules.ruleset.rules import RuleSet
from slotool.scheduling.edf import EdfQueue, Query
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.scheduling.tolerance_tiers import ToleranceTiers
from slotool.tables import OperatingPoint

# The longest call that queries share: they wait for no other that is longer.
SHARED_US = 1_000.0
# The share of the latest call in what an example is taken to cost, and how many times the cost before it counts as at
# most: a call that another process interrupted says nothing of the next.
LATEST, MOST = 0.125, 2.0


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
        best = "the only point" if len(space.points) == 1 else "no option excludes it: the most accurate point"
        self._reason = "always this point" if self._is_given else best
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
            self._example_us = before_us + LATEST * (min(latest_us, MOST * before_us) - before_us)


# Permanent reason to reject any minimum, unlike others.
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
        accuracies = {point: accuracy for point, accuracy in expected.items() if accuracy is not None}
        if not accuracies:
            return CannotMeet(ACCURACY_UNKNOWN)
        enough = [point for point, accuracy in accuracies.items() if accuracy >= query.min_accuracy]
        if not enough:
            best = max(accuracies.values())
            return CannotMeet(f"accuracy {query.min_accuracy:g} is out of reach; the most to expect is {best:.4g}")
        slack_us = query.slack_us(now_us)
        for point in enough:
            if self._space.fits(point, query.examples, slack_us):
                whose = "of this input" if query.expected_accuracy else "on average"
                value = accuracies[point]
                reason = f"cheapest point that reaches accuracy {query.min_accuracy:g} ({value:.4g} {whose})"
                return Decision(point, query.examples, reason)
        return CannotMeet(self._space.too_slow(enough, query.examples, slack_us))

    def _expected(self, query: Query, point: OperatingPoint) -> float | None:
        if query.expected_accuracy is not None:
            return query.expected_accuracy.get(point)
        return self._space.accuracy(point)


class LatencyConstrained(Policy):
    """The most accurate point whose latency fits the slack that is left; of equals the cheapest.

    Accuracy is the query's own for its input, else the space's. If neither covers every point, the greater point counts
    as the more accurate. There is no decision on a query without a deadline, or without a known latency. Source:
    slo-aware-neural-networks, §2.3, Eq. 3; queueing time is part of the slack.
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
        of_query = query.expected_accuracy
        expected = [of_query.get(p) if of_query is not None else self._space.accuracy(p) for p in fitting]
        accuracies = [accuracy for accuracy in expected if accuracy is not None]
        return fitting[accuracies.index(max(accuracies))] if len(accuracies) == len(fitting) else fitting[-1]


# The operating system hands out slices of some milliseconds, so a share of a core shows over many of them only.
MEMORY_US = 100_000.0


class CoRunnerEstimator:
    """Estimates β by the ratio of recent latencies to those that the latency profile expects.

    It compares sums, not medians: on a shared core most short answers keep their latency, and a few wait for a whole
    time slice. ``mean_us``: mean latency by β and point (``LatencyProfile.mean_us``). ``memory_us``: weights of past
    answers decay by a factor e in this time; until a quarter of it has been observed β is the least that is known.
    Raises ``InputError`` for no β and for a memory that is not positive.
    """

    def __init__(self, mean_us: Mapping[int, Mapping[OperatingPoint, float]], *, memory_us: float = MEMORY_US):
        if not mean_us or not memory_us > 0:
            raise InputError("co-runners cannot be estimated without latencies, or with a memory of 0 µs")
        self._mean_us = {co_runners: dict(by_point) for co_runners, by_point in sorted(mean_us.items())}
        self.co_runners = min(self._mean_us)
        self._memory_us = memory_us
        self._took_us = self._seen_us = 0.0
        self._expected_us = dict.fromkeys(self._mean_us, 0.0)

    def observe(self, point: OperatingPoint, took_us: float) -> int:
        """Record the latency of an answer at ``point``; returns the new estimate of β.

        A point without a mean for every β is ignored.
        """
        means = [by_point.get(point) for by_point in self._mean_us.values()]
        if None in means:
            return self.co_runners
        weight = math.exp(-took_us / self._memory_us)
        self._took_us = weight * self._took_us + took_us
        self._seen_us += took_us
        for co_runners, mean_us in zip(self._mean_us, means, strict=True):
            self._expected_us[co_runners] = weight * self._expected_us[co_runners] + (mean_us or 0.0)
        if self._seen_us >= self._memory_us / 4:
            self.co_runners = min(self._expected_us, key=self._distance)
        return self.co_runners

    def _distance(self, co_runners: int) -> float:
        return abs(math.log(self._took_us / self._expected_us[co_runners]))


class InterferenceAware(Policy):
    """``LatencyConstrained`` with the latencies of the β that ``estimator`` returns; the server feeds it observations.

    ``spaces``: by β, one for each that the estimator may return. Source: slo-aware-neural-networks, §2.3 and §3.2.
    """

    def __init__(self, spaces: Mapping[int, ControlSpace], estimator: CoRunnerEstimator):
        self._policies = {co_runners: LatencyConstrained(space) for co_runners, space in spaces.items()}
        if estimator.co_runners not in self._policies:
            raise InputError(f"no latencies are known with {estimator.co_runners} co-runners")
        self.estimator = estimator
        self.points = tuple(dict.fromkeys(point for policy in self._policies.values() for point in policy.points))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        return self._policies[self.estimator.co_runners].decide(now_us, queue)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._policies[self.estimator.co_runners].planned_us(point, examples)

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        if examples == 1:
            self.estimator.observe(point, took_us)


class FirstApplicable(Policy):
    """Asks ``policies`` in turn; a rejection counts as something to say."""

    def __init__(self, policies: Sequence[Policy]):
        self._policies = tuple(policies)
        self.points = tuple(dict.fromkeys(point for policy in self._policies for point in policy.points))
        # Policies that override the base class: each is called for every query.
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
        candidates = (policy.shed_candidate(now_us, queue) for policy in self._shedding)
        return next((query for query in candidates if query is not None), None)

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
    """Return a server's default policy, in which a query's own demand chooses the deciding one.

    A tolerance: its tier's rule, if there are ``rules``; a minimum accuracy: ACLO; a deadline: LCAO; nothing: the full
    point. The first three also keep the deadline, as far as latencies are known. ``co_location``: LCAO with known
    co-located latencies.
    """
    tiers = [ToleranceTiers(rules, space)] if rules is not None else []
    in_time = co_location or LatencyConstrained(space)
    return FirstApplicable([*tiers, AccuracyConstrained(space), in_time, FixedPoint(space)])
