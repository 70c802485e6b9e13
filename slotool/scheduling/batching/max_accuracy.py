"""MaxAcc: accuracy first."""

from __future__ import annotations

from typing import Any, ClassVar

from slotool.scheduling.batching.kernel import REJECT, chooser, fits, widest
from slotool.scheduling.batching.policy import BatchingPolicy


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
