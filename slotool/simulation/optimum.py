"""One worker, equal deadlines, full knowledge: the best total accuracy, by dynamic programming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid
from slotool.scheduling.batching.clairvoyant import AFTER, BEFORE, look_back, useful_calls
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
    if not alike:
        raise InputError("the dynamic program is for one worker that lives and equal deadlines")
    calls = useful_calls(grid.latency_us, grid.accuracy, grid.sizes, float(deadlines[0]))
    both = [
        _brought(scenario.arrival_us, float(deadlines[0]), calls, steps, rounding, advance) if len(scenario) else 0.0
        for rounding in (AFTER, BEFORE)
    ]
    return Optimum(both[0], both[1], "dynamic program")


def _brought(
    arrival_us: np.ndarray,
    deadline_us: float,
    calls: tuple[np.ndarray, np.ndarray, np.ndarray],
    steps: int,
    rounding: int,
    advance: Callable[[int], None],
) -> float:
    """Return what all queries can bring, from the last of them to the first."""
    # Of the query behind the last too: nothing.
    best = np.zeros((int(calls[0].max()) + 1, steps + 1))
    for end in range(len(arrival_us), 0, -AT_ONCE):
        first = max(0, end - AT_ONCE)
        look_back(arrival_us, deadline_us, *calls, steps, rounding, best, first, end)
        advance(end - first)
    return float(best[0, 0])
