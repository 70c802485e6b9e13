"""T(k, β): how long a model's points take alone and beside busy copies of itself, as a latency table has it."""

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
    """T(k, β) of one model in µs (slo-aware-neural-networks, §3.2), β being the number of busy copies beside it.

    ``points``: cheapest first. ``planned_us``: by β and point, the ``quantile`` of single answers; ``mean_us`` their
    mean, slow ones included. A point that was not profiled is absent. ``predicted``: some of it nobody measured.
    ``blocks``: some samples are means over several calls, so that a quantile of them says too little of single ones.
    Raises ``InputError`` when it holds nothing, or a point that is none of ``points``.
    """

    points: tuple[OperatingPoint, ...]
    planned_us: Mapping[int, Mapping[OperatingPoint, float]]
    mean_us: Mapping[int, Mapping[OperatingPoint, float]]
    quantile: float = PLANNING_QUANTILE
    predicted: bool = False
    blocks: bool = False

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
        **conditions: Any,
    ) -> LatencyProfile:
        """What ``slotool profile points`` measured of ``subject``, or a predictor filled in, at batch size 1.

        Rows beside other models than copies of it are passed over. ``conditions`` narrow the rows, e.g. ``threads=1``.
        Raises ``InputError`` when no row is left, or ``quantile`` is none.
        """
        if not 0.0 < quantile < 1.0:
            raise InputError(f"latencies are planned with a quantile between 0 and 1, not {quantile:g}")
        own = table.where(subject=subject, status="ok", batch_size=1, **conditions).rows
        own = own[own["point"].isin([point.key for point in points])]
        company = {text: copies_in(subject, text) for text in own["co_runners"].unique()}
        known = {text: beside for text, beside in company.items() if beside is not None}
        rows = own[own["co_runners"].isin(list(known))]
        if rows.empty:
            raise InputError(f"the latency table has no row of {subject} alone or beside copies of itself")
        planned: dict[int, Mapping[OperatingPoint, float]] = {}
        mean: dict[int, Mapping[OperatingPoint, float]] = {}
        for text, beside in sorted(known.items(), key=lambda item: item[1]):
            there = LatencyTable(rows[rows["co_runners"] == text])
            space = ControlSpace.of_tables(subject, points, there, quantile=quantile)
            times = {point: space.latency_us(point) for point in points}
            planned[beside] = {point: time for point, time in times.items() if time is not None}
            mean[beside] = _means_us(points, there)
        blocks = "calls_per_sample" in rows and bool((rows["calls_per_sample"] > 1).any())
        return cls(tuple(points), planned, mean, quantile, bool(rows["predicted"].any()), blocks)

    def beside(self, copies: int) -> Mapping[OperatingPoint, float]:
        """T by point beside so many copies. Raises ``InputError`` when that was not profiled."""
        if copies not in self.planned_us:
            there_are = ", ".join(map(str, sorted(self.planned_us)))
            raise InputError(f"latencies are known beside {there_are} copies, not beside {copies}")
        return self.planned_us[copies]


def _means_us(points: Sequence[OperatingPoint], table: LatencyTable) -> dict[OperatingPoint, float]:
    """Of several rows of a point the slowest counts, as in the space."""
    means: dict[OperatingPoint, float] = {}
    for point in points:
        found = [1e6 * float(np.mean(samples)) for samples in table.where(point=point.key).rows["samples_s"]]
        if found and math.isfinite(max(found)):
            means[point] = max(found)
    return means
