"""WholeQueue: the pace that everybody who waits, and those who are about to come, can afford."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numba import njit

from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REFUSE, ROUNDING_US, chooser, widest
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace

WINDOW_US = 100_000.0
HEADROOM = 0.9
SHARE = 0.5
# Beyond the first few, deadlines are looked at in runs of 1/32 of their rank: 3 % of pace, and never the unsafe way.
_RUNS = 32
_WINDOW, _HEADROOM, _SHARE, _COLUMN, _TABLE = 0, 1, 2, 3, 4


@njit(cache=True)
def _pace_us(now_us: float, deadlines_us: Any, arrived_us: Any, workers: int, window_us: float, headroom: float) -> Any:
    """Worker µs that one query may cost, so that all who wait and the recent rate of arrivals can be served."""
    pace_us: float = np.inf
    rank = 0
    while rank < len(deadlines_us):
        after = min(len(deadlines_us), rank + 1 + rank // _RUNS)
        pace_us = min(pace_us, (deadlines_us[rank] - now_us) * workers / after)
        rank = after
    recent = len(arrived_us) - int(np.searchsorted(arrived_us, now_us - window_us, side="right"))
    return min(pace_us, headroom * workers * window_us / max(recent, 1))


@njit(cache=True)
def _sustainable(rising_us: Any, sizes: Any, lowest: int, pace_us: float, longest_us: float) -> int:
    """The last row that keeps the pace in batches of at most ``longest_us``; ``lowest`` when none does."""
    columns = len(sizes)
    low, high = lowest, len(rising_us) // columns - 1
    while low < high:
        middle = (low + high + 1) // 2
        keeps = False
        for column in range(columns):
            took_us = rising_us[middle * columns + column]
            # A call for one query need not leave time to gather the next batch.
            keeps = keeps or ((took_us <= longest_us or column == 0) and took_us <= pace_us * sizes[column])
        if keeps:
            low = middle
        else:
            high = middle - 1
    return low


@njit(cache=True)
def _rest_allows_us(
    now_us: float, deadlines_us: Any, taken: int, fastest_us: float, fastest_size: int, free_us: Any, workers: int
) -> float:
    """The longest a call of ``taken`` queries may be, so that those behind, in the fastest batches, are in time.

    With several workers by Graham's bound for lists: a batch starts no later than when all work before it, shared
    equally, is done.
    """
    others_us = 0.0
    for at_us in free_us:
        if now_us < at_us < np.inf:
            others_us += at_us - now_us
    allowed_us, batch = np.inf, 0
    while taken + batch * fastest_size < len(deadlines_us):
        after = batch + 1 + batch // _RUNS
        left_us = deadlines_us[taken + batch * fastest_size] - now_us - fastest_us
        allowed_us = min(allowed_us, workers * left_us - others_us - (after - 1) * fastest_us)
        batch = after
    return allowed_us


@chooser
def choose_whole_queue(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    columns, waiting = latency_us.shape[1], len(deadlines_us)
    slack_us = deadlines_us[0] - now_us + ROUNDING_US
    workers = 0
    for at_us in free_us:
        workers += at_us < np.inf
    pace_us = _pace_us(now_us, deadlines_us, arrived_us, workers, plan[_WINDOW], plan[_HEADROOM])
    fastest = int(plan[_COLUMN])
    longest_us = np.inf
    if len(arrived_us):
        longest_us = plan[_SHARE] * (deadlines_us[-1] - arrived_us[-1])
    ceiling = _sustainable(plan[_TABLE:], sizes, lowest, pace_us, longest_us)
    best_row, best_column = -1, -1
    for column in range(narrowest, columns):
        taken = min(sizes[column], waiting)
        allowed_us = slack_us
        if latency_us[lowest, column] <= slack_us:
            rest_us = _rest_allows_us(
                now_us, deadlines_us, taken, latency_us[0, fastest], sizes[fastest], free_us, workers
            )
            allowed_us = min(allowed_us, rest_us + ROUNDING_US)
        # The last row whose latency, and that of all before it, is allowed.
        low, high = lowest - 1, ceiling
        while low < high:
            middle = (low + high + 1) // 2
            if plan[_TABLE + middle * columns + column] <= allowed_us:
                low = middle
            else:
                high = middle - 1
        if low >= lowest and low >= best_row:
            best_row, best_column = low, column
        if sizes[column] >= waiting:
            break
    if best_row >= 0:
        return best_row * columns + best_column
    # Not everybody can be saved: as many as possible of the first.
    column = widest(latency_us, lowest, narrowest, slack_us)
    return lowest * columns + column if column >= 0 else REFUSE


class WholeQueue(BatchingPolicy):
    """The most accurate point at which nobody need be late, neither those who wait nor those expected.

    A call of b queries must (1) end by the most urgent deadline, (2) leave time for the rest of the queue in the
    fastest batches there are, and (3) be at a point that keeps the pace: the least over all deadlines of time left
    × workers ÷ queries due by then, and ``headroom`` × workers ÷ the arrival rate of the last ``window_us``. A point
    keeps it when in some batch, of at most ``share`` of the time a newcomer has, or by itself, a query costs no more.
    Of the calls that hold to all three the most accurate is made, of these the largest; when none does, the largest
    batch of the fastest point that meets the most urgent deadline.

    The pace of those who wait is that of the online algorithm "optimal available" for speed scaling (Yao, Demers and
    Shenker 1995): where accuracy gains less and less from time, sharing time as evenly as deadlines allow is best.
    Raises ``InputError`` when ``window_us``, ``headroom`` or ``share`` is not positive.
    """

    name: ClassVar[str] = "whole-queue"
    choose = choose_whole_queue

    def __init__(
        self,
        space: ControlSpace | ControlGrid,
        window_us: float = WINDOW_US,
        headroom: float = HEADROOM,
        share: float = SHARE,
    ):
        if not (window_us > 0 and headroom > 0 and share > 0):
            raise InputError(f"window {window_us:g} µs, headroom {headroom:g} and share {share:g} must be positive")
        self._window_us, self._headroom, self._share = window_us, headroom, share
        super().__init__(space)

    def prepare(self) -> np.ndarray:
        grid = self.grid
        fastest = int((grid.sizes / grid.latency_us[0]).argmax())
        rising = np.maximum.accumulate(grid.latency_us, axis=0)
        return np.concatenate([[self._window_us, self._headroom, self._share, fastest], rising.ravel()])
