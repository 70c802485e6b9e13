"""Switching plans: the search finds the greatest rate; Algorithm 1 takes the most accurate point good for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.rules.switching import (
    MAX_GROWTH,
    RESOLUTION,
    LoadTest,
    SwitchingPlan,
    best_configuration,
    greatest_rate,
)

DEADLINE_S = 0.02
PLAN = SwitchingPlan(
    "family",
    DEADLINE_S,
    1,
    1,
    {"version=small": 900.0, "version=medium": 400.0, "version=large": 100.0, "version=odd": 90.0},
    {"version=small": 0.8, "version=medium": 0.9, "version=large": 0.95, "version=odd": 0.85},
    (LoadTest("version=small", 1, 1, 900.0, 0.019, 0.995), LoadTest("version=small", 1, 1, 1800.0, None, 0.4)),
    "here",
)


@given(st.floats(1.0, 1e5), st.floats(1 / MAX_GROWTH, MAX_GROWTH))
def test_the_greatest_rate_is_found_to_within_the_resolution(capacity: float, guess: float) -> None:
    """A server whose P99 grows without bound as the rate nears its capacity."""

    def measure(rate: float) -> LoadTest:
        p99_s = 0.5 * DEADLINE_S / (1 - rate / capacity) if rate < 0.999 * capacity else None
        return LoadTest("full", 1, 1, rate, p99_s, 1.0)

    found, loads = greatest_rate(measure, guess * capacity / 2, DEADLINE_S)
    sustainable = capacity / 2
    assert found <= sustainable
    assert (
        found * RESOLUTION >= sustainable * 0.999
        or not any((load.p99_s or 1.0) > DEADLINE_S for load in loads)
        or found == 0
    )
    assert len(loads) <= 12


def test_the_most_accurate_point_that_is_good_for_the_rate() -> None:
    assert PLAN.breakpoints == [(100.0, "version=large"), (400.0, "version=medium"), (900.0, "version=small")]


def test_the_configuration_that_is_more_accurate_over_all_rates_is_taken() -> None:
    quicker = replace(PLAN, replicas=2, rates_per_s={point: 1.5 * r for point, r in PLAN.rates_per_s.items()})
    assert best_configuration([PLAN, quicker]) is quicker
    hopeless = replace(PLAN, rates_per_s=dict.fromkeys(PLAN.rates_per_s, 0.0))
    with pytest.raises(InputError, match="no point keeps the deadline"):
        best_configuration([hopeless])


def test_a_plan_comes_back_from_its_file_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert SwitchingPlan.load(path) == PLAN
    good = json.loads(path.read_text())
    for broken, said in (
        (good | {"schema": "slotool/rules"}, "not a switching plan"),
        (good | {"schema_version": 9}, "schema version 9"),
        (good | {"deadline_s": 0}, "impossible"),
        (good | {"rates_per_s": {"full": 1.0}}, "impossible"),
        ({k: v for k, v in good.items() if k != "loads"}, "missing"),
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(InputError, match=said):
            SwitchingPlan.load(path)
