"""Deadlines are brought forward by what answers have lately needed beyond their plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.serving.headroom import EVERY, FORGOTTEN_US, MAX_SHARE, QUANTILE, REMEMBERED, LatencyHeadroom


def test_nothing_seen_is_no_margin_and_what_is_old_is_forgotten() -> None:
    headroom = LatencyHeadroom()
    assert headroom.of(10_000.0, 0.0) == 0.0
    for at in range(EVERY):
        headroom.observe(700.0, float(at))
    assert headroom.of(10_000.0, EVERY) == pytest.approx(700.0)
    assert headroom.of(1_000.0, EVERY) == MAX_SHARE * 1_000.0, "a short deadline is not eaten up"
    assert headroom.of(10_000.0, EVERY + FORGOTTEN_US + 1) == 0.0


@given(st.lists(st.floats(-1e5, 1e5), min_size=EVERY, max_size=2 * REMEMBERED))
def test_most_of_the_recent_answers_would_have_been_in_time(excesses: list[float]) -> None:
    headroom = LatencyHeadroom()
    for at, excess_us in enumerate(excesses):
        headroom.observe(excess_us, float(at))
    told = headroom.of(1e12, float(len(excesses)))
    counted = excesses[-REMEMBERED:]
    assert told >= 0.0
    assert np.mean(np.array(counted) <= told + 1e-6) >= 0.95, "of 25 all but one"


@given(st.lists(st.floats(0.0, 1e5), min_size=EVERY, max_size=EVERY))
def test_it_is_the_quantile_of_numpy(excesses: list[float]) -> None:
    headroom = LatencyHeadroom()
    for at, excess_us in enumerate(excesses):
        headroom.observe(excess_us, float(at))
    assert headroom.of(1e12, EVERY) == pytest.approx(np.quantile(excesses, QUANTILE))
