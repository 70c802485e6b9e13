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
    # Rates a point is good for, in plan[1:], fall as accuracy rises. The least accurate serves what none is good for.
    row = latency_us.shape[0] - 1
    while row > 0 and plan[1 + row] < rate_per_s:
        row -= 1
    column = widest(latency_us, max(row, lowest), narrowest, deadlines_us[0] - now_us)
    return max(row, lowest) * len(sizes) + column if column >= 0 else REJECT


class ModelSwitching(BatchingPolicy):
    """The most accurate point that is good for the arrival rate of the last window; its largest batch that fits.

    ``rates_per_s``: per point, up to which rate per worker its P99 stays within the deadline, as found by load tests
    beforehand. Where left out, ``USABLE_SHARE`` of its throughput at the best batch that takes at most half the
    deadline, ``deadline_us`` (any batch when that is left out too). When no point is good for the rate the fastest
    serves; the listing in the paper would return the last model it looked at, which is the slowest.
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
        if self._rates is not None:
            missing = [point for point in self.grid.points if point not in self._rates]
            if missing:
                raise InputError(f"no sustainable rate is given for {missing[0]}")
            return np.array([WINDOW_US, *(self._rates[point] for point in self.grid.points)])
        in_half = self.grid.latency_us <= self._deadline_us / 2
        throughput = np.where(in_half, 1e6 * self.grid.sizes / self.grid.latency_us, 0.0).max(axis=1)
        return np.concatenate([[WINDOW_US], USABLE_SHARE * throughput])
