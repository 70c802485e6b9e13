"""The control grid: what it repairs and says, and what it rejects."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.scheduling import ControlSpace
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.tables import OperatingPoint
from slotool.testing.policies import three_versions

A, B = OperatingPoint.of(k=0.5), OperatingPoint.of(k=1.0)
LATENCIES = {(A, 1): 10.0, (A, 2): 15.0, (A, 4): 20.0, (B, 1): 40.0, (B, 2): 60.0, (B, 4): 100.0}
ACCURACIES = {A: 0.8, B: 0.9}


def grid(changes: dict[tuple[OperatingPoint, int], float | None], accuracy: dict[OperatingPoint, float]) -> ControlGrid:
    known = {cell: time for cell, time in (LATENCIES | changes).items() if time is not None}
    return ControlGrid(ControlSpace([A, B], known, accuracy))


def test_a_whole_profile_is_taken_as_it_is() -> None:
    whole = ControlGrid(three_versions())
    assert whole.remarks == []
    assert whole.sizes.tolist() == [1, 2, 4, 8]
    assert whole.accuracy.tolist() == [0.90, 0.95, 0.98]
    assert whole.latency_us[1].tolist() == [400.0, 600.0, 1_000.0, 1_800.0]
    assert whole.best_rate_per_s[1] == pytest.approx(8e6 / 1_800.0)


def test_repairs_are_on_the_safe_side_and_said() -> None:
    holed = grid({(A, 2): None}, ACCURACIES)
    assert holed.latency_us[0].tolist() == [10.0, 20.0, 20.0]
    assert holed.remarks == ["1 latencies not profiled: each counts as that of the next larger batch"]
    falling = grid({(B, 4): 54.0}, ACCURACIES)
    assert falling.latency_us[1].tolist() == [40.0, 60.0, 60.0]
    assert "by 10.0% at most" in falling.remarks[0]


def test_a_point_that_another_beats_is_left_out() -> None:
    slow_and_bad = grid({(A, n): 1_000.0 * n for n in (1, 2, 4)}, ACCURACIES)
    assert slow_and_bad.points == (B,)
    assert "1 of 2 points: k=0.5 is neither more accurate nor faster than k=1" in slow_and_bad.remarks[0]
    assert make_policy("fixed@k=0.5", slow_and_bad, 1e4).points == (A,)
    alike = grid({(B, n): LATENCIES[A, n] for n in (1, 2, 4)}, {A: 0.8, B: 0.8})
    assert len(alike.points) == 1


@pytest.mark.parametrize(
    ("changes", "accuracy", "sentence"),
    [
        ({(B, 4): None}, ACCURACIES, "k=1 is known up to batch size 2 only, while others reach 4"),
        (dict.fromkeys(((B, 1), (B, 2), (B, 4))), ACCURACIES, "k=1 is not known at all"),
        (dict.fromkeys(LATENCIES), ACCURACIES, "profile the points first"),
        ({(A, 2): -1.0}, ACCURACIES, "at batch size 2 is -1 µs, not a positive"),
        ({(A, 2): math.nan}, ACCURACIES, "is nan µs, not a positive"),
        ({(B, 4): 29.0}, ACCURACIES, "no noise explains that; measure it again"),
        ({}, {A: 0.8}, "the accuracy of k=1 is not known"),
        ({}, {A: 0.8, B: 1.2}, "is 1.2, which is not within 0 and 1"),
    ],
)
def test_what_cannot_be_repaired_safely_is_rejected(
    changes: dict[tuple[OperatingPoint, int], float | None], accuracy: dict[OperatingPoint, float], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        grid(changes, accuracy)


def test_a_deadline_that_nothing_meets_is_rejected() -> None:
    ControlGrid(three_versions()).require_deadline(100.0)
    for impossible in (99.0, 0.0, -5.0, math.nan):
        with pytest.raises(InputError, match="shorter than the fastest point takes"):
            ControlGrid(three_versions()).require_deadline(impossible)


def test_points_and_sizes_are_found_by_name() -> None:
    whole = ControlGrid(three_versions())
    assert whole.index(whole.points[2]) == 2
    assert np.array_equal([whole.columns_for(n) for n in (1, 2, 3, 8, 9)], [0, 1, 2, 3, 4])
    with pytest.raises(InputError, match=r"no operating point k=0\.5"):
        whole.index(A)
