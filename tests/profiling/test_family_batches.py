"""Latencies by batch size: calls of a row are spread over the whole measurement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slotool.profiling import family_batches
from slotool.tables import OperatingPoint
from slotool.timing.timer import Measurement, StoppingRule

SIZES = (1, 2, 4)


@pytest.mark.parametrize("begins_at", [0, 4, 9, 20])
def test_a_machine_that_is_busy_for_a_while_changes_no_median(begins_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [OperatingPoint.of(version=name) for name in ("small", "large")]
    family: Any = SimpleNamespace(name="mine", points=points, respond=lambda batch, point: None)
    calls = iter(range(1_000))

    def fake(call: Any, rule: StoppingRule, *_: Any) -> Measurement:
        # Two rounds of five: longer than it takes to measure any row by itself.
        busy = begins_at <= next(calls) < begins_at + 2 * len(SIZES) * len(points)
        return Measurement(1.0, np.full(rule.runs, 4.0 if busy else 1.0), 1)

    monkeypatch.setattr(family_batches, "measure", fake)
    table = family_batches.measure_batches(family, np.zeros((3, 2)), SIZES, 1, provenance={})
    found = table.statistics()
    assert sorted(zip(found["point"], found["batch_size"], strict=True)) == sorted(
        (point.key, size) for point in points for size in SIZES
    )
    assert (found["median_s"] == 1.0).all()
