"""The best that could have been done with full knowledge: for one worker by dynamic programming, else bounded.

A dynamic program for one worker and equal deadlines; a linear program, with calls made fluid, that bounds any number of
workers that may die.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError, RunError
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
    """Return the offline optimum of superserve, Eq. 4.1, for one worker that lives and deadlines all equally long.

    Some optimal schedule serves runs of arrivals without gaps, in order, so the state is the next query and the
    instant at which the worker comes free, relative to that query's arrival. That instant is kept in ``steps`` steps
    of the deadline, rounded up for ``reached`` and down for ``bound``; both are exact when all times are whole steps.
    Time O(n × steps × cells). ``advance`` is called with the number of queries done, which are ``PASSES`` × n in all.
    Raises ``InputError`` for another kind of scenario.
    """
    deadlines = scenario.deadline_us - scenario.arrival_us
    is_uniform = len(scenario.death_us) == 1 and np.isinf(scenario.death_us[0]) and np.ptp(deadlines) <= 1e-3
    if not is_uniform:
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
    # One more query, without latency, ends the loop.
    best = np.zeros((int(calls[0].max()) + 1, steps + 1))
    for end in range(len(arrival_us), 0, -AT_ONCE):
        first = max(0, end - AT_ONCE)
        look_back(arrival_us, deadline_us, *calls, steps, rounding, best, first, end)
        advance(end - first)
    return float(best[0, 0])


# Bins to the median deadline, and bins solved together: finer and more is tighter and slower.
BINS = 8
TOGETHER = 512


def fluid_bound(grid: ControlGrid, scenario: Scenario, latency_us: np.ndarray | None = None) -> float:
    """Upper bound on the sum of accuracies in time, also for policies that know all arrivals and deaths beforehand.

    A query answered in a call of b takes at least 1/b of that call, and b is at most the number of queries that could
    be in one call with it. What is left is a linear program: each query buys accuracy, on the concave hull of (worker
    µs, accuracy), with worker time between its arrival and its deadline, and no bin of time sells more than its
    workers have while they live. Stretches of ``TOGETHER`` bins are solved by themselves, each with all the time it
    touches: a relaxation once more. ``latency_us``: float64 [P, B], least times of the calls where they vary; those
    of the grid when left out. Raises ``RunError`` when the solver gives up.
    """
    if not len(scenario):
        return 0.0
    times_us = grid.latency_us if latency_us is None else latency_us
    width_us = float(np.median(scenario.deadline_us - scenario.arrival_us)) / BINS
    # Bins that the query's time touches, but for a millionth of a bin: rounding buys nobody another one.
    first = np.floor(scenario.arrival_us / width_us + 1e-6).astype(np.int64)
    last = np.maximum(np.ceil(scenario.deadline_us / width_us - 1e-6).astype(np.int64) - 1, first)
    costs = _costs(grid, scenario, times_us)
    total = 0.0
    for of in np.split(np.arange(len(scenario)), np.flatnonzero(np.diff(first // TOGETHER)) + 1):
        total += _stretch(grid.accuracy, scenario.death_us, width_us, first[of], last[of], costs[of])
    return total


def _costs(grid: ControlGrid, scenario: Scenario, times_us: np.ndarray) -> np.ndarray:
    """Return float64 [n, P]: least worker µs that a query costs at each point, ``inf`` where it cannot be in time."""
    counts = np.arange(1, int(grid.sizes[-1]) + 1)
    calls_us = np.ascontiguousarray(times_us[:, np.searchsorted(grid.sizes, counts)])
    return _least_costs(scenario.arrival_us, scenario.deadline_us, calls_us)


@njit(cache=True)
def _least_costs(arrival_us: Any, deadline_us: Any, calls_us: Any) -> np.ndarray:
    costs = np.full((len(arrival_us), len(calls_us)), np.inf)
    for i in range(len(arrival_us)):
        for row in range(len(calls_us)):
            for count in range(1, calls_us.shape[1] + 1):
                took_us = calls_us[row, count - 1]
                # The call begins by then at the latest: its members have come; and none of them is due before it ends.
                latest_us = deadline_us[i] - took_us + 1e-3
                if latest_us < arrival_us[i] or took_us / count >= costs[i, row]:
                    continue
                gone_us = min(arrival_us[i] + took_us - 1e-3, latest_us)
                waiting = np.searchsorted(arrival_us, latest_us, side="right") - np.searchsorted(deadline_us, gone_us)
                if waiting >= count:
                    costs[i, row] = took_us / count
    return costs


def _stretch(
    accuracy: np.ndarray, death_us: np.ndarray, width_us: float, first: np.ndarray, last: np.ndarray, costs: np.ndarray
) -> float:
    """Return the linear program of queries that arrive in one stretch of time; alike ones are one group."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    windows, group = np.unique(np.stack([first, last], axis=1), axis=0, return_inverse=True)
    members = np.bincount(group.ravel())
    cheapest = np.full((len(windows), costs.shape[1]), np.inf)
    np.minimum.at(cheapest, group.ravel(), costs)
    owner, slope, room = _segments(accuracy, cheapest, members)
    if not len(owner):
        return 0.0
    begin, bins = windows[:, 0].min(), int(windows[:, 1].max() - windows[:, 0].min() + 1)
    spans = windows[:, 1] - windows[:, 0] + 1
    seller = np.repeat(np.arange(len(windows)), spans)
    offset = np.arange(len(seller)) - np.repeat(np.cumsum(spans) - spans, spans)
    bought_in = windows[seller, 0] - begin + offset
    # Rows: per group "used ≤ bought", then per bin "sold ≤ there is". Columns: segments, then purchases.
    rows = np.concatenate([owner, seller, len(windows) + bought_in])
    purchases = len(owner) + np.arange(len(seller))
    columns = np.concatenate([np.arange(len(owner)), purchases, purchases])
    signs = np.concatenate([np.ones(len(owner)), -np.ones(len(seller)), np.ones(len(seller))])
    matrix = coo_array((signs, (rows, columns)), shape=(len(windows) + bins, len(owner) + len(seller))).tocsr()
    edges_us = (begin + np.arange(bins + 1)) * width_us
    alive_us = np.minimum(death_us[:, None], edges_us[None, :])
    alive = np.diff(alive_us, axis=1).sum(axis=0) / width_us
    solved = linprog(
        np.concatenate([-slope * width_us, np.zeros(len(seller))]),
        A_ub=matrix,
        b_ub=np.concatenate([np.zeros(len(windows)), alive]),
        bounds=np.stack([np.zeros(matrix.shape[1]), np.r_[room / width_us, np.full(len(seller), np.inf)]], axis=1),
        method="highs",
    )
    if solved.status != 0:
        raise RunError(f"the bound on what is possible was not found: {solved.message}")
    return float(-solved.fun)


def _segments(accuracy: np.ndarray, cheapest: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, ...]:
    """Concave hulls from (0, 0) of each group's (cost, accuracy): segments' groups, accuracy per µs, and µs of all."""
    owner, slope, room = [], [], []
    for at, prices in enumerate(cheapest):
        hull = [(0.0, 0.0)]
        for row in np.lexsort((-accuracy, prices)):
            point = (float(prices[row]), float(accuracy[row]))
            if not np.isfinite(point[0]):
                break
            if point[1] <= hull[-1][1]:
                continue
            while len(hull) > 1 and _steepness(hull[-2], hull[-1]) <= _steepness(hull[-1], point):
                hull.pop()
            hull.append(point)
        for left, right in pairwise(hull):
            owner.append(at)
            slope.append(_steepness(left, right))
            room.append((right[0] - left[0]) * members[at])
    return np.array(owner, dtype=np.int64), np.array(slope), np.array(room)


def _steepness(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
