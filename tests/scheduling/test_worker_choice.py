"""Replicas × threads by the load: a load that grows is followed at once, one that swings is not followed back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.rules.switching import EFFECTIVE_ACCURACY, ConfigurationRates, LoadTest, SwitchingPlan
from slotool.scheduling.worker_counts import CALM_GAIN, CALM_S, CALM_SHARE, WorkerChoice

ACCURACY = {"small": 0.8, "large": 0.95}
# One worker of two threads answers with the large point up to 100 requests/s; two workers of one thread never do.
PLAN = SwitchingPlan(
    "family", 0.02, 1, 2, {"small": 300.0, "large": 100.0}, ACCURACY, (), "here",
    others=(ConfigurationRates(2, 1, {"small": 900.0, "large": 0.0}, ()),),
)  # fmt: skip
SECONDS = 3 * int(CALM_S)


def followed(
    rates_per_s: list[float], plan: SwitchingPlan = PLAN, begins: tuple[int, int] | None = None
) -> tuple[list[tuple[int, int]], list[str]]:
    """⟨R, T⟩ in force in each second of a load of these rates, and why it changed."""
    choice, in_use, seen, reasons, arrived = WorkerChoice(plan), begins or plan.configuration, [], [], 0.0
    for second, rate_per_s in enumerate(rates_per_s):
        change = choice.look(float(second), round(arrived), in_use)
        if change is not None:
            in_use = change.replicas, change.threads
            reasons.append(change.reason)
        seen.append(in_use)
        arrived += rate_per_s
    return seen, reasons


def changes(seen: list[tuple[int, int]]) -> int:
    return sum(before != after for before, after in pairwise(seen))


def test_a_load_that_is_too_much_is_followed_at_once() -> None:
    seen, reasons = followed([80.0] * 5 + [600.0] * 20)
    assert seen[:6] == [(1, 2)] * 6
    assert seen[8:] == [(2, 1)] * len(seen[8:])
    assert len(reasons) == 1
    assert "requests/s over 2 s, at which the plan expects" in reasons[0]


def test_a_load_that_calms_down_is_followed_when_it_has_stayed_calm() -> None:
    seen, reasons = followed([600.0] * 10 + [50.0] * SECONDS)
    back = next(second for second in range(11, len(seen)) if seen[second] == (1, 2))
    assert back >= 10 + CALM_S
    assert seen[back:] == [(1, 2)] * len(seen[back:])
    assert "at most 50 requests/s in 30 s" in reasons[-1]


def test_a_load_that_swings_does_not_change_workers_by_turns() -> None:
    swing = ([600.0] * 8 + [50.0] * 12) * 20
    assert changes(followed(swing)[0]) == 1


def test_a_load_at_the_limit_does_not_change_workers_by_turns() -> None:
    """Within a fifth below what one worker of two threads serves, the next request more would bring the others back."""
    near = [100.0 * (CALM_SHARE + 0.05)] * SECONDS
    assert changes(followed([400.0] * 5 + near)[0]) == 1
    assert followed(near)[1] == []
    assert followed([50.0] * 5 + [303.0] * (int(CALM_S) - 6))[1] == [], "it is not worth new processes, for a while"
    assert followed([290.0] * SECONDS)[1] == [], "both serve it"


@given(st.lists(st.sampled_from([0.0, 20.0, 90.0, 200.0, 290.0, 310.0, 500.0, 1_000.0]), max_size=200))
def test_no_more_than_one_change_back_per_time_of_calm(rates_per_s: list[float]) -> None:
    seen, _ = followed(rates_per_s)
    assert changes(seen) <= 1 + 2 * len(seen) / CALM_S


def test_an_idle_service_has_the_workers_that_answer_best() -> None:
    seen, _ = followed([0.0] * SECONDS, begins=(2, 1))
    assert seen[-1] == (1, 2)
    assert changes(seen) == 1


def test_workers_that_the_plan_does_not_know_stay() -> None:
    assert followed([5_000.0] * SECONDS, begins=(4, 4))[1] == []


def test_a_change_that_failed_is_tried_again_later() -> None:
    """Under overload at once; else when as much time has passed as before."""
    choice = WorkerChoice(PLAN)
    asked = [second for second in range(SECONDS) if second > 0 and _failing(choice, second)]
    assert asked[0] >= CALM_S
    assert np.diff(asked).min() >= CALM_S


def _failing(choice: WorkerChoice, second: int) -> bool:
    change = choice.look(float(second), 50 * second, (2, 1))
    if change is not None:
        choice.wait(float(second))
    return change is not None


def test_by_effective_accuracy_the_load_tests_say_what_is_gained() -> None:
    def loads(replicas: int, threads: int, attained: dict[str, float]) -> tuple[LoadTest, ...]:
        return tuple(LoadTest(p, replicas, threads, 400.0, None, share) for p, share in attained.items())

    rates = {"small": 400.0, "large": 100.0}
    one = loads(1, 2, {"small": 0.7, "large": 0.2})
    two = ConfigurationRates(2, 1, {"small": 401.0, "large": 100.0}, loads(2, 1, {"small": 0.9, "large": 0.2}))
    plan = SwitchingPlan("family", 0.02, 1, 2, rates, ACCURACY, one, "here", EFFECTIVE_ACCURACY, (two,))
    gained = plan.by_configuration[2, 1].expected_accuracy(np.array([400.0])) - plan.expected_accuracy(
        np.array([400.0])
    )
    assert gained == pytest.approx(0.8 * 0.2)
    assert changes(followed([390.0] * 10, plan)[0]) == 1
    alike = ConfigurationRates(2, 1, {"small": 401.0, "large": 100.0}, loads(2, 1, {"small": 0.7, "large": 0.2}))
    same = SwitchingPlan("family", 0.02, 1, 2, rates, ACCURACY, one, "here", EFFECTIVE_ACCURACY, (alike,))
    assert changes(followed([390.0] * SECONDS, same)[0]) == 0
    assert CALM_GAIN > 0
