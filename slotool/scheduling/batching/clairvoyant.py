"""Value of a queue to one worker that knows every arrival beforehand: dynamic programming, compiled.

The value tables of the hindsight policy are means of it over sampled arrivals, computed once, when the policy is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import copy, count_until, njit
from slotool.scheduling.batching.grid import ControlGrid, remembered

# Rounding of the instant at which a worker becomes idle to a table's steps: the step after it, which a worker
# reaches, as the one before it, which no worker surpasses, or between the two.
AFTER, BEFORE, BETWEEN = 1, -1, 0


def useful_calls(
    latency_us: np.ndarray, accuracy: np.ndarray, sizes: np.ndarray, deadline_us: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return queries, accuracy and µs of calls worth making, as in ``ControlGrid``.

    They are the Pareto points at each number of queries, the most accurate first.
    """
    selected = []
    for count in range(1, int(sizes[-1]) + 1):
        times = latency_us[:, np.searchsorted(sizes, count)]
        soonest = np.inf
        for row in range(len(times) - 1, -1, -1):
            if times[row] < soonest and times[row] <= deadline_us + 1e-3:
                soonest = times[row]
                selected.append((count, accuracy[row], times[row]))
    counts, accuracies, times_us = zip(*selected, strict=True)
    return np.array(counts, dtype=np.int64), np.array(accuracies), np.array(times_us)


@njit(cache=True)
def look_back(
    arrival_us: Any, deadline_us: float, counts: Any, accuracies: Any, times_us: Any, steps: int, rounding: int,
    best: Any, first: int, end: int,
) -> None:  # fmt: skip
    """Fill in the rows of ``best`` for queries ``first`` to ``end``, last first; those after ``end`` are there.

    ``best[i % reach, t]``: value of the queries from i on if the worker is idle t steps after i arrives. ``rounding``:
    ``AFTER``, ``BEFORE`` or ``BETWEEN``.
    """
    queries, step_us, reach = len(arrival_us), deadline_us / steps, len(best)
    for i in range(end - 1, first - 1, -1):
        values = best[i % reach]
        values[:] = 0.0
        # Dropped. A worker free later than a deadline after the next arrival would be of no use to it either.
        _improve(values, best[(i + 1) % reach], 0.0, _step(-_gap_us(arrival_us, i, i + 1), step_us, rounding), 0, steps)
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
                values[t] = value if value > values[t] else values[t]
            last = min(int((deadline_us + 1e-3 - times_us[c]) / step_us), steps)
            _improve(values, onward, gain, _step(times_us[c] - gap_us, step_us, rounding), waits + 1, last)


@njit(cache=True, inline="always")
def value_at(row: Any, at: float) -> float:
    """Interpolate ``row`` at a step, constant before the first and after the last."""
    steps = len(row) - 1
    inside = min(max(at, 0.0), float(steps))
    below = min(int(inside), steps - 1)
    part = inside - below
    return row[below] * (1.0 - part) + row[below + 1] * part


@njit(cache=True)
def _improve(values: Any, onward: Any, gain: float, shift: float, first: int, last: int) -> None:
    """Raise ``here[t]`` to ``gain`` plus ``onward`` at t + shift if that is more, for t from ``first`` to ``last``.

    As ``value_at``, in three plain loops, which compilers vectorise.
    """
    steps, whole = len(onward) - 1, int(np.floor(shift))
    part = shift - whole
    inside, beyond = min(max(first, -whole), last + 1), min(max(first, steps - whole), last + 1)
    soonest, latest = gain + onward[0], gain + onward[steps]
    for t in range(first, inside):
        values[t] = soonest if soonest > values[t] else values[t]
    middle, end = values[inside:beyond], max(beyond, inside)
    shifted, later = onward[inside + whole : end + whole], onward[inside + whole + 1 : end + whole + 1]
    for t in range(len(middle)):
        value = gain + shifted[t] * (1.0 - part) + later[t] * part
        middle[t] = value if value > middle[t] else middle[t]
    for t in range(max(beyond, first), last + 1):
        values[t] = latest if latest > values[t] else values[t]


@njit(cache=True, inline="always")
def _gap_us(arrival_us: Any, i: int, behind: int) -> float:
    return arrival_us[behind] - arrival_us[i] if behind < len(arrival_us) else 0.0


@njit(cache=True, inline="always")
def _step(time_us: float, step_us: float, rounding: int) -> float:
    exact = time_us / step_us
    if rounding == AFTER:
        return float(np.ceil(exact - 1e-6))
    return float(np.floor(exact + 1e-6)) if rounding == BEFORE else exact


# Loads, of what the fastest batches can serve; squared coefficients of variation of gaps between arrivals.
LOADS = np.array([0.004, 0.015, 0.035, 0.07, 0.11, 0.16, 0.23, 0.32, 0.42, 0.53])
GAP_CV2 = np.array([1.0, 4.0])
# Queries left waiting, and how long the first of them has waited, in deadlines.
WAITING = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32])
AGES = np.linspace(0.0, 1.0, 9)
# Instants at which a stream of arrivals is looked at, arrivals from one to the next, steps of a deadline in the dynamic
# program.
_INSTANTS, _APART, _STEPS = 64, 24, 96
# Gaps between the queries of a queue, in deadlines.
_GAPS = np.geomspace(1 / (4 * WAITING[-1]), 0.95, 16)
# Arrivals behind the last instant.
_BEHIND = 400
# Calls of more queries than this are not thought of.
_MOST = 128
# Calls as long as each other within so many steps count as the most accurate of them.
_SAME_STEPS = 2


@remembered
def hindsight_values(grid: ControlGrid, deadline_us: float, aversion: float) -> np.ndarray:
    """Return values of hindsight optimisation: the offline optimum's mean value over sampled arrivals.

    float64 [F, R, N, A, T]: sum of accuracies that a worker brings, beyond that of one that is idle with an empty
    queue, when N queries wait, the first of them for A deadlines, and it is busy until T. Axes: F ``GAP_CV2``, R
    ``LOADS``, N ``WAITING``, A ``AGES``, T instants from now to a deadline later.
    Source: Chong, Givan and Chang 2000, "A framework for simulation-based network control via hindsight optimization".
    Gaps between arrivals are gamma distributed, and the waiting queue has arrived evenly spaced. ``aversion``: cost of
    a lost query, in accuracies beyond its own.
    """
    unit_us = float((grid.quickest_us / grid.sizes).min())
    calls = useful_calls(grid.latency_us, grid.accuracy, grid.sizes, deadline_us)
    counts, gains, times_us = _thinned(*calls, _SAME_STEPS * deadline_us / _STEPS)
    values = np.zeros((len(GAP_CV2), len(LOADS), len(WAITING), len(AGES), _STEPS + 1))
    for f, cv2 in enumerate(GAP_CV2):
        for r, load in enumerate(LOADS):
            generator = np.random.default_rng(0)
            gaps = generator.gamma(1.0 / cv2, cv2, _INSTANTS * _APART + _BEHIND)
            arrival_us = np.cumsum(gaps) * unit_us / load
            last_us = arrival_us[_INSTANTS * _APART]
            instants_us = (np.arange(_INSTANTS) + generator.random(_INSTANTS)) / _INSTANTS * last_us
            _look(arrival_us, instants_us, deadline_us, counts, gains + aversion, times_us, values[f, r])
    return values / _INSTANTS


def _thinned(counts: Any, accuracies: Any, times_us: Any, alike_us: float) -> Any:
    """Return the most accurate of calls with equal queries and similar length, and the fastest.

    Large numbers of queries are sampled.
    """
    selected: list[int] = []
    some = np.unique(np.r_[np.arange(1, 17), np.geomspace(16, _MOST, 13).round()])
    for at in np.flatnonzero(np.isin(counts, some)).tolist():
        # Within a number of queries from the most accurate, which is the longest, to the fastest.
        first = not selected or counts[selected[-1]] != counts[at]
        fastest = at + 1 == len(counts) or counts[at + 1] != counts[at]
        if first or fastest or times_us[selected[-1]] - times_us[at] >= alike_us:
            selected.append(at)
    return counts[selected], accuracies[selected], times_us[selected]


@njit(cache=True, nogil=True)
def _look(
    arrival_us: Any, instants_us: Any, deadline_us: float, counts: Any, accuracies: Any, times_us: Any, values: Any
) -> None:
    """Add the values seen at each instant, the last first, to ``values``."""
    reach = int(counts[-1]) + 1
    ring = np.zeros((reach, _STEPS + 1))
    coming, comes_us = np.zeros((reach - 1, _STEPS + 1)), np.zeros(reach - 1)
    most = int(WAITING[-1])
    waiting = np.zeros((len(_GAPS), most + 1, _STEPS + 1))
    end = len(arrival_us)
    for back in range(1, len(instants_us) + 1):
        instant_us = instants_us[-back]
        first = count_until(arrival_us, instant_us)
        look_back(arrival_us, deadline_us, counts, accuracies, times_us, _STEPS, BETWEEN, ring, first, end)
        end = first
        for f in range(reach - 1):
            comes_us[f] = arrival_us[first + f] - instant_us
            copy(ring[(first + f) % reach], coming[f])
        for g in range(len(_GAPS)):
            _wait(coming, comes_us, _GAPS[g] * deadline_us, deadline_us, counts, accuracies, times_us, waiting[g])
        _add(waiting, coming[0, 0], values)


@njit(cache=True)
def _wait(
    coming: Any, comes_us: Any, gap_us: float, deadline_us: float, counts: Any, accuracies: Any, times_us: Any,
    values_at: Any,
) -> None:  # fmt: skip
    """Set ``found[n, t]`` to the value of a queue of n with the worker idle at step t from now.

    It came ``gap_us`` apart, the last ``gap_us`` ago. ``coming``: values of later queries, at ``comes_us``, from their
    arrival on.
    """
    queued = min(len(values_at) - 1, int(deadline_us / gap_us))
    rows, arrival_us = np.zeros((queued + len(coming), _STEPS + 1)), np.empty(queued + len(coming))
    for f in range(len(coming)):
        arrival_us[queued + f] = comes_us[f]
        copy(coming[f], rows[queued + f])
    for k in range(queued):
        arrival_us[k] = -(queued - k) * gap_us
    look_back(arrival_us, deadline_us, counts, accuracies, times_us, _STEPS, BETWEEN, rows, 0, queued)
    step_us = deadline_us / _STEPS
    for n in range(queued + 1):
        shift = -arrival_us[queued - n] / step_us
        for t in range(_STEPS + 1):
            values_at[n, t] = value_at(rows[queued - n], t + shift)


@njit(cache=True)
def _add(waiting: Any, reference: float, values: Any) -> None:
    """Add ``waiting``, by gaps, to ``values``, by ages. Between two gaps the first query has as much time left."""
    for q in range(len(WAITING)):
        n = int(WAITING[q])
        for a in range(len(AGES)):
            gap, below, share = AGES[a] / max(n, 1), 0, 0.0
            while n > 0 and below + 2 < len(_GAPS) and _GAPS[below + 1] <= gap and n * _GAPS[below + 1] <= 1.0:
                below += 1
            if n > 0 and n * _GAPS[below + 1] <= 1.0:
                share = min(max((gap - _GAPS[below]) / (_GAPS[below + 1] - _GAPS[below]), 0.0), 1.0)
            older, younger = n * (gap - _GAPS[below]) * _STEPS, n * (_GAPS[below + 1] - gap) * _STEPS
            for t in range(_STEPS + 1):
                low = value_at(waiting[below, n], t + older)
                high = value_at(waiting[below + 1, n], t - younger) if share > 0 else low
                values[q, a, t] += low + (high - low) * share - reference
