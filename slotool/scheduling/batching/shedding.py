"""Who gives way when not everybody can be in time: the least important of those in whose way the crowd stands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from slotool.compilation import njit
from slotool.scheduling.batching.kernel import ROUNDING_US

_F = types.float64[::1]


@njit(types.int64(_F, types.int64[::1], types.float64, _F, _F, types.int64), cache=True)
def to_shed(quickest_us: Any, sizes: Any, now_us: float, deadlines_us: Any, levels: Any, workers: int) -> int:
    """The place of an example to drop, -1 when nobody need give way to somebody more important.

    Served in order, in the fastest batches there are, shared out among the workers as if all were idle, the first
    whose deadline passes shows that one of those up to it is lost in any case. Of the lowest priority among them the
    most urgent is dropped: that relieves everybody behind it. When they are all of one priority the policy decides,
    and the next is looked for. O(examples waiting). ``levels``: priorities, growing as importance falls.
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
