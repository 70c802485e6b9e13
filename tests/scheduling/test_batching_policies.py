"""What each batching policy chooses, against its definition in plain loops; all keep to the conformance suite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.scheduling import CannotMeet, ControlSpace, Decision, EdfQueue, Policy, Query
from slotool.scheduling.batching import (
    BatchingPolicy,
    ControlGrid,
    FixedBatching,
    Hindsight,
    MaxAccuracy,
    MaxBatch,
    MinCost,
    ModelSwitching,
    SlackFit,
    ValueIteration,
    make_policy,
)
from slotool.scheduling.batching.clairvoyant import hindsight_values
from slotool.scheduling.batching.value_iteration import value_tables
from slotool.scheduling.edf import FixedWorkers
from slotool.simulation import Scenario, simulate
from slotool.tables import OperatingPoint
from slotool.testing.policies import NOW_US, PolicyConformance, queue_of, three_versions

SMALL, MEDIUM, LARGE = three_versions().points


class TestSlackFit(PolicyConformance):
    make = staticmethod(SlackFit)


class TestMaxBatch(PolicyConformance):
    make = staticmethod(MaxBatch)


class TestMaxAccuracy(PolicyConformance):
    make = staticmethod(MaxAccuracy)


class TestFixedBatching(PolicyConformance):
    make = staticmethod(FixedBatching)


class TestMinCost(PolicyConformance):
    make = staticmethod(MinCost)


class TestValueIteration(PolicyConformance):
    make = staticmethod(ValueIteration)


class TestHindsight(PolicyConformance):
    make = staticmethod(Hindsight)


class TestModelSwitching(PolicyConformance):
    make = staticmethod(ModelSwitching)


def decide(policy: Policy, slack_us: float, count: int = 20, **demands: Any) -> Decision | CannotMeet | None:
    waiting = [Query(str(i), NOW_US - 5.0, NOW_US + slack_us + i, **demands) for i in range(count)]
    return policy.decide(NOW_US, queue_of(*waiting))


def cell(policy: Policy, slack_us: float, **demands: Any) -> tuple[OperatingPoint, int] | None:
    decision = decide(policy, slack_us, **demands)
    return (decision.point, decision.batch_size) if isinstance(decision, Decision) else None


@st.composite
def grids(draw: st.DrawFn) -> ControlGrid:
    """Random profiles that grow along both sides, in whole µs."""
    count, sizes = draw(st.integers(1, 6)), draw(st.sampled_from([(1,), (1, 2, 4), (1, 2, 4, 8, 16)]))
    steps = st.lists(st.integers(1, 400), min_size=len(sizes), max_size=len(sizes))
    points = [OperatingPoint.of(depth=i) for i in range(count)]
    rows = np.cumsum(np.cumsum([draw(steps) for _ in range(count)], axis=1), axis=0)
    latency_us = {(p, b): float(rows[i, j]) for i, p in enumerate(points) for j, b in enumerate(sizes)}
    return ControlGrid(ControlSpace(points, latency_us, {p: 0.5 + 0.05 * i for i, p in enumerate(points)}))


def cells(grid: ControlGrid, slack_us: float) -> list[tuple[int, int, float]]:
    """(row, column, µs) of what fits."""
    return [
        (r, c, float(grid.latency_us[r, c]))
        for r, c in np.ndindex(grid.latency_us.shape)
        if grid.latency_us[r, c] <= slack_us
    ]


def named(grid: ControlGrid, best: tuple[int, int, float]) -> tuple[OperatingPoint, int]:
    return grid.points[best[0]], int(grid.sizes[best[1]])


def test_the_reason_for_a_request_without_a_deadline_states_no_infinite_time() -> None:
    decision = decide(SlackFit(three_versions()), math.inf)
    assert isinstance(decision, Decision)
    assert "inf" not in decision.reason


@given(grids(), st.integers(1, 8_000), st.integers(1, 25))
def test_slackfit_takes_the_largest_batch_of_the_bucket_just_under_the_slack(
    grid: ControlGrid, slack_us: int, buckets: int
) -> None:
    fitting = cells(grid, slack_us)
    least = float(grid.latency_us.min())
    width = (float(grid.latency_us.max()) - least) / buckets

    def bucket_of(time_us: float) -> int:
        """From 1: each spans (edge, next edge], the first one its lower edge as well; rounding makes no further one."""
        return min(buckets, max(1, math.ceil((time_us - least) / width))) if width else 1

    whole = [f for f in fitting if least + bucket_of(f[2]) * width <= slack_us]
    among = whole or [f for f in fitting if bucket_of(f[2]) == 1]
    top = max((bucket_of(f[2]) for f in among), default=0)
    bucket = [f for f in among if bucket_of(f[2]) == top]
    expected = named(grid, max(bucket, key=lambda f: (f[1], f[0]))) if bucket else None
    edges = least + width * np.arange(buckets + 1)
    if (np.abs(edges - slack_us) > 1e-3).all():
        assert cell(SlackFit(grid, buckets), slack_us) == expected


@given(grids(), st.integers(1, 8_000))
def test_maxbatch_maxacc_fixed_and_mincost_are_what_they_say(grid: ControlGrid, slack_us: int) -> None:
    fitting = cells(grid, slack_us)
    of_least = [f for f in fitting if f[0] == 0]
    widest = max((f[1] for f in of_least), default=-1)
    by_batch = max((f for f in fitting if f[1] == widest), default=None)
    by_accuracy = max(fitting, default=None)
    cheapest = max(of_least, default=None)
    last = max((f for f in fitting if f[0] == len(grid.points) - 1), default=None)
    for policy, best in ((MaxBatch, by_batch), (MaxAccuracy, by_accuracy), (MinCost, cheapest), (FixedBatching, last)):
        assert cell(policy(grid), slack_us) == (best and named(grid, best)), policy


@pytest.mark.parametrize("make", [SlackFit, MaxBatch, MaxAccuracy, MinCost, ModelSwitching, ValueIteration, Hindsight])
def test_a_minimum_accuracy_rules_points_out(make: type[BatchingPolicy]) -> None:
    for least, allowed in ((0.91, (MEDIUM, LARGE)), (0.98, (LARGE,))):
        chosen = cell(make(three_versions()), 1e5, min_accuracy=least)
        assert chosen is not None
        assert chosen[0] in allowed
    rejected = decide(make(three_versions()), 1e5, min_accuracy=0.99)
    assert rejected == CannotMeet("accuracy 0.99 is out of reach; the most to expect is 0.98")
    rejected = decide(FixedBatching(three_versions(), SMALL), 1e5, min_accuracy=0.91)
    assert rejected == CannotMeet("accuracy 0.91 is out of reach; the most to expect is 0.9")


def test_fixed_batching_stays_at_its_point() -> None:
    policy = FixedBatching(three_versions(), MEDIUM)
    assert policy.points == (MEDIUM,)
    assert cell(policy, 1_000.0) == (MEDIUM, 4)
    with pytest.raises(InputError, match="no operating point"):
        FixedBatching(three_versions(), OperatingPoint.of(k=0.5))


def test_switching_follows_the_rate_of_the_window_per_worker() -> None:
    rates = {SMALL: 1_000.0, MEDIUM: 100.0, LARGE: 10.0}
    for per_s, workers, expected in ((8, 1, LARGE), (50, 1, MEDIUM), (45, 5, LARGE), (500, 1, SMALL), (4e3, 1, SMALL)):
        gap_us = 1e6 / per_s
        asked = (Query(str(i), NOW_US - i * gap_us, NOW_US + 1e6) for i in reversed(range(int(per_s))))
        queue = queue_of(*asked, workers=FixedWorkers(np.array([0.0] * workers + [math.inf])))
        decision = ModelSwitching(three_versions(), rates).decide(NOW_US, queue)
        assert isinstance(decision, Decision)
        assert decision.point == expected, per_s
    with pytest.raises(InputError, match="no sustainable rate is given for version=large"):
        ModelSwitching(three_versions(), {SMALL: 1.0, MEDIUM: 1.0})


def test_switching_serves_what_no_point_is_good_for_by_the_one_that_is_good_for_most() -> None:
    rates = {SMALL: 5.0, MEDIUM: 100.0, LARGE: 10.0}
    asked = (Query(str(i), NOW_US - i * 1e3, NOW_US + 1e6) for i in reversed(range(900)))
    decision = ModelSwitching(three_versions(), rates).decide(NOW_US, queue_of(*asked))
    assert isinstance(decision, Decision)
    assert decision.point == MEDIUM


def test_the_window_of_switching_is_two_deadlines_where_one_is_known() -> None:
    """600 a second until 100 ms ago, and since then 20."""
    rates = {SMALL: 1_000.0, MEDIUM: 100.0, LARGE: 30.0}
    gaps = [NOW_US - 1e5 - i * 1e6 / 600 for i in reversed(range(300))] + [NOW_US - 5e4, NOW_US]
    for deadline_us, expected in ((4e4, LARGE), (math.inf, SMALL)):
        queue = queue_of(*(Query(str(i), at_us, NOW_US + 1e6) for i, at_us in enumerate(gaps)))
        decision = ModelSwitching(three_versions(), rates, deadline_us=deadline_us).decide(NOW_US, queue)
        assert isinstance(decision, Decision)
        assert decision.point == expected


def test_slackfit_needs_buckets() -> None:
    with pytest.raises(InputError, match="at least one latency bucket"):
        SlackFit(three_versions(), 0)


@pytest.mark.parametrize("make", [ValueIteration, Hindsight])
def test_all_that_wait_are_looked_at_and_not_the_most_urgent_alone(make: type[BatchingPolicy]) -> None:
    """One query may have the best point; with more behind it the call is short enough for all of them."""
    policy = make(three_versions())
    assert cell(policy, 2_100.0, count=1) == (LARGE, 1)
    crowd = decide(policy, 2_100.0, count=32)
    assert isinstance(crowd, Decision)
    assert crowd.point == SMALL
    # 8 of small take 450 µs: 32 are served in 4 calls, 1,800 µs.
    assert crowd.batch_size == 8
    assert isinstance(decide(policy, 2_100.0, count=2), Decision)


def test_policies_have_names() -> None:
    grid = ControlGrid(three_versions())
    for name in ("hindsight", "value-iteration", "slackfit", "maxbatch", "maxacc", "mincost", "switching", "fixed"):
        assert make_policy(name, grid, 1e4).name == name
    assert make_policy("fixed@version=small", grid, 1e4).points == (SMALL,)
    for wrong, sentence in (("best", "no policy 'best'"), ("mincost@k=1", "no policy"), ("fixed@k=1", "no operating")):
        with pytest.raises(InputError, match=sentence):
            make_policy(wrong, grid, 1e4)


@pytest.mark.parametrize("make", [ValueIteration, Hindsight])
def test_policies_of_values_need_a_deadline_and_no_love_of_losses(make: type[ValueIteration | Hindsight]) -> None:
    for deadline_us in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="is not a positive, finite time"):
            make(three_versions(), deadline_us)
    with pytest.raises(InputError, match="is negative"):
        make(three_versions(), aversion=-0.1)


@pytest.mark.parametrize("make", [ValueIteration, Hindsight])
@pytest.mark.parametrize(("together", "expected"), [(1, LARGE), (30, SMALL)])
def test_what_came_lately_is_expected_again(
    make: type[ValueIteration | Hindsight], together: int, expected: OperatingPoint
) -> None:
    """A lone query with 2.1 ms, after groups every 4 ms: one came each time, or thirty, for whom time must be left."""
    queue = EdfQueue()
    for i in range(20 * together):
        at_us = 1e6 - 4_000.0 * (20 - i // together)
        queue.push(Query(str(i), at_us, at_us + 2_100.0))
    while queue:
        queue.pop()
    queue.push(Query("last", 1e6, 1e6 + 2_100.0))
    decision = make(three_versions(), 2_100.0).decide(1e6, queue)
    assert isinstance(decision, Decision)
    assert (decision.point == LARGE) == (expected == LARGE)


@pytest.mark.parametrize("make", [ValueIteration, Hindsight])
def test_the_most_urgent_is_given_up_where_somebody_is_lost_in_any_case(make: type[ValueIteration | Hindsight]) -> None:
    """Sixty in 3 ms where 8 take 450 µs: the head, with time for itself alone, would leave small batches to all."""
    policy = make(three_versions(), 3_000.0)
    slacks = [150.0, *np.linspace(2_000.0, 3_000.0, 59)]
    queue = queue_of(*(Query(str(i), NOW_US - 5.0, NOW_US + slack) for i, slack in enumerate(slacks)))
    rejected = policy.decide(NOW_US, queue)
    assert rejected == CannotMeet("not all 60 waiting queries can be in time, and this one has the least slack")
    few = queue_of(*(Query(str(i), NOW_US - 5.0, NOW_US + slack) for i, slack in enumerate(slacks[:20])))
    assert isinstance(policy.decide(NOW_US, few), Decision)


@pytest.mark.parametrize("deadline_us", [1_500.0, 40_000.0])
def test_the_average_falls_as_the_load_grows_and_is_that_of_the_best_point_when_idle(deadline_us: float) -> None:
    grid = ControlGrid(three_versions())
    tables = value_tables(grid, deadline_us, 1.0)
    assert np.isfinite(tables.after).all()
    assert np.isfinite(tables.before).all()
    assert ((tables.gain >= 0) & (tables.gain <= grid.accuracy[-1] + 1e-9)).all()
    assert (np.diff(tables.gain, axis=-1) <= 5e-3).all()
    # 1.5 ms are too short for the best point, 40 ms are plenty for it.
    assert tables.gain[0, 0, 0] == pytest.approx(grid.accuracy[1 if deadline_us < 2_000 else 2], abs=2e-3)
    assert (np.diff(tables.rows, axis=0) >= 0).all()


def test_values_of_hindsight_fall_with_time_and_age_and_rise_with_what_waits() -> None:
    grid = ControlGrid(three_versions())
    values = hindsight_values(grid, 4_000.0, 1.0)
    assert np.isfinite(values).all()
    # Of the instant until which the worker is busy, and of how long the queue has waited.
    assert (np.diff(values, axis=-1) <= 1e-9).all()
    assert values[..., 0, 0, 0] == pytest.approx(0.0, abs=1e-9)
    # One that waits and has just come, where hardly any come: it has the best point, and is not lost.
    assert values[0, 0, 1, 0, 0] == pytest.approx(grid.accuracy[-1] + 1.0, abs=0.02)
    # Nobody waits: at low load a worker that is busy for a deadline misses little of what comes.
    assert values[0, 0, 0, 0, -1] > -0.1 > values[0, -1, 0, 0, -1]


def test_hindsight_brings_no_less_than_value_iteration_where_a_deadline_is_hundreds_of_calls_long() -> None:
    """Its tables cannot tell calls of microseconds apart: a long queue stayed long, with calls of four queries."""
    versions = [OperatingPoint.of(version=name) for name in ("small", "medium", "large")]
    times_us = [(4.7, 4.9, 5.3, 6.9), (7.6, 11.2, 17.0, 48.7), (42.3, 125.3, 191.5, 568.3)]
    grid = ControlGrid(
        ControlSpace(
            versions,
            {
                (v, n): us
                for v, row in zip(versions, times_us, strict=True)
                for n, us in zip((1, 4, 16, 64), row, strict=True)
            },
            dict(zip(versions, (0.878, 0.975, 0.981), strict=True)),
        )
    )
    for rate_per_us in (0.117, 0.147, 0.29, 1.5):
        arrival_us = np.cumsum(np.random.default_rng(5).exponential(1.0 / rate_per_us, 40_000))
        scenario = Scenario.of(arrival_us / 1e6, 0.01)
        hindsight, by_value = (
            simulate(make_policy(name, grid, 10_000.0), scenario).summary()["effective_accuracy"]
            for name in ("hindsight", "value-iteration")
        )
        assert hindsight >= by_value - 0.005


@pytest.mark.parametrize("size", [8, pytest.param(16, marks=pytest.mark.long)])
def test_hindsight_brings_no_less_than_value_iteration_where_queries_come_together(size: int) -> None:
    """Its tables are of queries that come one by one: clumps cost it up to 2 % of the best possible."""
    points = [OperatingPoint.of(depth=depth) for depth in range(12)]
    times_us = np.geomspace(1_600.0, 8_000.0, len(points))
    latency_us = {(p, n): us * (n + 2) / 3 for p, us in zip(points, times_us, strict=True) for n in (1, 2, 4, 8, 16)}
    accuracy = dict(zip(points, np.linspace(0.740, 0.802, len(points)).tolist(), strict=True))
    grid = ControlGrid(ControlSpace(points, latency_us, accuracy))
    gaps_s = np.random.default_rng(1).exponential(size / (0.1 * grid.best_rate_per_s.max()), 2_400 // size)
    scenario = Scenario.of(np.repeat(np.cumsum(gaps_s), size), 0.036)
    hindsight, by_value = (
        simulate(make_policy(name, grid, 36_000.0), scenario).summary()["effective_accuracy"]
        for name in ("hindsight", "value-iteration")
    )
    assert hindsight >= by_value - 7e-4


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (9, 10))])
def test_hindsight_brings_no_less_than_slackfit_where_points_lie_far_apart(seed: int) -> None:
    """Tables too coarse for a profile lost to SlackFit there; a rehearsal says which of the two is to decide."""
    random = np.random.default_rng(seed)
    points, times_us = (SMALL, LARGE), (1e3, 1e3 * random.uniform(10.0, 100.0))
    accuracy = dict(zip(points, (random.uniform(0.1, 0.6), random.uniform(0.7, 0.99)), strict=True))
    shared = random.uniform(0.0, 0.8)
    latency_us = {
        (p, n): time_us * (shared + (1.0 - shared) * n) for p, time_us in zip(points, times_us, strict=True)
        for n in (1, 4)
    }  # fmt: skip
    grid = ControlGrid(ControlSpace(points, latency_us, accuracy))
    deadline_us = grid.latency_us.max() * random.uniform(1.2, 9.0)
    rate_per_s = random.uniform(0.02, 0.9) * grid.best_rate_per_s[0]
    scenario = Scenario.of(np.cumsum(random.gamma(0.25, 4.0, 2_000)) / rate_per_s, deadline_us / 1e6)
    hindsight, slackfit = (
        simulate(make_policy(name, grid, deadline_us), scenario).summary() for name in ("hindsight", "slackfit")
    )
    assert hindsight["attainment"] >= slackfit["attainment"]
    assert hindsight["effective_accuracy"] >= slackfit["effective_accuracy"] - 2e-4


def test_value_iteration_leaves_a_rest_at_moderate_load_only() -> None:
    times_us = np.geomspace(1_600.0, 8_000.0, 12)
    points = [OperatingPoint.of(depth=i) for i in range(12)]
    latency_us = {(p, n): times_us[i] * (n + 2) / 3 for i, p in enumerate(points) for n in (1, 2, 4, 8, 16)}
    accuracy = dict(zip(points, np.linspace(0.74, 0.8, 12).tolist(), strict=True))
    deadline_us = 36e3
    policy = ValueIteration(ControlGrid(ControlSpace(points, latency_us, accuracy)), deadline_us)

    def taken(before: int, waiting: int) -> int:
        """Of ``waiting`` that have just come, behind as many arrivals over the last eight deadlines."""
        queue = EdfQueue()
        for at in range(before):
            gone = Query(f"gone {at}", 8 * deadline_us * (at / before - 1), 1e9)
            queue.push(gone)
            queue.remove(gone)
        for at in range(waiting):
            queue.push(Query(str(at), 0.0, deadline_us))
        decision = policy.decide(0.0, queue)
        assert isinstance(decision, Decision)
        return decision.batch_size

    assert taken(before=8, waiting=3) < 3
    assert taken(before=400, waiting=3) >= 3
    assert taken(before=8, waiting=20) == 16
