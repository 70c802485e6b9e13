"""Deadlines are brought forward by what answers have lately needed beyond their plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.serving.routing.model_queue import (
    CAREFUL_SHARE,
    EVERY,
    FEW,
    FORGOTTEN_US,
    MAX_SHARE,
    QUANTILE,
    REMEMBERED,
    LatencyHeadroom,
)


def test_it_is_careful_while_few_answers_are_known_and_forgets_what_is_old() -> None:
    headroom = LatencyHeadroom()
    assert headroom.of(10_000.0, 0.0) == CAREFUL_SHARE * 10_000.0
    assert headroom.of(float("inf"), 0.0) == 0.0
    for at in range(EVERY):
        headroom.observe(700.0, float(at))
    assert headroom.of(10_000.0, EVERY) == pytest.approx(700.0)
    assert headroom.of(100_000.0, EVERY) == CAREFUL_SHARE * 100_000.0, "few answers may not tell"
    assert headroom.of(1_000.0, EVERY) == MAX_SHARE * 1_000.0, "a short deadline is not eaten up"
    assert headroom.of(1_000.0, EVERY, 600.0) == MAX_SHARE * 400.0, "a call and the headroom leave time"
    assert headroom.of(1_000.0, EVERY, 2_000.0) == 0.0
    for at in range(FEW):
        headroom.observe(700.0, float(EVERY + at))
    assert headroom.of(100_000.0, EVERY + FEW) == pytest.approx(700.0)
    assert headroom.of(10_000.0, EVERY + FEW + FORGOTTEN_US + 1) == CAREFUL_SHARE * 10_000.0


@given(st.lists(st.floats(-1e5, 1e5), min_size=EVERY, max_size=2 * REMEMBERED))
def test_most_of_the_recent_answers_would_have_been_in_time(excesses: list[float]) -> None:
    headroom = LatencyHeadroom()
    for at, excess_us in enumerate(excesses):
        headroom.observe(excess_us, float(at))
    told = headroom.of(1e6, float(len(excesses)))
    counted = excesses[-REMEMBERED:]
    assert told >= 0.0
    assert np.mean(np.array(counted) <= told + 1e-6) >= 0.95, "of 50 all but two"


@given(st.lists(st.floats(0.0, 2e5), min_size=EVERY, max_size=EVERY))
def test_it_is_the_quantile_of_numpy(excesses: list[float]) -> None:
    headroom = LatencyHeadroom()
    for at, excess_us in enumerate(excesses):
        headroom.observe(excess_us, float(at))
    known = max(np.quantile(excesses, QUANTILE), CAREFUL_SHARE * 1e6)
    assert headroom.of(1e6, EVERY) == pytest.approx(known)
