"""What policies look at beyond the most urgent query: arrivals lately, and whether the queue can be in time."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.scheduling.batching.kernel import ROUNDING_US

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
    first = np.searchsorted(arrived_us, now_us - window_us, side="right")
    rate = (count - first) / window_us
    if first == 0 and count > 1:
        # The service is younger than the window.
        rate = (count - 1) / max(now_us - arrived_us[0], 0.5 * deadline_us)
    lately = count - np.searchsorted(arrived_us, now_us - deadline_us, side="right")
    fastest: float = max(rate, (lately - ALERT * np.sqrt(lately)) / deadline_us)
    return fastest


@njit(cache=True)
def dispersion(now_us: float, arrived_us: Any, window_us: float, bin_us: float) -> float:
    """Variance ÷ mean of how many arrive in a bin, within the window."""
    first = int(np.searchsorted(arrived_us, now_us - window_us, side="right"))
    if first >= len(arrived_us):
        return _UNKNOWN_DISPERSION
    if first < len(arrived_us) - _REMEMBERED:
        first = len(arrived_us) - _REMEMBERED
        # So many arrive that few bins are remembered: shorter ones tell as much.
        bin_us = min(bin_us, (now_us - arrived_us[first]) / (_MIN_BINS + 0.5))
    if not now_us - arrived_us[first] >= _MIN_BINS * bin_us > 0.0:
        return _UNKNOWN_DISPERSION
    bins = int((now_us - arrived_us[first]) / bin_us)
    total, squares, there, current = 0.0, 0.0, 0.0, 0
    for i in range(first, len(arrived_us)):
        at = int((arrived_us[i] - arrived_us[first]) / bin_us)
        if at != current:
            total, squares, there, current = total + there, squares + there * there, 0.0, at
        there += 1.0
    if current < bins:
        total, squares = total + there, squares + there * there
    mean = total / bins
    return (squares / bins - mean * mean) / mean if mean > 0 else 1.0


@njit(cache=True, inline="always")
def nearest(axis: Any, value: float) -> int:
    """The place of the number closest to ``value`` by ratio on an ascending ``axis``."""
    at = 0
    while at + 1 < len(axis) and value * value >= axis[at] * axis[at + 1]:
        at += 1
    return at


@njit(cache=True, inline="always")
def between(axis: Any, value: float) -> tuple[int, float]:
    """The place on an ascending ``axis`` of the number below ``value``, and the share by ratio of the next above it."""
    below, share = 0, 0.0
    while below + 2 < len(axis) and value >= axis[below + 1]:
        below += 1
    if value > axis[below]:
        share = min(1.0, np.log(value / axis[below]) / np.log(axis[below + 1] / axis[below]))
    return below, share


@njit(cache=True)
def working(free_us: Any) -> int:
    workers = 0
    for at_us in free_us:
        workers += at_us < np.inf
    return max(workers, 1)


@njit(cache=True)
def max_call_us(
    now_us: float, deadlines_us: Any, taken: int, fastest_us: float, fastest_size: int, free_us: Any, workers: int
) -> float:
    """The longest call of ``taken`` queries that leaves the queries behind it in time, in the fastest batches.

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
def deadline_infeasible(
    latency_us: Any, sizes: Any, fastest: int, now_us: float, deadlines_us: Any, workers: int
) -> bool:
    """Whether some query misses its deadline even in the fastest batches, in order, on idle workers."""
    rank = 0
    while rank < len(deadlines_us):
        batch, member = rank // sizes[fastest], rank % sizes[fastest]
        column = np.searchsorted(sizes, member + 1)
        done_us = now_us + (batch // workers) * latency_us[0, fastest] + latency_us[0, column]
        if done_us > deadlines_us[rank] + ROUNDING_US:
            return True
        rank += 1 + rank // _RUNS
    return False
