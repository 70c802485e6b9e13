"""Limits of what a plan depends on: found by few trials, whatever says where to try first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slotool.planning.sensitivity import TRIALS, Limit, lowest_without_misses


class _Missed:
    """Misses the attainment below a value, and counts how often it is asked."""

    def __init__(self, below: float):
        self._below, self.asked = below, 0

    def __call__(self, value: float) -> tuple[str, ...]:
        self.asked += 1
        return ("attainment",) if value < self._below else ()


@pytest.mark.parametrize("below", [0.05, 0.125, 0.3, 0.97, 1.0, 1.01])
@pytest.mark.parametrize("guessed", [0.01, 0.126, 0.29, 0.31, 0.9, 1.0, 5.0])
def test_a_stand_in_says_where_to_try_and_not_what_holds(below: float, guessed: float) -> None:
    steps: list[int] = []
    found = lowest_without_misses(0.125, 1.0, _Missed(below), steps.append, _Missed(guessed))
    assert found == lowest_without_misses(0.125, 1.0, _Missed(below), lambda _: None)
    assert sum(steps) == TRIALS


def test_a_limit_is_found_to_two_percent() -> None:
    found = lowest_without_misses(0.125, 1.0, _Missed(0.3), lambda _: None)
    assert found.value is not None
    assert 0.3 <= found.value < 0.3 * 1.02
    assert found.breaks == ("attainment",)
    assert lowest_without_misses(0.125, 1.0, _Missed(2.0), lambda _: None) == Limit(None, ("attainment",))
    assert lowest_without_misses(0.125, 1.0, _Missed(0.1), lambda _: None) == Limit(0.125, ())


def test_the_better_a_stand_in_the_fewer_trials() -> None:
    asked = []
    for guessed in (0.3, 0.28, 0.2):
        missed = _Missed(0.3)
        lowest_without_misses(0.125, 1.0, missed, lambda _: None, _Missed(guessed))
        asked.append(missed.asked)
    assert asked[0] == 2
    assert all(fewer < more for fewer, more in pairwise(asked))
