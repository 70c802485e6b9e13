"""Shedding by priority: which query to drop when not all can be in time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from slotool.compilation import njit
from slotool.scheduling.batching.kernel import ROUNDING_US

_F = types.float64[::1]


@njit(types.int64(_F, types.int64[::1], types.float64, _F, _F, types.int64), cache=True)
def to_shed(quickest_us: Any, sizes: Any, now_us: float, deadlines_us: Any, levels: Any, workers: int) -> int:
    """The place of the example to shed, -1 when no query of a higher priority needs it.

    Served in order, in the fastest batches there are, shared out among the workers as if all were idle, the first
    whose deadline passes shows that one of the examples up to it is lost in any case. The most urgent of
    the lowest priority among them is shed: that relieves all behind it. When all have one priority the policy decides,
    and the search goes on. O(examples waiting). ``levels``: priorities, growing as importance falls.
    Source: the exchange of Moore's rule for the fewest late jobs (Moore 1968), with priorities for weights.
    """
    fastest = 0
    for column in range(len(sizes)):
        if sizes[column] * quickest_us[fastest] >= sizes[fastest] * quickest_us[column]:
            fastest = column
    whole, best, worst, first = sizes[fastest], np.inf, -np.inf, -1
    column = 0
    for rank in range(len(deadlines_us)):
        best = min(best, levels[rank])
        if levels[rank] > worst:
            worst, first = levels[rank], rank
        batch, member = rank // whole, rank % whole
        column = 0 if member == 0 else column
        while sizes[column] <= member:
            column += 1
        done_us = now_us + (batch // max(workers, 1)) * quickest_us[fastest] + quickest_us[column]
        if done_us > deadlines_us[rank] + ROUNDING_US and worst > best:
            return first
    return -1
