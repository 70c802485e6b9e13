"""Model-Switching: the point for the recent arrival rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

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
    recent = len(arrived_us) - np.searchsorted(arrived_us, now_us - plan[0], side="right")
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
