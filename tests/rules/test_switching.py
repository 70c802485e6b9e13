"""Switching plans: the search finds the greatest rate; Algorithm 1 takes the most accurate point good for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.rules.switching import (
    EFFECTIVE_ACCURACY,
    MAX_GROWTH,
    RESOLUTION,
    LoadTest,
    SwitchingPlan,
    attainment,
    best_configuration,
    greatest_rate,
    is_most_effective,
    keeps_deadline,
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

    found, loads = greatest_rate(measure, guess * capacity / 2, keeps_deadline(DEADLINE_S))
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


def served(point: str, capacity: float, rate: float) -> LoadTest:
    """Of a server that answers ``capacity`` requests a second in time, however many come."""
    share = min(1.0, capacity / rate)
    return LoadTest(point, 1, 1, rate, 0.001 if share == 1 else None, share)


def test_by_effective_accuracy_a_point_serves_until_a_faster_one_is_right_more_often() -> None:
    """Medium answers 100/s in time with accuracy 0.9, small 300/s with 0.75: they are equal at 120/s."""
    accuracy = {"small": 0.75, "medium": 0.9}
    small = [served("small", 300.0, rate) for rate in (75.0, 150.0, 300.0, 600.0)]
    is_good = is_most_effective(accuracy, {"small": small})
    found, loads = greatest_rate(lambda rate: served("medium", 100.0, rate), 50.0, is_good)
    assert 120 / RESOLUTION <= found <= 120
    rates = {"small": 300.0, "medium": found}
    plan = replace(PLAN, rates_per_s=rates, accuracy=accuracy, loads=(*small, *loads), by=EFFECTIVE_ACCURACY)
    at = np.array([50.0, 250.0, 600.0, 1200.0])
    # Beyond the most that was tried as many are in time as there.
    np.testing.assert_allclose(plan.effective_accuracy(at), [0.9, 0.75, 0.375, 0.1875])
    half = replace(plan, replicas=2, loads=tuple(replace(load, replicas=2, attainment=0.1) for load in plan.loads))
    assert best_configuration([half, plan]) is plan


def test_attainment_between_load_tests() -> None:
    loads = [LoadTest("p", 1, 1, 200.0, None, 0.5), LoadTest("p", 1, 1, 100.0, 0.01, 0.98)]
    noisy = [*loads, LoadTest("p", 1, 1, 150.0, 0.01, 0.99)]
    np.testing.assert_allclose(attainment(loads, np.array([0.0, 50.0, 150.0, 400.0])), [1.0, 0.99, 0.74, 0.25])
    np.testing.assert_allclose(attainment(noisy, np.array([100.0, 150.0])), [0.99, 0.99])


def test_a_plan_comes_back_from_its_file_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert SwitchingPlan.load(path) == PLAN
    good = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in good.items() if key != "by"}))  # as earlier versions did
    assert SwitchingPlan.load(path) == PLAN
    for broken, said in (
        (good | {"schema": "slotool/rules"}, "not a switching plan"),
        (good | {"schema_version": 9}, "schema version 9"),
        (good | {"deadline_s": 0}, "impossible"),
        (good | {"rates_per_s": {"full": 1.0}}, "impossible"),
        (good | {"by": "mean"}, "impossible"),
        ({k: v for k, v in good.items() if k != "loads"}, "missing"),
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(InputError, match=said):
            SwitchingPlan.load(path)


def test_a_rival_is_loaded_with_as_much_where_that_decides() -> None:
    """Small was tried at 20/s alone, on a disturbed machine; extrapolated it would answer no request at 200/s."""
    accuracy, tried = {"small": 0.75, "medium": 0.9}, {"small": [LoadTest("small", 1, 1, 20.0, None, 0.1)]}
    measured: list[tuple[str, float]] = []

    def measure(point: str, rate: float) -> LoadTest:
        measured.append((point, rate))
        return served(point, 300.0, rate)

    is_good = is_most_effective(accuracy, tried, measure)
    assert is_good(served("medium", 180.0, 200.0))  # 0.9 of 0.9: no accuracy of 0.75 reaches that
    assert measured == []
    assert not is_good(served("medium", 150.0, 200.0))
    assert measured == [("small", 200.0)]
    assert not is_most_effective(accuracy, {"small": []})(served("medium", 90.0, 200.0))  # misses more than half


def test_a_plan_keeps_what_was_found_on_other_workers(tmp_path: Path) -> None:
    wide = replace(PLAN, replicas=2, rates_per_s={**PLAN.rates_per_s, "version=small": 1_700.0}, loads=())
    plan = PLAN.beside([PLAN, wide])
    plan.save(tmp_path / "plan.json")
    loaded = SwitchingPlan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert list(loaded.by_configuration) == [(1, 1), (2, 1)]
    assert loaded.by_configuration[2, 1] == wide
    assert loaded.by_configuration[1, 1] == PLAN
    document = json.loads((tmp_path / "plan.json").read_text())
    document["others"][0]["rates_per_s"].pop("version=odd")
    (tmp_path / "less.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="impossible figures"):
        SwitchingPlan.load(tmp_path / "less.json")
