"""The signature that every compiled policy has, so that the server and the simulator call the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from slotool.compilation import njit

REJECT = -1

# latency_us [P, B], accuracy [P], sizes [B], plan; now_us, deadlines_us [waiting], lowest, narrowest,
# arrived_us [recent], free_us [workers] -> cell, row * B + column, or REJECT.
_ARGUMENTS = (
    types.float64[:, ::1],
    types.float64[::1],
    types.int64[::1],
    types.float64[::1],
    types.float64,
    types.float64[::1],
    types.int64,
    types.int64,
    types.float64[::1],
    types.float64[::1],
)
CHOOSE = types.int64(*_ARGUMENTS)

# Rounding in "deadline - now" may cost a call that fits exactly.
ROUNDING_US = 1e-6


def chooser(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a policy's choice.

    It is asked with at least one example waiting, the first of which has time left. ``plan`` holds what the policy
    prepared beforehand; ``lowest`` is the first row that is accurate enough for the most urgent query, ``narrowest``
    the first column whose size holds its examples. It answers with a cell of these rows and columns that meets the
    first deadline, or ``REJECT``. Anybody may call it: it begins with ``fits`` and reads of ``plan`` only what is
    there; what does not fit together is rejected, since code called through a pointer cannot raise.
    """
    return njit(CHOOSE, cache=True)(function)


# Of lengths, not of arrays: Numba would count references to each array handed on, 60 ns a call.
@njit(cache=True, forceinline=True)
def fits(cells: tuple[int, ...], points: int, sizes: int, waiting: int, lowest: int, narrowest: int) -> bool:
    """Whether a query waits, and rows and columns fit one grid. ``cells``: shape of the latencies."""
    alike = (cells[0] == points) & (cells[1] == sizes) & (waiting > 0)
    return alike & (lowest >= 0) & (lowest < points) & (narrowest >= 0) & (narrowest < sizes)


@njit(cache=True, inline="always")
def widest(latency_us: Any, row: int, narrowest: int, slack_us: float) -> int:
    """The last column of ``row``, from ``narrowest``, that fits into ``slack_us``; -1 when none does."""
    for column in range(latency_us.shape[1] - 1, narrowest - 1, -1):
        if latency_us[row, column] <= slack_us + ROUNDING_US:
            return column
    return -1


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
