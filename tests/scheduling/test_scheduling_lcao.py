"""LCAO of a model under interference: the greatest k in time, co_runners so many copies as are given or estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.colocation.chooser import Lcao
from slotool.errors import InputError
from slotool.scheduling import (
    CannotMeet,
    ControlSpace,
    CoRunnerEstimator,
    Decision,
    EdfQueue,
    InterferenceAware,
    LatencyConstrained,
    LatencyProfile,
    Query,
)
from slotool.tables import FULL, LatencyTable, OperatingPoint
from slotool.testing.policies import NOW_US, PolicyConformance, queue_of, three_versions

POINTS = (*(OperatingPoint.of(k=k) for k in (0.1, 0.25, 0.5)), FULL)
ALONE = dict(zip(POINTS, (10.0, 20.0, 40.0, 80.0), strict=True))
BESIDE = {point: 2.5 * time for point, time in ALONE.items()}


def profile(
    alone: dict[OperatingPoint, float] = ALONE, co_runners: dict[OperatingPoint, float] = BESIDE
) -> LatencyProfile:
    return LatencyProfile(POINTS, {0: alone, 1: co_runners}, {0: alone, 1: co_runners})


def row(point: OperatingPoint, samples_us: list[float], co_runners: str = "", **more: Any) -> dict[str, Any]:
    samples_s = 1e-6 * np.array(samples_us)
    same = {"subject": "net", "batch_size": 1, "predicted": False}
    return {**same, "point": point.key, "samples_s": samples_s, "co_runners": co_runners, **more}


def test_the_greatest_k_in_time_is_taken() -> None:
    lcao = Lcao(profile())
    assert lcao.choose(1_000.0) == FULL
    assert lcao.choose(45.0, 5.0) == POINTS[2], "5 + 40 ≤ 45: the limit itself is in time"
    assert lcao.choose(44.9, 5.0) == POINTS[1]
    assert lcao.choose(45.0, 5.0, co_runners=1) == POINTS[0]
    assert Lcao(profile({POINTS[1]: 20.0})).choose(1_000.0) == POINTS[1], "a point nobody timed is not considered"


def test_what_cannot_be_met_is_said() -> None:
    lcao = Lcao(profile())
    assert lcao.choose(9.0) == CannotMeet("the deadline cannot be met: 10 µs are needed and 9 µs are left")
    late = lcao.choose(30.0, 10.0, co_runners=1)
    assert late == CannotMeet("the deadline cannot be met: 25 µs are needed with 1 co-runner and 20 µs are left")
    assert lcao.choose(20.0, 20.0) == CannotMeet("the deadline has passed")
    with pytest.raises(InputError, match="with 0, 1 co-runners, not with 2"):
        lcao.choose(30.0, co_runners=2)
    with pytest.raises(InputError, match="not a number"):
        lcao.choose(float("nan"))


@given(
    st.lists(st.floats(0.5, 1_000.0), min_size=len(POINTS), max_size=len(POINTS)),
    st.sets(st.integers(0, len(POINTS) - 1), max_size=len(POINTS) - 1),
    st.floats(-10.0, 1_500.0),
)
def test_the_look_up_and_the_policy_of_the_queue_give_one_answer(
    times: list[float], missing: set[int], slack_us: float
) -> None:
    known = {point: time for i, (point, time) in enumerate(zip(POINTS, times, strict=True)) if i not in missing}
    space = ControlSpace(POINTS, {(point, 1): time for point, time in known.items()})
    queued = LatencyConstrained(space).decide(0.0, queue_of(Query("q", 0.0, slack_us)))
    direct = Lcao(profile(known)).choose(slack_us)
    if isinstance(queued, Decision) and slack_us > 0:
        assert direct == queued.point
    else:
        assert isinstance(queued, CannotMeet)
        assert isinstance(direct, CannotMeet)


def test_a_profile_is_a_view_of_the_latency_table() -> None:
    samples = list(map(float, range(1, 101)))
    table = LatencyTable(
        pd.DataFrame(
            [
                row(POINTS[0], samples),
                row(FULL, [200.0]),
                row(POINTS[0], [2 * sample for sample in samples], "net"),
                row(FULL, [500.0], "net+net"),
                row(FULL, [9_000.0], "other"),
                row(FULL, [9_000.0], "net+other"),
                row(FULL, [9_000.0], batch_size=8),
            ]
        )
    )
    found = LatencyProfile.of_table("net", POINTS, table)
    assert {co_runners: sorted(map(str, known)) for co_runners, known in found.planned_us.items()} == {
        0: ["full", "k=0.1"],
        1: ["k=0.1"],
        2: ["full"],
    }
    assert found.planned_us[0][POINTS[0]] == pytest.approx(np.quantile(samples, 0.95))
    assert found.mean_us[1][POINTS[0]] == pytest.approx(101.0)
    median = LatencyProfile.of_table("net", POINTS, table, quantile=0.5)
    assert median.planned_us[0][POINTS[0]] == pytest.approx(50.5)
    for wrong in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="between 0 and 1"):
            LatencyProfile.of_table("net", POINTS, table, quantile=wrong)
    with pytest.raises(InputError, match="no row of another"):
        LatencyProfile.of_table("another", POINTS, table)


def test_a_k_of_more_digits_than_its_key_is_found() -> None:
    fine = OperatingPoint.of(k=1 / 3 / 700)
    found = LatencyProfile.of_table("net", [fine, FULL], LatencyTable(pd.DataFrame([row(fine, [3.0])])))
    assert Lcao(found).choose(4.0) == fine


def test_a_predicted_latency_is_planned_with_its_upper_bound() -> None:
    guessed = [row(FULL, [80.0], predicted=True, low_s=60e-6, high_s=120e-6), row(POINTS[0], [10.0])]
    table = LatencyTable(pd.DataFrame(guessed))
    found = LatencyProfile.of_table("net", POINTS, table)
    assert Lcao(found).choose(119.0) == POINTS[0]
    assert Lcao(found).choose(121.0) == FULL
    assert Lcao(LatencyProfile.of_table("net", POINTS, table, quantile=0.5)).choose(81.0) == FULL


def sliced(rng: np.random.Generator, took_us: float, slice_us: float = 4_000.0) -> float:
    """An answer on a core shared with one busy copy: now and then it waits for a whole slice of the other's."""
    return took_us + slice_us * int(rng.poisson(took_us / slice_us))


@pytest.mark.parametrize("scale", [2.0, 20.0, 200.0])
def test_co_runners_are_reported_from_how_long_answers_take(scale: float) -> None:
    rng = np.random.default_rng(int(scale))
    alone = {point: scale * time for point, time in ALONE.items()}
    estimator = CoRunnerEstimator({0: alone, 1: {point: 2 * time for point, time in alone.items()}}, memory_us=400_000)
    for busy in (False, True, False):
        passed_us = 0.0
        while passed_us < 1_000_000:
            point = POINTS[int(rng.integers(len(POINTS)))]
            took_us = sliced(rng, alone[point]) if busy else alone[point] * float(rng.uniform(0.9, 1.1))
            estimator.observe(point, took_us)
            passed_us += took_us
        assert estimator.co_runners == int(busy)


def test_an_estimate_begins_with_the_least_and_ignores_what_it_cannot_compare() -> None:
    means = {0: {FULL: 80.0}, 1: {**BESIDE, FULL: 200.0}}
    estimator = CoRunnerEstimator(means)
    for _ in range(10_000):
        estimator.observe(POINTS[0], BESIDE[POINTS[0]])
    assert estimator.co_runners == 0
    for _ in range(1_000):
        estimator.observe(FULL, 200.0)
    assert estimator.co_runners == 1
    for wrong, memory_us in (({}, 1.0), (means, 0.0)):
        with pytest.raises(InputError, match="cannot be estimated"):
            CoRunnerEstimator(wrong, memory_us=memory_us)


class TestInterferenceAware(PolicyConformance):
    make = staticmethod(
        lambda space: InterferenceAware({0: space}, CoRunnerEstimator({0: dict.fromkeys(space.points, 1.0)}))
    )


def test_the_policy_of_the_queue_follows_the_estimate() -> None:
    quick = three_versions()
    large = quick.points[-1]
    slow = ControlSpace(quick.points, {(point, 1): 3 * (quick.latency_us(point) or 0.0) for point in quick.points})
    means = {co_runners: {large: space.latency_us(large) or 0.0} for co_runners, space in ((0, quick), (1, slow))}
    policy = InterferenceAware({0: quick, 1: slow}, CoRunnerEstimator(means))
    query = Query("q", NOW_US, NOW_US + 2_000.0)
    assert policy.decide(NOW_US, queue_of(query)) == LatencyConstrained(quick).decide(NOW_US, queue_of(query))
    for _ in range(50):
        policy.estimator.observe(large, 6_000.0)
    assert policy.decide(NOW_US, queue_of(query)) == LatencyConstrained(slow).decide(NOW_US, queue_of(query))
    assert policy.decide(NOW_US, EdfQueue()) is None
