"""Calls that take longer than planned: a policy leaves room in proportion, as long as that lasts."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.scheduling import ControlSpace, Decision, Dispatcher, EdfQueue, Query
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.scheduling.batching.policy import EVERY, EVERY_US, LONG_US, MAX_FACTOR, SPAN_US, Slowness
from slotool.tables import OperatingPoint

POINTS = {name: OperatingPoint.of(version=name) for name in ("small", "large")}
TIMES_US = {"small": 1e3, "large": 20e3}
DEADLINE_US = 25e3


def policy_of(name: str) -> object:
    times = {(point, size): TIMES_US[n] * (1 + size) / 2 for n, point in POINTS.items() for size in (1, 2, 4)}
    accuracy = dict(zip(POINTS.values(), (0.8, 0.9), strict=True))
    return make_policy(name, ControlGrid(ControlSpace(list(POINTS.values()), times, accuracy)), DEADLINE_US)


def seen(slowness: Slowness, factors: list[float], planned_us: float = 50e3, from_us: float = 0.0) -> float:
    """Calls of these factors, one after the other; the instant behind them."""
    now_us = from_us
    for factor in factors:
        slowness.observe(planned_us, factor * planned_us, now_us)
        now_us += factor * planned_us
    return now_us


def test_it_is_what_nearly_all_of_the_time_took() -> None:
    slowness = Slowness()
    assert slowness.of(0.0) == 1.0
    now_us = seen(slowness, [1.2] * 10)
    assert slowness.of(now_us) == pytest.approx(1.2)
    now_us = seen(slowness, [0.7] * 200, from_us=now_us + 2 * SPAN_US)
    assert slowness.of(now_us) == 1.0, "calls that are faster than planned leave no room to take"
    factors = np.random.default_rng(1).uniform(1.0, 1.5, 90)
    now_us = seen(slowness, list(factors), from_us=now_us + 2 * SPAN_US)
    assert 1.4 < slowness.of(now_us) <= 1.5


def test_it_is_bounded_and_forgotten() -> None:
    slowness = Slowness()
    now_us = seen(slowness, [40.0, 40.0])
    assert slowness.of(now_us) == MAX_FACTOR
    assert slowness.of(now_us + 2 * SPAN_US) == 1.0
    now_us = seen(slowness, [1.1] * 4, from_us=now_us + 2 * SPAN_US)
    assert slowness.of(now_us) == pytest.approx(1.1)


def test_short_calls_say_nothing_and_few_calls_wait() -> None:
    slowness = Slowness()
    assert slowness.of(seen(slowness, [3.0] * 100, planned_us=0.5 * LONG_US)) == 1.0
    planned_us = 1.01 * LONG_US
    few = min(EVERY, int(EVERY_US / planned_us))
    now_us = seen(slowness, [1.5] * (few - 1), planned_us)
    assert slowness.of(now_us) == 1.0
    assert slowness.of(seen(slowness, [1.5] * 2, planned_us, now_us)) == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["value-iteration", "slackfit", "maxacc"])
def test_a_policy_leaves_room_for_slow_calls_and_rejects_nobody_for_it(name: str) -> None:
    policy = policy_of(name)

    def chosen(slack_us: float) -> str:
        queue = EdfQueue()
        queue.push(Query("1", 0.0, slack_us))
        decision = policy.decide(0.0, queue)  # type: ignore[attr-defined]
        assert isinstance(decision, Decision)
        return str(decision.point.get("version"))

    assert chosen(21e3) == "large"
    for _ in range(5):
        policy.observe(POINTS["large"], 1, 1.5 * TIMES_US["large"])  # type: ignore[attr-defined]
    assert policy.planned_us(POINTS["large"], 1) == pytest.approx(1.5 * TIMES_US["large"])  # type: ignore[attr-defined]
    assert chosen(21e3) == "small"
    assert chosen(31e3) == "large"
    assert chosen(1.1e3) == "small", "it is in time only if it is no slower than planned, and is tried"


def test_more_answers_are_in_time_on_a_machine_that_is_slow_by_turns() -> None:
    """Calls take 1.3 to 1.7 times as long for most of the time; the same policy that learns nothing is the baseline."""
    arrivals_us = np.cumsum(np.random.default_rng(3).exponential(12e3, 400))
    factors = np.random.default_rng(4).uniform(1.3, 1.7, 4_000)

    def in_time(learns: bool) -> int:
        policy = policy_of("value-iteration")
        dispatcher, now_us, due, number = Dispatcher(policy, 1), 0.0, 0, 0
        met = 0
        while due < len(arrivals_us) or dispatcher.queue:
            while due < len(arrivals_us) and arrivals_us[due] <= now_us:
                dispatcher.arrive(Query(str(due), arrivals_us[due], arrivals_us[due] + 2 * DEADLINE_US))
                due += 1
            batch, _ = dispatcher.next_batch(now_us)
            if batch is None:
                now_us = max(now_us, arrivals_us[due]) if due < len(arrivals_us) else now_us + 1e3
                continue
            planned_us = policy.grid.space.latency_us(batch.decision.point, len(batch.queries))  # type: ignore[attr-defined]
            now_us += planned_us * factors[number]
            number += 1
            dispatcher.finished(batch.worker, now_us)
            if learns:
                policy.observe(batch.decision.point, len(batch.queries), now_us - batch.begun_us)  # type: ignore[attr-defined]
            met += sum(now_us <= query.deadline_us for query in batch.queries)
        return met

    without, with_it = in_time(False), in_time(True)
    assert without < 0.97 * len(arrivals_us) <= with_it
