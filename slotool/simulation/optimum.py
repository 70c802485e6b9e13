"""One worker, equal deadlines, full knowledge: the best total accuracy, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid
from slotool.simulation.scenario import Scenario

STEPS = 512
# Queries from one report of progress to the next, and how often each is looked at.
AT_ONCE, PASSES = 2_000, 2


@dataclass(frozen=True)
class Optimum:
    """Sum of accuracies in time: the optimum is at least ``reached`` (a schedule reaches it) and at most ``bound``."""

    reached: float
    bound: float
    method: str


def optimum_of_one_worker(
    grid: ControlGrid, scenario: Scenario, steps: int = STEPS, advance: Callable[[int], None] = lambda queries: None
) -> Optimum:
    """The offline optimum of superserve, Eq. 4.1, for one worker that lives and deadlines all equally long.

    Some optimal schedule serves runs of arrivals without gaps, in order, so the state is the next query and the
    instant at which the worker comes free, relative to that query's arrival. That instant is kept in ``steps`` steps
    of the deadline, rounded up for ``reached`` and down for ``bound``; both are exact when all times are whole steps.
    Time O(n × steps × cells). ``advance`` is called with the number of queries done, which are ``PASSES`` × n in all.
    Raises ``InputError`` for another kind of scenario.
    """
    deadlines = scenario.deadline_us - scenario.arrival_us
    alike = len(scenario.death_us) == 1 and np.isinf(scenario.death_us[0]) and np.ptp(deadlines) <= 1e-3
    if not alike or scenario.min_accuracy is not None:
        raise InputError("the dynamic program is for one worker that lives, equal deadlines and no minimum accuracy")
    calls = _useful_calls(grid, float(deadlines[0]))
    both = [
        _brought(scenario.arrival_us, float(deadlines[0]), calls, steps, up, advance) if len(scenario) else 0.0
        for up in (True, False)
    ]
    return Optimum(both[0], both[1], "dynamic program")


def _brought(
    arrival_us: np.ndarray,
    deadline_us: float,
    calls: tuple[np.ndarray, np.ndarray, np.ndarray],
    steps: int,
    up: bool,
    advance: Callable[[int], None],
) -> float:
    """What all queries can bring, found from the last of them to the first."""
    # Of the query behind the last too: nothing.
    best = np.zeros((int(calls[0].max()) + 1, steps + 1))
    for end in range(len(arrival_us), 0, -AT_ONCE):
        first = max(0, end - AT_ONCE)
        _best(arrival_us, deadline_us, *calls, steps, up, best, first, end)
        advance(end - first)
    return float(best[0, 0])


def _useful_calls(grid: ControlGrid, deadline_us: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per call that may be worth making: queries, accuracy, µs. At each number of queries the Pareto points."""
    kept = []
    for count in range(1, int(grid.sizes[-1]) + 1):
        times = grid.latency_us[:, grid.columns_for(count)]
        soonest = np.inf
        for row in range(len(times) - 1, -1, -1):
            if times[row] < soonest and times[row] <= deadline_us + 1e-3:
                soonest = times[row]
                kept.append((count, grid.accuracy[row], times[row]))
    counts, accuracies, times_us = zip(*kept, strict=True)
    return np.array(counts, dtype=np.int64), np.array(accuracies), np.array(times_us)


@njit(cache=True)
def _best(
    arrival_us: Any, deadline_us: float, counts: Any, accuracies: Any, times_us: Any, steps: int, up: bool,
    best: Any, first: int, end: int,
) -> None:  # fmt: skip
    """The rows of ``best`` of queries ``first`` to ``end``, the last of them first; those behind ``end`` are there.

    ``best[i % reach, t]``: what the queries from i on can bring when the worker comes free t steps after i arrives.
    """
    queries, step_us, reach = len(arrival_us), deadline_us / steps, len(best)
    for i in range(end - 1, first - 1, -1):
        here = best[i % reach]
        here[:] = 0.0
        # Dropped. A worker free later than a deadline after the next arrival would be of no use to it either.
        _improve(here, best[(i + 1) % reach], 0.0, _step(-_gap_us(arrival_us, i, i + 1), step_us, up), 0, steps)
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
            shift = _step(ready_us + times_us[c] - gap_us, step_us, up)
            value = gain + onward[min(max(shift, 0), steps)]
            for t in range(waits + 1):
                here[t] = value if value > here[t] else here[t]
            last = min(int((deadline_us + 1e-3 - times_us[c]) / step_us), steps)
            _improve(here, onward, gain, _step(times_us[c] - gap_us, step_us, up), waits + 1, last)


@njit(cache=True)
def _improve(here: Any, onward: Any, gain: float, shift: int, first: int, last: int) -> None:
    """``here[t]`` becomes what ``gain`` and ``onward[t + shift]`` are, if that is more; t from ``first`` to ``last``.

    Steps before 0 count as 0 and those beyond the last as the last. Three plain loops, which compilers vectorise.
    """
    steps = len(onward) - 1
    inside, beyond = min(max(first, -shift), last + 1), min(max(first, steps - shift + 1), last + 1)
    soonest, latest = gain + onward[0], gain + onward[steps]
    for t in range(first, inside):
        here[t] = soonest if soonest > here[t] else here[t]
    middle, shifted = here[inside:beyond], onward[inside + shift : max(beyond, inside) + shift]
    for t in range(len(middle)):
        value = gain + shifted[t]
        middle[t] = value if value > middle[t] else middle[t]
    for t in range(max(beyond, first), last + 1):
        here[t] = latest if latest > here[t] else here[t]


@njit(cache=True, inline="always")
def _gap_us(arrival_us: Any, i: int, behind: int) -> float:
    gap_us: float = arrival_us[behind] - arrival_us[i] if behind < len(arrival_us) else 0.0
    return gap_us


@njit(cache=True, inline="always")
def _step(time_us: float, step_us: float, up: bool) -> int:
    exact = time_us / step_us
    return int(np.ceil(exact - 1e-6)) if up else int(np.floor(exact + 1e-6))
