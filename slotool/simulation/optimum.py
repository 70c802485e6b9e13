"""The best that could have been done with full knowledge: exactly for one worker, by an integer program, and bounded.

A dynamic program for one worker and equal deadlines; an integer program for several workers, deaths and mixed
deadlines of small traces; a linear program, with calls made fluid, that bounds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError, RunError
from slotool.scheduling.batching import ControlGrid
from slotool.scheduling.batching.clairvoyant import AFTER, BEFORE, look_back, useful_calls
from slotool.simulation.scenario import Scenario

if TYPE_CHECKING:
    from scipy.sparse import csr_array


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


PROGRAM_STEPS = 48
TIME_LIMIT_S = 60.0
# Beyond so many unknowns the solver takes minutes before its first bound, and gigabytes.
MAX_UNKNOWNS = 400_000


@dataclass(frozen=True)
class _Calls:
    """Calls that could be made, one entry each: ``start`` and ``slots`` in steps, ``size``, ``row`` of the grid."""

    start: np.ndarray
    slots: np.ndarray
    size: np.ndarray
    row: np.ndarray


def optimum_by_integer_program(
    grid: ControlGrid,
    scenario: Scenario,
    steps: int = PROGRAM_STEPS,
    latency_us: np.ndarray | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Optimum:
    """The offline optimum of superserve, Eq. 4.1, on small traces: tens of queries, a hundred at most.

    The paper has one unknown per set of queries, instant and subnet. Here calls of one point, size and instant are one
    whole unknown (how many workers make it) and a query's part in it another; given the calls the parts are a
    transport problem, so that there is a whole solution for them too. Constraint 1a: a query takes part in one call;
    1b: no more calls at a time than workers alive; 1c and 1e: it has arrived by the start and the end is in time.
    Workers are alike and never come back, so calls that overlap no more than that can be shared out among them.

    Time is kept in ``steps`` of the median deadline: rounded against the schedule for ``reached``, for it in ``bound``;
    both are exact when all times are whole steps and the solver ends within ``time_limit_s`` (for each of the two).
    ``latency_us``: float64 [P, B], times of the calls; those of the grid when left out. Raises ``InputError`` for a
    trace that is too large, ``RunError`` when the solver fails.
    """
    if not len(scenario):
        return Optimum(0.0, 0.0, "integer program")
    times_us = grid.latency_us if latency_us is None else latency_us
    step_us = float(np.median(scenario.deadline_us - scenario.arrival_us)) / steps
    reached, least = _solved(grid, scenario, times_us, step_us, time_limit_s, up=True)
    # Where nothing had to be rounded one solution is both.
    exact = all(_whole(part, step_us) for part in (scenario.arrival_us, scenario.deadline_us, times_us))
    bound = least if exact and _whole(scenario.death_us, step_us) else \
        _solved(grid, scenario, times_us, step_us, time_limit_s, up=False)[1]  # fmt: skip
    return Optimum(reached, max(bound, reached), "integer program")


def _whole(times_us: np.ndarray, step_us: float) -> bool:
    steps = times_us[np.isfinite(times_us)] / step_us
    return bool((np.abs(steps - np.round(steps)) <= 1e-6).all())


def _solved(
    grid: ControlGrid, scenario: Scenario, times_us: np.ndarray, step_us: float, time_limit_s: float, *, up: bool
) -> tuple[float, float]:
    """Return what a schedule in whole steps reaches, and what none can surpass."""

    def floor(t: np.ndarray) -> np.ndarray:
        return np.floor(t / step_us + 1e-6).astype(np.int64)

    def ceil(t: np.ndarray) -> np.ndarray:
        return np.ceil(t / step_us - 1e-6).astype(np.int64)

    late = ceil if up else floor
    arrival, deadline = late(scenario.arrival_us), floor(scenario.deadline_us)
    death = floor(np.minimum(scenario.death_us, scenario.deadline_us.max() + step_us))
    calls = _calls(grid, late(times_us), arrival, deadline)
    takes = (arrival[:, None] <= calls.start) & (calls.start + calls.slots <= deadline[:, None])
    query, call = np.nonzero(takes)
    if not len(call):
        return 0.0, 0.0
    if len(call) + len(calls.start) > MAX_UNKNOWNS:
        raise InputError(
            f"an integer program of {len(call) + len(calls.start):,} unknowns is too large (at most "
            f"{MAX_UNKNOWNS:,}): take fewer queries or fewer steps, or the bound"
        )
    return _program(grid.accuracy, calls, death, query, call, len(scenario), time_limit_s)


def _calls(grid: ControlGrid, slots: np.ndarray, arrival: np.ndarray, deadline: np.ndarray) -> _Calls:
    """Every (point, size, start) that may be worth making: more could be in it than in the next smaller size."""
    found = []
    starts = np.arange(arrival.min(), deadline.max() + 1)
    for row in range(len(grid.points)):
        for column, size in enumerate(grid.sizes):
            taken = slots[row, column]
            wide = (
                column + 1 < len(grid.sizes) and slots[row, column + 1] == taken and grid.sizes[column] < len(arrival)
            )
            better = row + 1 < len(grid.points) and slots[row + 1, column] <= taken
            if wide or better:
                continue
            there = (arrival[:, None] <= starts) & (starts + taken <= deadline[:, None])
            least = grid.sizes[column - 1] if column else 0
            useful = starts[there.sum(axis=0) > least]
            found.append((useful, np.full(len(useful), taken), np.full(len(useful), size), np.full(len(useful), row)))
    return _Calls(*(np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)))


def _program(
    accuracy: np.ndarray,
    calls: _Calls,
    death: np.ndarray,
    query: np.ndarray,
    call: np.ndarray,
    queries: int,
    limit_s: float,
) -> tuple[float, float]:
    """Unknowns: how often each call is made, then ``query[i]``'s part in ``call[i]``. Their value, and the bound."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    count, parts = len(calls.start), len(call)
    part = count + np.arange(parts)
    at, shut = _overlaps(calls)
    instants, instant = np.unique(at, return_inverse=True)
    alive = (death[:, None] > instants).sum(axis=0)
    shared = calls.size[call] > 1
    limits = [
        LinearConstraint(_matrix(query, part, np.ones(parts), queries, count + parts), ub=1.0),
        LinearConstraint(
            _matrix(np.r_[call, np.arange(count)], np.r_[part, np.arange(count)], np.r_[np.ones(parts), -calls.size],
                    count, count + parts), ub=0.0,
        ),
        LinearConstraint(_matrix(instant, shut, np.ones(len(at)), len(instants), count + parts), ub=alive),
        # Follows from the others for whole calls; without it a sixteenth of a large call would serve one query.
        LinearConstraint(
            _matrix(np.tile(np.arange(shared.sum()), 2), np.r_[part[shared], call[shared]],
                    np.repeat([1.0, -1.0], shared.sum()), int(shared.sum()), count + parts), ub=0.0,
        ),
    ]  # fmt: skip
    solved = milp(
        np.r_[np.zeros(count), -accuracy[calls.row[call]]],
        integrality=np.r_[np.ones(count), np.zeros(parts)],
        bounds=Bounds(0.0, np.r_[np.full(count, float(queries)), np.ones(parts)]),
        constraints=[limit for limit in limits if limit.A.shape[0]],
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    if solved.status not in (0, 1):
        raise RunError(f"the integer program was not solved: {solved.message}")
    reached = 0.0 if solved.x is None else -float(solved.fun)
    least = solved.mip_dual_bound
    # A solver that was stopped early may know less than this.
    most = queries * float(accuracy[-1])
    return reached, most if least is None or not np.isfinite(least) else min(most, -float(least))


def _overlaps(calls: _Calls) -> tuple[np.ndarray, np.ndarray]:
    """(instant, call) for each step during which a call keeps a worker."""
    call = np.repeat(np.arange(len(calls.start)), calls.slots)
    first = np.repeat(np.cumsum(calls.slots) - calls.slots, calls.slots)
    return calls.start[call] + np.arange(len(call)) - first, call


def _matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, height: int, width: int) -> csr_array:
    from scipy.sparse import coo_array

    return coo_array((values, (rows, columns)), shape=(height, width)).tocsr()


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
    """float64 [n, P]: least worker µs that a query costs at each point, ``inf`` where it cannot be in time."""
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
                there = np.searchsorted(arrival_us, latest_us, side="right") - np.searchsorted(deadline_us, gone_us)
                if there >= count:
                    costs[i, row] = took_us / count
    return costs


def _stretch(
    accuracy: np.ndarray, death_us: np.ndarray, width_us: float, first: np.ndarray, last: np.ndarray, costs: np.ndarray
) -> float:
    """The linear program of queries that arrive in one stretch of time; alike ones are one group."""
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
    there = np.diff(alive_us, axis=1).sum(axis=0) / width_us
    solved = linprog(
        np.concatenate([-slope * width_us, np.zeros(len(seller))]),
        A_ub=matrix,
        b_ub=np.concatenate([np.zeros(len(windows)), there]),
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
