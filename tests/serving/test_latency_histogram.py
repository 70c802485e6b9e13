"""The latency histogram: fine enough, wide enough, and with bounds where deadlines are."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.serving.monitoring.metrics import BUCKETS_S


def test_steps_are_fine_from_microseconds_to_more_than_a_minute() -> None:
    assert (np.diff(np.log(BUCKETS_S)) <= np.log(1.3)).all()
    assert BUCKETS_S[0] <= 3e-5
    assert BUCKETS_S[-1] >= 60


@pytest.mark.parametrize("deadline_ms", [1, 5, 10, 15, 20, 25, 30, 50, 100, 200, 250, 300, 500, 1_000, 10_000])
def test_usual_deadlines_are_bounds(deadline_ms: float) -> None:
    assert deadline_ms / 1e3 in BUCKETS_S
