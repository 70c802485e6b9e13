"""What queries can bring to one worker that knows every arrival beforehand: dynamic programming, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit

# How the instant at which a worker comes free is read off a table of steps: as the step after it, which a worker
# reaches, as the one before it, which no worker surpasses, or between the two.
AFTER, BEFORE, BETWEEN = 1, -1, 0


def useful_calls(
    latency_us: np.ndarray, accuracy: np.ndarray, sizes: np.ndarray, deadline_us: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per call that may be worth making: queries, accuracy, µs. At each number of queries the Pareto points, the most
    accurate first. Arrays as of ``ControlGrid``."""
    kept = []
    for count in range(1, int(sizes[-1]) + 1):
        times = latency_us[:, np.searchsorted(sizes, count)]
        soonest = np.inf
        for row in range(len(times) - 1, -1, -1):
            if times[row] < soonest and times[row] <= deadline_us + 1e-3:
                soonest = times[row]
                kept.append((count, accuracy[row], times[row]))
    counts, accuracies, times_us = zip(*kept, strict=True)
    return np.array(counts, dtype=np.int64), np.array(accuracies), np.array(times_us)


@njit(cache=True)
def look_back(
    arrival_us: Any, deadline_us: float, counts: Any, accuracies: Any, times_us: Any, steps: int, rounding: int,
    best: Any, first: int, end: int,
) -> None:  # fmt: skip
    """The rows of ``best`` of queries ``first`` to ``end``, the last of them first; those behind ``end`` are there.

    ``best[i % reach, t]``: what the queries from i on can bring when the worker comes free t steps after i arrives.
    ``rounding``: ``AFTER``, ``BEFORE`` or ``BETWEEN``.
    """
    queries, step_us, reach = len(arrival_us), deadline_us / steps, len(best)
    for i in range(end - 1, first - 1, -1):
        here = best[i % reach]
        here[:] = 0.0
        # Dropped. A worker free later than a deadline after the next arrival would be of no use to it either.
        _improve(here, best[(i + 1) % reach], 0.0, _step(-_gap_us(arrival_us, i, i + 1), step_us, rounding), 0, steps)
        for c in range(len(counts)):
            behind = i + counts[c]
            if behind > queries:
                break
            ready_us = arrival_us[behind - 1] - arrival_us[i]
            # Calls ascend in queries, and more of them are complete later.
            if ready_us > deadline_us:
                break
            if ready_us + times_us[c] > deadline_us + 1e-3:
                continue
            gain = counts[c] * accuracies[c]
            gap_us, onward = _gap_us(arrival_us, i, behind), best[behind % reach]
            # Up to here the call begins when its last query arrives, and from there on when the worker is free.
            waits = min(int(ready_us / step_us), steps)
            value = gain + value_at(onward, _step(ready_us + times_us[c] - gap_us, step_us, rounding))
            for t in range(waits + 1):
                here[t] = value if value > here[t] else here[t]
            last = min(int((deadline_us + 1e-3 - times_us[c]) / step_us), steps)
            _improve(here, onward, gain, _step(times_us[c] - gap_us, step_us, rounding), waits + 1, last)


@njit(cache=True, inline="always")
def value_at(row: Any, at: float) -> float:
    """``row`` at a step between two; before the first it is the first, and behind the last the last."""
    steps = len(row) - 1
    inside = min(max(at, 0.0), float(steps))
    below = min(int(inside), steps - 1)
    part = inside - below
    value: float = row[below] * (1.0 - part) + row[below + 1] * part
    return value


@njit(cache=True)
def _improve(here: Any, onward: Any, gain: float, shift: float, first: int, last: int) -> None:
    """``here[t]`` becomes what ``gain`` and ``onward`` at t + shift are, if that is more; t from ``first`` to ``last``.

    As ``value_at``, in three plain loops, which compilers vectorise.
    """
    steps, whole = len(onward) - 1, int(np.floor(shift))
    part = shift - whole
    inside, beyond = min(max(first, -whole), last + 1), min(max(first, steps - whole), last + 1)
    soonest, latest = gain + onward[0], gain + onward[steps]
    for t in range(first, inside):
        here[t] = soonest if soonest > here[t] else here[t]
    middle, end = here[inside:beyond], max(beyond, inside)
    shifted, later = onward[inside + whole : end + whole], onward[inside + whole + 1 : end + whole + 1]
    for t in range(len(middle)):
        value = gain + shifted[t] * (1.0 - part) + later[t] * part
        middle[t] = value if value > middle[t] else middle[t]
    for t in range(max(beyond, first), last + 1):
        here[t] = latest if latest > here[t] else here[t]


@njit(cache=True, inline="always")
def _gap_us(arrival_us: Any, i: int, behind: int) -> float:
    gap_us: float = arrival_us[behind] - arrival_us[i] if behind < len(arrival_us) else 0.0
    return gap_us


@njit(cache=True, inline="always")
def _step(time_us: float, step_us: float, rounding: int) -> float:
    exact = time_us / step_us
    if rounding == AFTER:
        return float(np.ceil(exact - 1e-6))
    return float(np.floor(exact + 1e-6)) if rounding == BEFORE else exact
