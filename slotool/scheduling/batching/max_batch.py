"""MaxBatch: throughput first."""

from __future__ import annotations

from typing import Any, ClassVar

from slotool.scheduling.batching.kernel import REJECT, ROUNDING_US, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy


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
