"""Baselines of the papers: SlackFit, MaxAcc, MaxBatch, one fixed point, the cheapest point, and Model-Switching."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from slotool.compilation import count_until
from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, ROUNDING_US, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

BUCKETS = 20
_LEAST, _WIDTH, _COUNT, _STARTS = 0, 1, 2, 3


@chooser
def choose_slack_fit(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    if len(plan) <= _STARTS:
        return REJECT
    slack_us = deadlines_us[0] - now_us + ROUNDING_US
    count = int(plan[_COUNT])
    if not 0 < count < len(plan) - _STARTS:
        return REJECT
    # The bucket whose upper edge is the last within the slack; none but the first may hold what does not fit.
    bucket = count - 1
    if plan[_WIDTH] > 0:
        bucket = int(max(0.0, min(count - 1.0, np.floor((slack_us - plan[_LEAST]) / plan[_WIDTH]) - 1.0)))
    cells = _STARTS + count + 1
    while bucket >= 0:
        first, last = int(plan[_STARTS + bucket]), int(plan[_STARTS + bucket + 1])
        for at in range(max(first, 0), min(last, len(plan) - cells)):
            cell = int(plan[cells + at])
            if not 0 <= cell < latency_us.size:
                return REJECT
            row, column = cell // len(sizes), cell % len(sizes)
            if row >= lowest and column >= narrowest and latency_us[row, column] <= slack_us:
                return cell
        bucket -= 1
    return REJECT


class SlackFit(BatchingPolicy):
    """Evenly sized latency buckets; of the one closest below the most urgent query's slack the largest batch.

    A bucket spans (greatest - least latency) / ``buckets``. Of equal batches in it the most accurate is taken; an
    empty bucket is replaced by the next lower; a slack that ends within the first bucket takes what fits of it.
    Source: superserve, §4.2 and A.5. Raises ``InputError`` when ``buckets`` is less than 1.
    """

    name: ClassVar[str] = "slackfit"
    choose = choose_slack_fit

    def __init__(self, space: ControlSpace | ControlGrid, buckets: int = BUCKETS):
        if buckets < 1:
            raise InputError(f"SlackFit needs at least one latency bucket, not {buckets}")
        self._buckets = buckets
        super().__init__(space)

    def prepare(self) -> np.ndarray:
        latency_us, sizes = self.grid.latency_us, self.grid.sizes
        least, count = latency_us.min(), self._buckets
        width = (latency_us.max() - least) / count
        ranks = np.zeros(latency_us.size) if width == 0 else np.ceil((latency_us.ravel() - least) / width) - 1
        of = np.clip(ranks, 0, count - 1).astype(np.int64)
        rows, columns = np.divmod(np.arange(latency_us.size), len(sizes))
        order = np.lexsort((-rows, -columns, of))
        starts = np.searchsorted(of[order], np.arange(count + 1))
        return np.concatenate([[least, width, count], starts, order])


@chooser
def choose_max_accuracy(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    for row in range(latency_us.shape[0] - 1, lowest - 1, -1):
        column = widest(latency_us, row, narrowest, deadlines_us[0] - now_us)
        if column >= 0:
            return row * len(sizes) + column
    return REJECT


class MaxAccuracy(BatchingPolicy):
    """The most accurate point that meets the most urgent deadline at all, then its largest batch that does.

    Source: superserve, A.5.
    """

    name: ClassVar[str] = "maxacc"
    choose = choose_max_accuracy


@chooser
def choose_max_batch(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    slack_us = deadlines_us[0] - now_us
    column = widest(latency_us, lowest, narrowest, slack_us)
    if column < 0:
        return REJECT
    for row in range(latency_us.shape[0] - 1, lowest, -1):
        if latency_us[row, column] <= slack_us + ROUNDING_US:
            return row * len(sizes) + column
    return lowest * len(sizes) + column


class MaxBatch(BatchingPolicy):
    """The largest batch the least accurate point can do within the slack, then the most accurate point for it.

    Source: superserve, A.5.
    """

    name: ClassVar[str] = "maxbatch"
    choose = choose_max_batch


@chooser
def choose_fixed(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    if len(plan) < 1:
        return REJECT
    row = int(plan[0])
    if not lowest <= row < len(accuracy):
        return REJECT
    column = widest(latency_us, row, narrowest, deadlines_us[0] - now_us)
    return row * len(sizes) + column if column >= 0 else REJECT


@chooser
def choose_cheapest(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    if not fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest):
        return REJECT
    column = widest(latency_us, lowest, narrowest, deadlines_us[0] - now_us)
    return lowest * len(sizes) + column if column >= 0 else REJECT


class FixedBatching(BatchingPolicy):
    """Always ``point`` (default: the most accurate), the largest batch that meets the most urgent deadline.

    Source: the Clipper baseline of superserve, §6.1. Raises ``InputError`` when the grid does not hold the point.
    """

    name: ClassVar[str] = "fixed"
    choose = choose_fixed

    def __init__(self, space: ControlSpace | ControlGrid, point: OperatingPoint | None = None):
        self._fixed = point
        super().__init__(space)
        self.points = (self.points[int(self.plan[0])],)

    def prepare(self) -> np.ndarray:
        return np.array([len(self.grid.points) - 1 if self._fixed is None else self.grid.index(self._fixed)])


class MinCost(BatchingPolicy):
    """The cheapest point that is accurate enough, for queries without a minimum the cheapest of all; largest batch.

    Source: the INFaaS baseline of superserve, §6.1.
    """

    name: ClassVar[str] = "mincost"
    choose = choose_cheapest


# Of the deadline: over less a rate is noise, over more it is that of a load which is gone. In simulations of three
# points, 12 pairs of latencies and deadline, and swinging loads of three durations, windows of 1 to 16 deadlines and of
# 1 s were tried. With 2 switching never lost to the best single point; with 1 s in 15 of 36, by up to 0.11 of effective
# accuracy.
WINDOW_DEADLINES = 2.0
# Where no deadline is known.
WINDOW_US = 1e6
# Of what a point could serve at its best, at random arrivals and still in time.
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
    workers = 0
    for at_us in free_us:
        workers += at_us < np.inf
    rate_per_s = 1e6 * recent / span_us / max(workers, 1)
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
