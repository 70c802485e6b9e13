"""What each policy chooses, and that all of them keep to the conformance suite."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from slotool.errors import InputError
from slotool.rules.policies.cascades import Cascade, Step
from slotool.rules.policies.points import in_turn
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.scheduling import (
    AccuracyConstrained,
    CannotMeet,
    ControlSpace,
    Decision,
    FirstApplicable,
    FixedPoint,
    LatencyConstrained,
    Policy,
    Query,
    ToleranceTiers,
    by_demand,
)
from slotool.scheduling.edf import FixedWorkers
from slotool.tables import OperatingPoint
from slotool.testing.policies import NOW_US, PolicyConformance, queue_of, three_versions

SMALL, MEDIUM, LARGE = three_versions().points
SEQ = OperatingPoint.of(policy="seq", first="small", second="large", threshold=0.8)
CONC = OperatingPoint.of(policy="conc", first="small", second="large", threshold=0.8)
BEST = OperatingPoint.of(policy="osfa", version="large")


def rules() -> RuleSet:
    tiers = {0.01: BEST, 0.05: CONC, 0.2: SEQ}
    made = tuple(
        Rule(f"{objective}-{tolerance:g}", objective, tolerance, point, 0.0, tolerance, 1e-3, 1e-3)
        for objective in ("response-time", "cost")
        for tolerance, point in tiers.items()
    )
    return RuleSet("certified", 0.999, "relative", "large", 0.02, 1_000, "0" * 64, made)


def decide(policy: Policy, *, slack_us: float = math.inf, **demands: Any) -> Decision | CannotMeet | None:
    return policy.decide(NOW_US, queue_of(Query("q", NOW_US, NOW_US + slack_us, **demands)))


def point(policy: Policy, **demands: Any) -> OperatingPoint:
    decision = decide(policy, **demands)
    assert isinstance(decision, Decision), decision
    return decision.point


class TestFixedPoint(PolicyConformance):
    make = staticmethod(FixedPoint)


class TestAccuracyConstrained(PolicyConformance):
    make = staticmethod(AccuracyConstrained)


class TestLatencyConstrained(PolicyConformance):
    make = staticmethod(LatencyConstrained)


class TestToleranceTiers(PolicyConformance):
    make = staticmethod(lambda space: ToleranceTiers(rules(), space))


class TestByDemand(PolicyConformance):
    make = staticmethod(lambda space: by_demand(space, rules()))


def test_fixed_takes_the_last_point_or_the_one_named_and_rejects_a_known_miss() -> None:
    assert point(FixedPoint(three_versions())) == LARGE
    assert point(FixedPoint(three_versions(), SMALL), slack_us=100.0) == SMALL
    rejected = decide(FixedPoint(three_versions()), slack_us=1_999.0)
    assert rejected == CannotMeet("the deadline would be missed: 2000 µs are needed and 1999 µs are left")
    assert point(FixedPoint(ControlSpace([LARGE])), slack_us=5.0) == LARGE
    with pytest.raises(InputError, match=r"no operating point k=0\.5"):
        FixedPoint(three_versions(), OperatingPoint.of(k=0.5))


@pytest.mark.parametrize(("least", "chosen"), [(0.0, SMALL), (0.90, SMALL), (0.901, MEDIUM), (0.98, LARGE)])
def test_aclo_takes_the_cheapest_point_that_is_accurate_enough(least: float, chosen: OperatingPoint) -> None:
    assert point(AccuracyConstrained(three_versions()), min_accuracy=least) == chosen


def test_aclo_believes_the_input_more_than_the_average_and_says_what_is_out_of_reach() -> None:
    policy = AccuracyConstrained(three_versions())
    hard = {SMALL: 0.2, MEDIUM: 0.3, LARGE: 0.9}
    assert point(policy, min_accuracy=0.85, expected_accuracy=hard) == LARGE
    rejected = decide(policy, min_accuracy=0.95, expected_accuracy=hard)
    assert isinstance(rejected, CannotMeet)
    assert "0.95 is out of reach" in rejected.reason
    assert "0.9" in rejected.reason
    assert decide(policy) is None
    unknown = decide(AccuracyConstrained(ControlSpace([SMALL, LARGE])), min_accuracy=0.5)
    assert isinstance(unknown, CannotMeet)


@pytest.mark.parametrize(
    ("slack_us", "examples", "chosen"),
    [(100.0, 1, SMALL), (1_999.0, 1, MEDIUM), (2_000.0, 1, LARGE), (2_000.0, 2, MEDIUM), (400.0, 7, None)],
)
def test_lcao_takes_the_most_accurate_point_that_fits(
    slack_us: float, examples: int, chosen: OperatingPoint | None
) -> None:
    decision = decide(LatencyConstrained(three_versions()), slack_us=slack_us, examples=examples)
    assert isinstance(decision, CannotMeet) if chosen is None else decision.point == chosen


def test_lcao_prefers_accuracy_to_size_where_it_is_known() -> None:
    latency_us = {(SMALL, 1): 10.0, (MEDIUM, 1): 20.0, (LARGE, 1): 30.0}
    assert point(LatencyConstrained(ControlSpace([SMALL, MEDIUM, LARGE], latency_us)), slack_us=50.0) == LARGE
    known = ControlSpace([SMALL, MEDIUM, LARGE], latency_us, {SMALL: 0.9, MEDIUM: 0.97, LARGE: 0.96})
    assert point(LatencyConstrained(known), slack_us=50.0) == MEDIUM
    own = {SMALL: 0.99, MEDIUM: 0.5, LARGE: 0.5}
    assert point(LatencyConstrained(known), slack_us=50.0, expected_accuracy=own) == SMALL
    assert decide(LatencyConstrained(known)) is None
    assert decide(LatencyConstrained(ControlSpace([SMALL])), slack_us=50.0) is None


def test_tiers_follow_the_rules_and_name_them() -> None:
    policy = ToleranceTiers(rules(), three_versions())
    decision = decide(policy, tolerance=0.1, objective="cost")
    assert isinstance(decision, Decision)
    assert (decision.point, decision.rule) == (CONC, "cost-0.05")
    assert point(policy, tolerance=0.001) == BEST, "below the strictest tier the best version serves"
    assert decide(policy) is None
    assert isinstance(decide(policy, tolerance=0.1, objective="fame"), CannotMeet)


def test_tiers_go_stricter_when_the_deadline_needs_it_never_wider() -> None:
    policy = ToleranceTiers(rules(), three_versions())
    assert point(policy, tolerance=0.2, slack_us=2_100.0) == SEQ
    assert point(policy, tolerance=0.2, slack_us=2_050.0) == CONC, "both at once are faster than one after the other"
    assert isinstance(decide(policy, tolerance=0.2, slack_us=1_900.0), CannotMeet)


def test_conc_is_taken_in_turn_where_one_worker_is_idle_and_the_deadline_allows() -> None:
    policy = ToleranceTiers(rules(), three_versions())
    query, one_idle = Query("q", NOW_US, NOW_US + 5_000.0, 0.05), FixedWorkers(slots=1)
    assert policy.decide(NOW_US, queue_of(query)).concurrent
    queue = queue_of(query, workers=one_idle)
    decision = policy.decide(NOW_US, queue)
    assert isinstance(decision, Decision)
    assert not decision.concurrent
    assert decision.point == in_turn(CONC)
    assert decision.point in policy.points
    assert "one worker is idle" in decision.reason
    query = Query("q", NOW_US, NOW_US + 2_050.0, 0.05)
    assert policy.decide(NOW_US, queue_of(query)).point == CONC
    urgent = queue_of(query, workers=one_idle)
    assert policy.decide(NOW_US, urgent).point == BEST, "2,100 µs in turn are too long"


def test_by_demand_asks_the_policy_of_what_was_asked_for() -> None:
    policy = by_demand(three_versions(), rules())
    assert point(policy) == LARGE
    assert point(policy, slack_us=500.0) == MEDIUM
    assert point(policy, min_accuracy=0.8, slack_us=500.0) == SMALL
    assert point(policy, tolerance=0.2) == SEQ
    assert isinstance(decide(policy, slack_us=50.0), CannotMeet)


def test_first_applicable_knows_every_point_once() -> None:
    policy = FirstApplicable([FixedPoint(three_versions(), SMALL), FixedPoint(three_versions())])
    assert policy.points == (SMALL, LARGE)
    assert point(policy) == SMALL


def test_a_stricter_tier_serves_where_a_cascade_could_miss_the_deadline() -> None:
    """Its worst case is that all versions are asked, one after the other."""
    steps = Step("small", 0.9), Step("medium", 0.9), Step("large")
    cascade = Cascade(steps).point
    tiers = tuple(replace(rule, point=cascade) if rule.point == SEQ else rule for rule in rules().rules)
    space, policy = three_versions(), ToleranceTiers(replace(rules(), rules=tiers), three_versions())
    worst_us = sum(space.latency_us(own) or 0.0 for own in (SMALL, MEDIUM, LARGE))
    assert space.latency_us(cascade) == worst_us
    asked = {"tolerance": 0.2, "objective": "cost"}
    assert point(policy, slack_us=worst_us, **asked) == cascade
    assert point(policy, slack_us=worst_us - 1, **asked) == CONC
    # The strictest tiers may be cascades too; the best version alone keeps every tolerance.
    alone = ToleranceTiers(replace(rules(), rules=tuple(replace(r, point=cascade) for r in tiers)), three_versions())
    decision = decide(alone, slack_us=worst_us - 1, **asked)
    assert isinstance(decision, Decision)
    assert (decision.point, "could miss the deadline: the best version" in decision.reason) == (BEST, True)
    assert isinstance(decide(alone, slack_us=1_999.0, **asked), CannotMeet)
    elsewhere = Cascade((Step("small", 0.9), Step("huge"))).point
    assert space.latency_us(elsewhere) is None


def test_of_many_tiers_the_widest_within_the_tolerance_serves() -> None:
    tiers = tuple(
        Rule(f"{objective}-{at}", objective, at / 100, SEQ if at % 2 else CONC, 0.0, 0.1, 1e-3, 1e-3)
        for at in (7, 1, 30, 12)
        for objective in ("cost", "response-time")
    )
    policy = ToleranceTiers(replace(rules(), rules=tiers), three_versions())
    for tolerance, expected in ((0.5, 30), (0.3, 30), (0.2999, 12), (0.12 - 1e-13, 12), (0.1, 7), (0.01, 1)):
        decision = decide(policy, tolerance=tolerance, objective="cost")
        assert isinstance(decision, Decision)
        assert decision.rule == f"cost-{expected}"
    assert point(policy, tolerance=0.005, objective="cost") == BEST
