"""One worker, equal deadlines, full knowledge: the best total accuracy, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid
from slotool.simulation.scenario import Scenario

STEPS = 512


@dataclass(frozen=True)
class Optimum:
    """Sum of accuracies in time: the optimum is at least ``reached`` (a schedule reaches it) and at most ``bound``."""

    reached: float
    bound: float
    method: str


def optimum_of_one_worker(grid: ControlGrid, scenario: Scenario, steps: int = STEPS) -> Optimum:
    """The offline optimum of superserve, Eq. 4.1, for one worker that lives and deadlines all equally long.

    Some optimal schedule serves runs of arrivals without gaps, in order, so the state is the next query and the
    instant at which the worker comes free, relative to that query's arrival. That instant is kept in ``steps`` steps
    of the deadline, rounded up for ``reached`` and down for ``bound``; both are exact when all times are whole steps.
    Time O(n × steps × cells). Raises ``InputError`` for another kind of scenario.
    """
    deadlines = scenario.deadline_us - scenario.arrival_us
    alike = len(scenario.death_us) == 1 and np.isinf(scenario.death_us[0]) and np.ptp(deadlines) <= 1e-3
    if not alike or scenario.min_accuracy is not None:
        raise InputError("the dynamic program is for one worker that lives, equal deadlines and no minimum accuracy")
    calls = _useful_calls(grid, float(deadlines[0]))
    both = [_best(scenario.arrival_us, float(deadlines[0]), *calls, steps, up) for up in (True, False)]
    return Optimum(both[0], both[1], "dynamic program")


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
    arrival_us: Any, deadline_us: float, counts: Any, accuracies: Any, times_us: Any, steps: int, up: bool
) -> float:
    queries, step_us = len(arrival_us), deadline_us / steps
    reach = counts.max() + 1
    # best[i % reach, t]: what the queries from i on can bring when the worker comes free t steps after i arrives.
    best = np.zeros((reach, steps + 1))
    for i in range(queries - 1, -1, -1):
        here = best[i % reach]
        following = best[(i + 1) % reach]
        gap_us = arrival_us[i + 1] - arrival_us[i] if i + 1 < queries else 0.0
        for t in range(steps + 1):
            # Dropped. A worker free later than a deadline after the next arrival would be of no use to it either.
            after = _step(t * step_us - gap_us, step_us, up)
            here[t] = following[min(after, steps)] if i + 1 < queries else 0.0
        for c in range(len(counts)):
            last = i + counts[c] - 1
            if last >= queries:
                continue
            ready_us = arrival_us[last] - arrival_us[i]
            if ready_us + times_us[c] > deadline_us + 1e-3:
                continue
            gain = counts[c] * accuracies[c]
            gap_us = arrival_us[last + 1] - arrival_us[i] if last + 1 < queries else 0.0
            onward = best[(last + 1) % reach]
            for t in range(steps + 1):
                done_us = max(t * step_us, ready_us) + times_us[c]
                if done_us > deadline_us + 1e-3:
                    break
                value = gain
                if last + 1 < queries:
                    value += onward[min(_step(done_us - gap_us, step_us, up), steps)]
                here[t] = max(here[t], value)
    most: float = best[0, 0]
    return most


@njit(cache=True, inline="always")
def _step(time_us: float, step_us: float, up: bool) -> int:
    if time_us <= 0:
        return 0
    exact = time_us / step_us
    return int(np.ceil(exact - 1e-6)) if up else int(np.floor(exact + 1e-6))
