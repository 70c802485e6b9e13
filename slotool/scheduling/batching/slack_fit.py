"""SlackFit: as much latency as the most urgent query has slack, spent on the largest batch."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, ROUNDING_US, chooser, fits
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace

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
