"""Signature of every compiled policy, the same in server and simulator, and compiled functions that policies share.

Policies look at the most urgent query, at arrivals lately, and at whether the queue can be in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from slotool.compilation import count_until, njit

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


# Pass lengths, not arrays: Numba counts references to each passed array, 60 ns a call.
@njit(cache=True, forceinline=True)
def fits(cells: tuple[int, ...], points: int, sizes: int, waiting: int, lowest: int, narrowest: int) -> bool:
    """True if a query waits, and rows and columns fit one grid. ``cells``: shape of the latencies."""
    is_consistent = (cells[0] == points) & (cells[1] == sizes) & (waiting > 0)
    return is_consistent & (lowest >= 0) & (lowest < points) & (narrowest >= 0) & (narrowest < sizes)


@njit(cache=True, inline="always")
def widest(latency_us: Any, row: int, narrowest: int, slack_us: float) -> int:
    """Return the last column of ``row``, from ``narrowest``, that fits into ``slack_us``; -1 when none does."""
    for column in range(latency_us.shape[1] - 1, narrowest - 1, -1):
        if latency_us[row, column] <= slack_us + ROUNDING_US:
            return column
    return -1


def to_shed(
    quickest_us: np.ndarray,
    sizes: np.ndarray,
    now_us: float,
    deadlines_us: np.ndarray,
    levels: np.ndarray,
    workers: int,
) -> int:
    """Return the place of the example to shed, −1 where no query of a higher priority needs it.

    Served in order, in the fastest batches there are, shared out among the workers as if all were idle, the first
    whose deadline passes shows that one of the examples up to it is lost in any case. The most urgent of
    the lowest priority among them is shed: that relieves all behind it. When all have one priority the policy decides,
    and the search goes on. ``levels``: priorities, growing as importance falls.
    Source: the exchange of Moore's rule for the fewest late jobs (Moore 1968), with priorities for weights.
    """
    fastest = len(sizes) - 1 - int((sizes / quickest_us)[::-1].argmax())
    batch, member = np.divmod(np.arange(len(deadlines_us)), sizes[fastest])
    last_us = quickest_us[np.searchsorted(sizes, member, side="right")]
    done_us = now_us + (batch // max(workers, 1)) * quickest_us[fastest] + last_us
    differ = np.maximum.accumulate(levels) > np.minimum.accumulate(levels)
    late = np.flatnonzero((done_us > deadlines_us + ROUNDING_US) & differ)
    return int(levels[: late[0] + 1].argmax()) if len(late) else -1


# The arrival rate is measured over ``WINDOW`` deadlines; or over one, where that is higher by ``ALERT`` standard
# errors.
WINDOW = 8.0
ALERT = 1.5
# The dispersion of arrivals is measured over bins of this share of a deadline, from the last ``_REMEMBERED`` arrivals.
BIN, _REMEMBERED, _MIN_BINS, _UNKNOWN_DISPERSION = 0.25, 512, 6, 3.0
# Beyond the first few, deadlines are looked at in runs of 1/32 of their rank: 3 % of time, and never the unsafe way.
_RUNS = 32


@njit(cache=True)
def arrival_rate_per_us(now_us: float, arrived_us: Any, window_us: float, deadline_us: float) -> float:
    count = len(arrived_us)
    first = count_until(arrived_us, now_us - window_us)
    rate = (count - first) / window_us
    if first == 0 and count > 1:
        # The service is younger than the window.
        rate = (count - 1) / max(now_us - arrived_us[0], 0.5 * deadline_us)
    lately = count - count_until(arrived_us, now_us - deadline_us)
    return max(rate, (lately - ALERT * np.sqrt(lately)) / deadline_us)


@njit(cache=True)
def dispersion(now_us: float, arrived_us: Any, window_us: float, bin_us: float) -> float:
    """Variance ÷ mean of how many arrive in a bin, within the window."""
    first = count_until(arrived_us, now_us - window_us)
    if first >= len(arrived_us):
        return _UNKNOWN_DISPERSION
    if first < len(arrived_us) - _REMEMBERED:
        first = len(arrived_us) - _REMEMBERED
        # At high rates fewer, shorter bins suffice.
        bin_us = min(bin_us, (now_us - arrived_us[first]) / (_MIN_BINS + 0.5))
    if not now_us - arrived_us[first] >= _MIN_BINS * bin_us > 0.0:
        return _UNKNOWN_DISPERSION
    bins = int((now_us - arrived_us[first]) / bin_us)
    total, squares, arrived, current = 0.0, 0.0, 0.0, 0
    for i in range(first, len(arrived_us)):
        at = int((arrived_us[i] - arrived_us[first]) / bin_us)
        if at != current:
            total, squares, arrived, current = total + arrived, squares + arrived * arrived, 0.0, at
        arrived += 1.0
    if current < bins:
        total, squares = total + arrived, squares + arrived * arrived
    mean = total / bins
    return (squares / bins - mean * mean) / mean if mean > 0 else 1.0


@njit(cache=True, inline="always")
def nearest(axis: Any, value: float) -> int:
    """Return the place of the number closest to ``value`` by ratio on an ascending ``axis``."""
    at = 0
    while at + 1 < len(axis) and value * value >= axis[at] * axis[at + 1]:
        at += 1
    return at


@njit(cache=True, inline="always")
def between(axis: Any, value: float) -> tuple[int, float]:
    """Return the place of the number below ``value`` on an ascending ``axis``, and the next one's share by ratio."""
    below, share = 0, 0.0
    while below + 2 < len(axis) and value >= axis[below + 1]:
        below += 1
    if value > axis[below]:
        share = min(1.0, np.log(value / axis[below]) / np.log(axis[below + 1] / axis[below]))
    return below, share


@njit(cache=True, inline="always")
def first_free(free_us: Any) -> int:
    """Return the worker that is idle first, of equal ones the first."""
    worker = 0
    for other in range(len(free_us)):
        worker = other if free_us[other] < free_us[worker] else worker
    return worker


@njit(cache=True)
def working(free_us: Any) -> int:
    workers = 0
    for at_us in free_us:
        workers += at_us < np.inf
    return max(workers, 1)


@njit(cache=True)
def max_call_us(
    now_us: float, deadlines_us: Any, count: int, fastest_us: float, fastest_size: int, free_us: Any, workers: int
) -> float:
    """Return the longest call of ``count`` queries that leaves the queries behind it in time, in the fastest batches.

    With several workers by Graham's bound for lists: a batch starts no later than when all work before it, shared
    equally, is done.
    """
    others_us = 0.0
    for at_us in free_us:
        if now_us < at_us < np.inf:
            others_us += at_us - now_us
    allowed_us, batch = np.inf, 0
    while count + batch * fastest_size < len(deadlines_us):
        after = batch + 1 + batch // _RUNS
        left_us = deadlines_us[count + batch * fastest_size] - now_us - fastest_us
        allowed_us = min(allowed_us, workers * left_us - others_us - (after - 1) * fastest_us)
        batch = after
    return allowed_us


@njit(cache=True)
def deadline_infeasible(
    latency_us: Any, sizes: Any, fastest: int, now_us: float, deadlines_us: Any, workers: int
) -> bool:
    """True if some query misses its deadline even in the fastest batches, in order, on idle workers."""
    rank = 0
    while rank < len(deadlines_us):
        batch, member = rank // sizes[fastest], rank % sizes[fastest]
        column = count_until(sizes, member)
        done_us = now_us + (batch // workers) * latency_us[0, fastest] + latency_us[0, column]
        if done_us > deadlines_us[rank] + ROUNDING_US:
            return True
        rank += 1 + rank // _RUNS
    return False
