"""The control space without holes: every operating point at every batch size, as the arrays that policies search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from slotool.errors import InputError
from slotool.printable import name_list
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# A larger batch that seems to take this much less than a smaller one, also by its median, is no noise.
MAX_REPAIRED = 0.5
# Limit of examples in a batch, and of points: compiled code counts in 16 bits.
MAX_BATCH_SIZE = MAX_POINTS = 2**15 - 1
# Beyond a year in µs differences of instants are no longer exact.
MAX_LATENCY_US = 3.2e13


class ControlGrid:
    """Pareto points by ascending accuracy × batch sizes, with latency in µs (superserve, §4.2 and A.4).

    ``points``: P of them. ``sizes``: int64 [B], ascending, beginning with 1 where that was profiled. ``accuracy``:
    float64 [P], ascending. ``latency_us``: float64 [P, B], never falling along B. ``remarks``: sentences on what was
    repaired, all of it on the safe side: a size not profiled counts as the next larger one that was; a latency below
    that of a smaller batch is raised to it; a point that another one beats in accuracy and in every latency is left
    out, as no policy should choose it, unless ``all_points`` are wanted. ``unknown_accuracy``: the sentence
    for a single point without accuracy, which matters only where accuracies are shown or promised.

    Raises ``InputError`` for what cannot be repaired safely: no latency at all or none at the largest size, a latency
    not positive or beyond a year, one that falls by more than half while the batch grows and whose median (where
    known) does too, an accuracy missing or not in [0, 1].
    """

    def __init__(self, space: ControlSpace, *, all_points: bool = False):
        self.space = space
        self.remarks: list[str] = []
        self.unknown_accuracy: list[str] = []
        self.sizes = np.array(sorted({b for point in space.points for b in space.batch_sizes(point)}), dtype=np.int64)
        if not len(self.sizes):
            raise InputError("no latency of any operating point is known; profile the points first")
        if not 1 <= self.sizes[0] <= self.sizes[-1] <= MAX_BATCH_SIZE:
            raise InputError(
                f"batch sizes {self.sizes[0]} to {self.sizes[-1]}; a batch has 1 to {MAX_BATCH_SIZE:,} examples"
            )
        if len(space.points) > MAX_POINTS:
            raise InputError(f"{len(space.points):,} operating points; policies choose among {MAX_POINTS:,} at most")
        latency_us = self._risen(self._filled())
        accuracy = self._accuracies()
        by_accuracy = np.lexsort((-latency_us.sum(axis=1), accuracy)).tolist()
        selected, better = (by_accuracy, {}) if all_points else _pareto(latency_us, accuracy)
        if better:
            pairs = (
                f"{space.points[i]} is neither more accurate nor faster than {space.points[better[i]]}" for i in better
            )
            whose = f"policies but fixed@POINT choose among {len(selected)} of {len(accuracy)} points"
            self.remarks.append(f"{whose}: {name_list(pairs, 8)}")
        self.points: tuple[OperatingPoint, ...] = tuple(space.points[i] for i in selected)
        self.accuracy = np.ascontiguousarray(accuracy[selected])
        self.latency_us = np.ascontiguousarray(latency_us[selected])

    @cached_property
    def whole(self) -> ControlGrid:
        """Grid of all points, those too that policies do not choose."""
        return ControlGrid(self.space, all_points=True)

    @cached_property
    def fastest_us(self) -> float:
        """µs of the fastest call there is."""
        return float(self.latency_us.min())

    @cached_property
    def quickest_us(self) -> np.ndarray:
        """Fastest call of each size, µs, float64 [B]."""
        return np.ascontiguousarray(self.latency_us.min(axis=0))

    @cached_property
    def best_rate_per_s(self) -> np.ndarray:
        """Throughput of one worker at each point's best batch size, examples/s, float64 [P]."""
        return (1e6 * self.sizes / self.latency_us).max(axis=1)

    def require_deadline(self, deadline_us: float) -> None:
        """Raise ``InputError`` when not even the fastest call fits into ``deadline_us``."""
        if not deadline_us >= self.fastest_us:
            raise InputError(
                f"a deadline of {deadline_us / 1e3:.4g} ms is shorter than the fastest point takes for one query, "
                f"{self.fastest_us / 1e3:.4g} ms: nothing could ever be answered in time"
            )

    def index(self, point: OperatingPoint) -> int:
        """Return the row of ``point``. Raises ``InputError`` when the grid does not hold it."""
        if point not in self.points:
            raise InputError(f"no operating point {point} in the grid; there are {', '.join(map(str, self.points))}")
        return self.points.index(point)

    def columns_for(self, examples: int) -> int:
        """Column of the smallest size that holds ``examples``, ``len(sizes)`` when none does."""
        return int(np.searchsorted(self.sizes, examples))

    def _filled(self) -> np.ndarray:
        rows, holes = [], 0
        for point in self.space.points:
            profiled = self.space.batch_sizes(point)
            if not profiled or profiled[-1] < self.sizes[-1]:
                reach = f"known up to batch size {profiled[-1]} only" if profiled else "not known at all"
                raise InputError(
                    f"the latency of {point} is {reach}, while others reach {self.sizes[-1]}: a hole that cannot be "
                    "filled safely; profile it there, or leave the point or the size out"
                )
            holes += len(self.sizes) - len(profiled)
            rows.append([self.space.latency_us(point, int(size)) for size in self.sizes])
        if holes:
            self.remarks.append(f"{holes} latencies not profiled: each counts as that of the next larger batch")
        latency_us = np.array(rows, dtype=np.float64)
        wrong = np.argwhere(~((latency_us > 0) & (latency_us <= MAX_LATENCY_US)))
        if len(wrong):
            p, b = wrong[0]
            raise InputError(
                f"the latency of {self.space.points[p]} at batch size {self.sizes[b]} is {latency_us[p, b]:g} µs, "
                "not a positive, finite time of at most a year"
            )
        return latency_us

    def _risen(self, latency_us: np.ndarray) -> np.ndarray:
        risen, fallen = _raised(latency_us)
        # A few disturbed samples move a high quantile as far as they like, and leave the median where it is.
        beyond_noise = np.minimum(fallen, _raised(self._medians(latency_us))[1])
        p, b = divmod(int(beyond_noise.argmax()), len(self.sizes))
        if beyond_noise[p, b] > MAX_REPAIRED:
            raise InputError(
                f"{self.space.points[p]} takes {latency_us[p, b] / 1e3:.4g} ms at batch size {self.sizes[b]}, but "
                f"{risen[p, b] / 1e3:.4g} ms at a smaller one: no noise explains that; measure it again"
            )
        p, b = divmod(int(fallen.argmax()), len(self.sizes))
        if fallen[p, b] > 0:
            self.remarks.append(
                f"latencies that fall while the batch grows are raised to that of the smaller batch: "
                f"{int((fallen > 0).sum())} of {fallen.size}, by {fallen[p, b]:.1%} at most"
            )
        if fallen[p, b] > MAX_REPAIRED:
            self.remarks.append(
                f"{self.space.points[p]} is counted as {risen[p, b]:.4g} µs at batch size {self.sizes[b]}, whose own "
                f"calls took {latency_us[p, b]:.4g} µs: some of a smaller batch took longer, though their median is "
                "as it should be; measure it again to serve more"
            )
        return risen

    def _medians(self, latency_us: np.ndarray) -> np.ndarray:
        """Return ``latency_us`` with medians where they are known."""
        rows = [[self.space.median_us(point, int(size)) for size in self.sizes] for point in self.space.points]
        medians = np.array(rows, dtype=np.float64)
        return np.where(np.isnan(medians), latency_us, medians)

    def _accuracies(self) -> np.ndarray:
        accuracies = [self.space.accuracy(point) for point in self.space.points]
        if accuracies == [None]:  # nothing is chosen by it
            self.unknown_accuracy.append(f"the accuracy of {self.space.points[0]} is not known: it counts as 0")
            accuracies = [0.0]
        for point, value in zip(self.space.points, accuracies, strict=True):
            if value is None:
                raise InputError(
                    f"the accuracy of {point} is not known: give an outcome table of every point, or the latencies a "
                    "column accuracy"
                )
            if math.isnan(value) or not 0.0 <= value <= 1.0:
                raise InputError(f"the accuracy of {point} is {value:g}, which is not within 0 and 1")
        return np.array(accuracies, dtype=np.float64)


def _raised(latency_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [points, sizes], each raised to that of the smaller batch, and by what share of that it was lower."""
    raised = np.maximum.accumulate(latency_us, axis=1)
    return raised, 1.0 - latency_us / raised


def _pareto(latency_us: np.ndarray, accuracy: np.ndarray) -> tuple[list[int], dict[int, int]]:
    """Return the rows that no other row beats, by ascending accuracy, and by each other row one that beats it."""
    selected, better = list[int](), dict[int, int]()
    for i in np.lexsort((latency_us.sum(axis=1), -accuracy)).tolist():
        is_faster = (latency_us[selected] <= latency_us[i]).all(axis=1)
        if is_faster.any():
            better[i] = selected[int(is_faster.argmax())]
        else:
            selected.append(i)
    return selected[::-1], better


Tables = TypeVar("Tables")
_REMEMBERED = 32


@dataclass(frozen=True)
class _Content:
    """A grid that is equal to another of the same arrays."""

    arrays: tuple[tuple[bytes, str, tuple[int, ...]], ...]
    grid: ControlGrid = field(compare=False)


def remembered(compute: Callable[..., Tables]) -> Callable[..., Tables]:
    """Return ``compute(grid, *parameters)`` with a cache by latencies, accuracies, sizes and parameters.

    The cached result is shared and must not change.
    """

    @lru_cache(maxsize=_REMEMBERED)
    def once(content: _Content, *parameters: Any) -> Tables:
        return compute(content.grid, *parameters)

    @wraps(compute)
    def of(grid: ControlGrid, *parameters: Any) -> Tables:
        arrays: tuple[np.ndarray, ...] = grid.latency_us, grid.accuracy, grid.sizes
        return once(_Content(tuple((each.tobytes(), each.dtype.str, each.shape) for each in arrays), grid), *parameters)

    return of
