"""One point for all queries, with adaptive batches: Clipper-like services, and INFaaS without accuracy thresholds."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint


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
