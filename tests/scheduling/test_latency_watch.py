"""Latencies corrected online: a slower machine is noticed within seconds, and attainment recovers; virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np
import pytest

from slotool.scheduling import ControlSpace, Dispatcher, Query
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.scheduling.latency_watch import LatencyWatch
from slotool.tables import OperatingPoint

POINTS = tuple(OperatingPoint.of(version=name) for name in ("small", "medium", "large"))
LATENCY_US = {(point, n): us * (0.6 + 0.4 * n) for point, us in zip(POINTS, (2e3, 5e3, 9e3), strict=True)
              for n in (1, 2, 4, 8)}  # fmt: skip
SPACE = ControlSpace(POINTS, LATENCY_US, dict(zip(POINTS, (0.8, 0.9, 0.95), strict=True)))
DEADLINE_US = 20e3


def fed(factor: Callable[[float], float], seconds: float, *, per_s: int = 100, noise: float = 0.0) -> list[float]:
    """The instants (s) at which a watch of such calls changes its factors."""
    watch, random = LatencyWatch(SPACE), np.random.default_rng(0)
    changed = []
    for call in range(int(seconds * per_s)):
        now_s = call / per_s
        took_us = 9e3 * factor(now_s) * math.exp(noise * random.normal())
        watch.observe(POINTS[2], 1, took_us, now_s * 1e6)
        if call % per_s == per_s - 1 and watch.look(now_s * 1e6):
            changed.append(now_s)
    return changed


def test_a_machine_that_is_as_the_table_says_is_left_alone() -> None:
    assert fed(lambda s: 0.93, 60, noise=0.04) == []


def test_slower_calls_are_noticed_within_ten_seconds_and_faster_ones_later() -> None:
    slower, faster = fed(lambda s: 1.3 if 20 <= s < 40 else 1.0, 70)
    assert 20 < slower <= 30
    assert 40 < faster <= 60


def test_slow_calls_of_a_moment_change_nothing() -> None:
    assert fed(lambda s: 5.0 if 20 <= s < 20.04 else 1.0, 40, per_s=200) == []


def test_factors_are_of_each_point_and_of_all_where_a_point_was_not_called() -> None:
    watch = LatencyWatch(SPACE)
    for call in range(100):
        watch.observe(POINTS[0], 1, 2e3 * 2.0, call * 1e4)
        watch.observe(POINTS[2], 3, 9e3 * (0.6 + 0.4 * 3) * 1.3, call * 1e4)
    assert [watch.look(1e6) for _ in range(3)] == [False, False, True]
    assert watch.factors[POINTS[0]] == pytest.approx(2.0)
    assert watch.factors[POINTS[2]] == pytest.approx(1.3)
    assert 1.3 <= watch.factors[POINTS[1]] <= 2.0
    assert SPACE.corrected(watch.factors).latency_us(POINTS[2], 4) == pytest.approx(1.3 * 9e3 * 2.2)


def test_too_few_calls_and_points_without_latencies_say_nothing() -> None:
    watch = LatencyWatch(SPACE)
    for call in range(15):
        watch.observe(POINTS[0], 1, 1e5, call)
    watch.observe(OperatingPoint.of(policy="conc", first="small", second="large", threshold=0.5), 1, 1e9, 0.0)
    assert not any(watch.look(1e3) for _ in range(10))


def attainment(policy: str, *, corrects: bool) -> tuple[float, float, float]:
    """Share in time before, in the first ten seconds of, and after ten seconds of calls that take 1.3 times as long."""
    random, watch = np.random.default_rng(1), LatencyWatch(SPACE)
    arrivals_us = np.cumsum(random.exponential(1e6 / 240, 240 * 36))
    make = lambda space: make_policy(policy, ControlGrid(space), DEADLINE_US)  # noqa: E731
    dispatcher, good = Dispatcher(make(SPACE)), np.zeros(3)
    part = lambda us: 0 if us < 10e6 else 1 if us < 20e6 else 2  # noqa: E731
    events: list[tuple[float, int, str]] = [(us, i, "arrive") for i, us in enumerate(arrivals_us.tolist())]
    events += [(1e6 * second, -1, "look") for second in range(1, 36)]
    heapq.heapify(events)
    while events:
        now_us, number, what = heapq.heappop(events)
        if what == "arrive":
            dispatcher.arrive(Query(str(number), now_us, now_us + DEADLINE_US))
        elif what == "end":
            batch = dispatcher.finished(0, now_us)
            watch.observe(batch.decision.point, batch.examples, now_us - batch.begun_us, now_us)
            for query in batch.queries:
                good[part(query.arrival_us)] += now_us <= query.deadline_us
        elif corrects and watch.look(now_us):
            dispatcher.policy = make(SPACE.corrected(watch.factors))
        begun, _ = dispatcher.next_batch(now_us)
        if begun is not None:
            took_us = SPACE.latency_us(begun.decision.point, begun.examples) or 0.0
            took_us *= random.uniform(0.9, 1.0) * (1.3 if now_us >= 10e6 else 1.0)
            heapq.heappush(events, (now_us + took_us, 0, "end"))
    sent = np.histogram(arrivals_us, [0, 10e6, 20e6, np.inf])[0]
    return tuple((good / sent).tolist())


@pytest.mark.parametrize("policy", ["slackfit", "value-iteration"])
def test_attainment_recovers_after_a_machine_became_slower(policy: str) -> None:
    before, _, without = attainment(policy, corrects=False)
    corrected_before, _, corrected = attainment(policy, corrects=True)
    assert corrected_before == pytest.approx(before, abs=0.005)
    assert corrected > without + 0.02
    assert corrected > before - 0.02
