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

WINDOW_US = 200_000.0
STRETCH = 2.5
SHARE = 0.3
RESERVE = 0.4
# Loads, of what the fastest batches could serve, up to and from which the stretch holds in full and not at all.
_FULL_EASE, _NO_EASE = 0.5, 0.9
# A burst is what comes within this part of the time a newcomer has; it is looked for among so many arrivals.
_BURST_SPAN = 0.125
_REMEMBERED = 512
# Beyond the first few, deadlines are looked at in runs of 1/32 of their rank: 3 % of pace, and never the unsafe way.
_RUNS = 32
_WINDOW, _STRETCH, _SHARE, _RESERVE, _COLUMN, _TABLE = 0, 1, 2, 3, 4, 5


@njit(cache=True)
def _pace_us(
    now_us: float, deadlines_us: Any, arrived_us: Any, workers: int, window_us: float, stretch: float, least_us: float
) -> Any:
    """Worker µs that one query may cost, so that all who wait and the recent rate of arrivals can be served.

    ``least_us``: what it costs at least.
    """
    pace_us: float = np.inf
    rank = 0
    while rank < len(deadlines_us):
        after = min(len(deadlines_us), rank + 1 + rank // _RUNS)
        pace_us = min(pace_us, (deadlines_us[rank] - now_us) * workers / after)
        rank = after
    recent = len(arrived_us) - int(np.searchsorted(arrived_us, now_us - window_us, side="right"))
    afforded_us = workers * window_us / max(recent, 1)
    # Up to half load lulls make up for what bursts take; near full load nothing does.
    eased = min(1.0, max(0.0, (_NO_EASE - least_us / afforded_us) / (_NO_EASE - _FULL_EASE)))
    return min(pace_us, least_us + (1.0 + (stretch - 1.0) * eased) * (afforded_us - least_us))


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


@njit(cache=True)
def _largest_burst(arrived_us: Any, span_us: float) -> int:
    """Most of the recent arrivals that came within ``span_us`` of one before them."""
    most, low = 0, max(0, len(arrived_us) - _REMEMBERED)
    for at in range(low, len(arrived_us)):
        while arrived_us[at] - arrived_us[low] > span_us:
            low += 1
        most = max(most, at - low)
    return most


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
    fastest = int(plan[_COLUMN])
    least_us = latency_us[0, fastest] / sizes[fastest]
    pace_us = _pace_us(now_us, deadlines_us, arrived_us, workers, plan[_WINDOW], plan[_STRETCH], least_us)
    fresh_us, burst = np.inf, 0.0
    if len(arrived_us):
        fresh_us = max(0.0, deadlines_us[-1] - arrived_us[-1])
        burst = plan[_RESERVE] * _largest_burst(arrived_us, _BURST_SPAN * fresh_us)
    ceiling = _sustainable(plan[_TABLE:], sizes, lowest, pace_us, plan[_SHARE] * fresh_us)
    best_row, best_column = -1, -1
    for column in range(narrowest, columns):
        taken = min(sizes[column], waiting)
        allowed_us = slack_us
        if latency_us[lowest, column] <= slack_us:
            rest_us = _rest_allows_us(
                now_us, deadlines_us, taken, latency_us[0, fastest], sizes[fastest], free_us, workers
            )
            batches = np.ceil((waiting - taken + burst) / sizes[fastest])
            burst_us = workers * fresh_us - batches * latency_us[0, fastest]
            # A burst that may not come never stands in the way of the fastest call for all, or of the largest.
            if column == columns - 1 or sizes[column] >= waiting:
                burst_us = max(burst_us, plan[_TABLE + lowest * columns + column])
            allowed_us = min(allowed_us, rest_us + ROUNDING_US, burst_us)
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
    × workers ÷ queries due by then, and the time per arrival at the rate of the last ``window_us``: workers ÷ rate, of
    which the part beyond the least a query costs counts ``stretch`` times up to half load, and once near full. A point
    keeps it when in some batch, of at most ``share`` of the time a newcomer has, or by itself, a query costs no more.
    And it must (4) leave time for ``reserve`` of the largest burst among the recent arrivals, should it come again
    just now. Of the calls that hold to all four the most accurate is made, of these the largest; when none does, the
    largest batch of the fastest point that meets the most urgent deadline.

    The pace of those who wait is that of the online algorithm "optimal available" for speed scaling (Yao, Demers and
    Shenker 1995): where accuracy gains less and less from time, sharing time as evenly as deadlines allow is best.
    Raises ``InputError`` when ``window_us``, ``stretch`` or ``share`` is not positive, or ``reserve`` is negative.
    """

    name: ClassVar[str] = "whole-queue"
    choose = choose_whole_queue

    def __init__(
        self,
        space: ControlSpace | ControlGrid,
        window_us: float = WINDOW_US,
        stretch: float = STRETCH,
        share: float = SHARE,
        reserve: float = RESERVE,
    ):
        if not (window_us > 0 and stretch > 0 and share > 0):
            raise InputError(f"window {window_us:g} µs, stretch {stretch:g} and share {share:g} must be positive")
        if not reserve >= 0:
            raise InputError(f"a reserve of {reserve:g} of a burst is negative")
        self._settings = (window_us, stretch, share, reserve)
        super().__init__(space)

    def prepare(self) -> np.ndarray:
        grid = self.grid
        fastest = int((grid.sizes / grid.latency_us[0]).argmax())
        rising = np.maximum.accumulate(grid.latency_us, axis=0)
        return np.concatenate([[*self._settings, fastest], rising.ravel()])
