"""Latencies T(k, β) of one model, solo and beside busy copies of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.tables import LatencyTable, OperatingPoint
from slotool.tables.latency import copies_in


@dataclass(frozen=True)
class LatencyProfile:
    """T(k, β) of one model in µs (slo-aware-neural-networks, §3.2), with β busy co-located copies.

    ``points``: cheapest first. ``planned_us``: by β and point, a quantile of single answers; ``mean_us`` their mean,
    slow ones included. A point that was not profiled is absent. Raises ``InputError`` for an empty profile, or a point
    that is none of ``points``.
    """

    points: tuple[OperatingPoint, ...]
    planned_us: Mapping[int, Mapping[OperatingPoint, float]]
    mean_us: Mapping[int, Mapping[OperatingPoint, float]]

    def __post_init__(self) -> None:
        if not any(self.planned_us.values()):
            raise InputError("a latency profile without a single latency promises nothing")
        for figures in (self.planned_us, self.mean_us):
            strangers = {point for of in figures.values() for point in of} - set(self.points)
            if strangers:
                raise InputError(f"figures for {', '.join(sorted(map(str, strangers)))}, which is not among the points")

    @classmethod
    def of_table(
        cls,
        subject: str,
        points: Sequence[OperatingPoint],
        table: LatencyTable,
        *,
        quantile: float = PLANNING_QUANTILE,
        devices: Sequence[str] = (),
        **conditions: Any,
    ) -> LatencyProfile:
        """Return the rows of ``slotool profile points``, or of a predictor, for ``subject`` at batch size 1.

        Rows with other co-runners than copies of the subject are ignored. ``conditions`` narrow the rows, e.g.
        ``threads=1``, and ``devices`` as in ``LatencyTable.of_devices``. Raises ``InputError`` if no row is left, or
        for an invalid ``quantile``, and as ``of_devices``.
        """
        if not 0.0 < quantile < 1.0:
            raise InputError(f"latencies are planned with a quantile between 0 and 1, not {quantile:g}")
        selected = table.where(subject=subject, status="ok", batch_size=1, **conditions).of_devices(devices).rows
        selected = selected[selected["point"].isin([point.key for point in points])]
        counts = {text: copies_in(subject, text) for text in selected["co_runners"].unique()}
        copies = {text: count for text, count in counts.items() if count is not None}
        rows = selected[selected["co_runners"].isin(list(copies))]
        if rows.empty:
            raise InputError(f"the latency table has no row of {subject}, solo or co-located with copies of itself")
        planned: dict[int, Mapping[OperatingPoint, float]] = {}
        mean: dict[int, Mapping[OperatingPoint, float]] = {}
        for text, co_runners in sorted(copies.items(), key=lambda item: item[1]):
            rows_there = LatencyTable(rows[rows["co_runners"] == text])
            space = ControlSpace.of_tables(subject, points, rows_there, quantile=quantile, devices=devices)
            times = {point: space.latency_us(point) for point in points}
            planned[co_runners] = {point: time for point, time in times.items() if time is not None}
            mean[co_runners] = _means_us(points, rows_there)
        return cls(tuple(points), planned, mean)


def _means_us(points: Sequence[OperatingPoint], table: LatencyTable) -> dict[OperatingPoint, float]:
    """Return mean µs by point; of several rows the slowest counts, as in the space."""
    means: dict[OperatingPoint, float] = {}
    for point in points:
        per_row = [1e6 * float(np.mean(samples)) for samples in table.where(point=point.key).rows["samples_s"]]
        if per_row and math.isfinite(max(per_row)):
            means[point] = max(per_row)
    return means
