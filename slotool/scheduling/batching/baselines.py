"""Baselines of the papers: SlackFit, MaxAcc, MaxBatch, one fixed point, the cheapest point, and Model-Switching."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from slotool.compilation import count_until
from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, ROUNDING_US, chooser, fits, widest, working
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

BUCKETS = 20


@chooser
def choose_first_fit(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    """Return the first cell of ``plan`` that fits: pairs of a cell and the slack from which it may be chosen."""
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    slack_us = deadlines_us[0] - now_us + ROUNDING_US
    for at in range(0, len(plan) - 1, 2):
        if plan[at + 1] > slack_us or not 0 <= plan[at] < latency_us.size:
            continue
        cell = int(plan[at])
        row, column = cell // len(sizes), cell % len(sizes)
        if row >= lowest and column >= narrowest and latency_us[row, column] <= slack_us:
            return cell
    return REJECT


class FirstFit(BatchingPolicy):
    """Base of policies that prefer cells of the grid in a fixed order: chosen is the first that fits."""

    choose = choose_first_fit

    def prepare(self) -> np.ndarray:
        """Return the cells in order of preference, each with its least slack: float64 [2 · cells]."""
        rows, columns = np.indices(self.grid.latency_us.shape).reshape(2, -1)
        order = self.order(rows, columns)
        return np.stack([order, self.least_slack_us()[order]], axis=1).ravel()

    @abstractmethod
    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the cells, numbers int64, in order of preference. ``rows``, ``columns``: int64 [cells]."""

    def least_slack_us(self) -> np.ndarray:
        """Return float64 [cells]: slack from which each may be chosen, besides the time that it takes."""
        return np.full(self.grid.latency_us.size, -np.inf)


class SlackFit(FirstFit):
    """SlackFit: the largest batch in the latency bucket closest below the most urgent query's slack.

    Buckets have equal width: (largest - smallest latency) / ``buckets``. Of equal batches the most accurate is taken.
    An empty bucket is replaced by the next lower one. A slack that ends in the first bucket takes what fits of it.
    Source: superserve, §4.2 and A.5. Raises ``InputError`` when ``buckets`` is less than 1.
    """

    name: ClassVar[str] = "slackfit"

    def __init__(self, space: ControlSpace | ControlGrid, buckets: int = BUCKETS):
        if buckets < 1:
            raise InputError(f"SlackFit needs at least one latency bucket, not {buckets}")
        self._buckets = buckets
        super().__init__(space)

    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.lexsort((-rows, -columns, -self._bucket_of()))

    def least_slack_us(self) -> np.ndarray:
        """Return the upper edge of a cell's bucket; of the first none."""
        latency_us, bucket = self.grid.latency_us, self._bucket_of()
        edges_us = latency_us.min() + (bucket + 1) * (np.ptp(latency_us) / self._buckets)
        return np.where(bucket > 0, edges_us, -np.inf)

    def _bucket_of(self) -> np.ndarray:
        latency_us = self.grid.latency_us.ravel()
        width_us = np.ptp(latency_us) / self._buckets
        ranks = np.ceil((latency_us - latency_us.min()) / width_us) - 1 if width_us > 0 else np.zeros(latency_us.size)
        return np.clip(ranks, 0, self._buckets - 1).astype(np.int64)


class MaxAccuracy(FirstFit):
    """The most accurate point that meets the most urgent deadline at all, then its largest batch that does.

    Source: superserve, A.5.
    """

    name: ClassVar[str] = "maxacc"

    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.lexsort((-columns, -rows))


class MaxBatch(FirstFit):
    """The largest batch that any point can do within the slack, then the most accurate point for it.

    Source: superserve, A.5.
    """

    name: ClassVar[str] = "maxbatch"

    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.lexsort((-rows, -columns))


class FixedBatching(FirstFit):
    """Always ``point`` (default: the most accurate), the largest batch that meets the most urgent deadline.

    Source: the Clipper baseline of superserve, §6.1. Raises ``InputError`` when the grid has no such point.
    """

    name: ClassVar[str] = "fixed"

    def __init__(self, space: ControlSpace | ControlGrid, point: OperatingPoint | None = None):
        self._fixed = point
        grid = space if isinstance(space, ControlGrid) else ControlGrid(space)
        super().__init__(grid if point in (None, *grid.points) else grid.whole)
        self.points = (self.points[self._row],)

    @property
    def _row(self) -> int:
        return len(self.grid.points) - 1 if self._fixed is None else self.grid.index(self._fixed)

    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.flatnonzero(rows == self._row)[::-1]


class MinCost(FirstFit):
    """The cheapest point that is accurate enough, for queries without a minimum the cheapest of all; largest batch.

    Source: the INFaaS baseline of superserve, §6.1.
    """

    name: ClassVar[str] = "mincost"

    def order(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.lexsort((-columns, rows))


# Of the deadline: over less a rate is noise, over more it is that of a load which is gone. In simulations of three
# points, 12 pairs of latencies and deadline, and swinging loads of three durations, windows of 1 to 16 deadlines and of
# 1 s were tried. With 2 switching never lost to the best single point; with 1 s in 15 of 36, by up to 0.11 of effective
# accuracy.
WINDOW_DEADLINES = 2.0
# Default without a known deadline.
WINDOW_US = 1e6
# Share of a point's best rate that it serves in time at random arrivals.
USABLE_SHARE = 0.8


@chooser
def choose_by_rate(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    if len(plan) <= len(accuracy):
        return REJECT
    if not plan[0] > 0:
        return REJECT
    recent = len(arrived_us) - count_until(arrived_us, now_us - plan[0])
    span_us = plan[0]
    if recent == len(arrived_us) and recent > 1:
        recent, span_us = recent - 1, max(now_us - arrived_us[0], 1.0)
    rate_per_s = 1e6 * recent / span_us / working(free_us)
    # Rates a point is good for, in plan[1:], mostly fall as accuracy rises. Beyond all of them the point with the
    # greatest serves.
    row, greatest = latency_us.shape[0] - 1, 0
    while row >= 0 and plan[1 + row] < rate_per_s:
        row -= 1
    if row < 0:
        for other in range(1, latency_us.shape[0]):
            if plan[1 + other] > plan[1 + greatest]:
                greatest = other
        row = greatest
    column = widest(latency_us, max(row, lowest), narrowest, deadlines_us[0] - now_us)
    return max(row, lowest) * len(sizes) + column if column >= 0 else REJECT


class ModelSwitching(BatchingPolicy):
    """The most accurate point that is good for the arrival rate of the last window; its largest batch that fits.

    ``rates_per_s``: per point, up to which rate per worker its P99 stays within the deadline, as found by load tests
    beforehand. Where left out, ``USABLE_SHARE`` of its throughput at the best batch that takes at most half the
    deadline, ``deadline_us`` (any batch when that is left out too). When no point is good for the rate the one that is
    good for the greatest serves; the listing in the paper would return the last model it looked at, which is the
    slowest. The window is ``WINDOW_DEADLINES`` long.
    Source: model-switching, §3 and Algorithm 1. Raises ``InputError`` for a point without a rate.
    """

    name: ClassVar[str] = "switching"
    choose = choose_by_rate
    switches: ClassVar[bool] = True

    def __init__(
        self,
        space: ControlSpace | ControlGrid,
        rates_per_s: Mapping[OperatingPoint, float] | None = None,
        *,
        deadline_us: float = math.inf,
    ):
        self._rates, self._deadline_us = rates_per_s, deadline_us
        super().__init__(space)

    def prepare(self) -> np.ndarray:
        window_us = WINDOW_DEADLINES * self._deadline_us if self._deadline_us < math.inf else WINDOW_US
        if self._rates is not None:
            missing = [point for point in self.grid.points if point not in self._rates]
            if missing:
                raise InputError(f"no sustainable rate is given for {missing[0]}")
            return np.array([window_us, *(self._rates[point] for point in self.grid.points)])
        in_half = self.grid.latency_us <= self._deadline_us / 2
        throughput = np.where(in_half, 1e6 * self.grid.sizes / self.grid.latency_us, 0.0).max(axis=1)
        return np.concatenate([[window_us], USABLE_SHARE * throughput])
