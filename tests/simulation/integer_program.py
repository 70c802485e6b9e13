"""The offline optimum as an integer program, of tiny traces: several workers, deaths, mixed deadlines.

Source: superserve, Eq. 4.1. The dynamic program and the fluid bound are held against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slotool.errors import InputError, RunError
from slotool.scheduling.batching import ControlGrid
from slotool.simulation.optimum import Optimum
from slotool.simulation.scenario import Scenario

if TYPE_CHECKING:
    from scipy.sparse import csr_array

STEPS = 48
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
    steps: int = STEPS,
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
