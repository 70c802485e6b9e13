"""The event loop on a virtual clock, compiled. ``reference`` is the same in plain Python, with the server's queue."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import BatchingPolicy
from slotool.scheduling.batching.kernel import CHOOSE
from slotool.scheduling.batching.shedding import to_shed
from slotool.scheduling.edf import RECENT
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SHED, WAITING, SimulationResult
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes, draw_us

# Rounding of instants must not make a call late that fits exactly.
ROUNDING_US = 1e-3


def simulate(policy: BatchingPolicy, scenario: Scenario, times: ServiceTimes | None = None) -> SimulationResult:
    """``policy`` on a virtual clock, called whenever a worker is idle and a query waits (superserve, §5).

    A worker that dies gives the batch it works on back to the queue. ``times``: how long calls take; as planned
    where left out. Raises ``InputError`` when every deadline is shorter than the fastest call, and for times of another
    grid.
    """
    grid = policy.grid
    if len(scenario):
        grid.require_deadline(float((scenario.deadline_us - scenario.arrival_us).max()))
    times = times or ServiceTimes.planned(grid)
    if len(times.starts) != grid.latency_us.size + 1:
        raise InputError(f"service times of {len(times.starts) - 1} cells for a grid of {grid.latency_us.size}")
    count, workers = len(scenario), len(scenario.death_us)
    least: np.ndarray = np.zeros(0, dtype=np.int16)
    if scenario.min_accuracy is not None:
        least = np.searchsorted(grid.accuracy, scenario.min_accuracy).astype(np.int16)
    levels = np.zeros(0)
    if scenario.priority is not None and len(np.unique(scenario.priority)) > 1:
        levels = scenario.levels
    status: np.ndarray = np.zeros(count, dtype=np.int8)
    started_us, done_us = np.full(count, np.nan), np.full(count, np.nan)
    row: np.ndarray = np.full(count, -1, dtype=np.int16)
    batch: np.ndarray = np.zeros(count, dtype=np.int16)
    room = count + workers * int(grid.sizes[-1])
    busy_us, calls = _run(
        type(policy).choose,
        grid.latency_us,
        grid.accuracy,
        grid.sizes,
        policy.plan,
        np.ascontiguousarray(scenario.arrival_us),
        np.ascontiguousarray(scenario.deadline_us),
        scenario.order,
        least,
        levels,
        grid.quickest_us,
        np.ascontiguousarray(scenario.death_us),
        times.values,
        times.starts,
        times.seed,
        np.empty(room),
        np.empty(room, dtype=np.int32),
        status,
        started_us,
        done_us,
        row,
        batch,
    )
    return SimulationResult(grid, scenario, status, started_us, done_us, row, batch, busy_us, calls)


_F, _I = types.float64[::1], types.int64[::1]
_RUN = types.Tuple((types.float64, types.int64))(
    types.FunctionType(CHOOSE), types.float64[:, ::1], _F, _I, _F,
    _F, _F, _I, types.int16[::1], _F, _F, _F,
    _F, _I, types.int64,
    _F, types.int32[::1], types.int8[::1], _F, _F, types.int16[::1], types.int16[::1],
)  # fmt: skip


@njit(cache=True)
def _insert(queued_us: Any, queued: Any, head: int, tail: int, query: int, deadline_us: float, order: Any) -> int:
    """Put ``query`` in its place within ``head:tail``; the new tail."""
    at = tail
    if len(order):
        while at > head and order[queued[at - 1]] > order[query]:
            queued[at], queued_us[at] = queued[at - 1], queued_us[at - 1]
            at -= 1
    else:
        while at > head and queued[at - 1] > query:
            queued[at], queued_us[at] = queued[at - 1], queued_us[at - 1]
            at -= 1
    queued[at], queued_us[at] = query, deadline_us
    return tail + 1


@njit(cache=True)
def _let_in(now: float, arrived: int, arrival_us: Any, deadline_us: Any, waiting: Any, head: int, tail: int) -> Any:
    queued_us, queued, order = waiting
    while arrived < len(arrival_us) and arrival_us[arrived] <= now:
        tail = _insert(queued_us, queued, head, tail, arrived, deadline_us[arrived], order)
        arrived += 1
    return arrived, tail


@njit(cache=True)
def _take_back(now: float, lost: Any, waiting: Any, head: int, tail: int) -> Any:
    """Batches of workers dead by ``now`` go back to the queue: the new tail, and when the next is due."""
    queued_us, queued, order = waiting
    at_us, first, count = lost
    next_us = np.inf
    for worker in range(len(at_us)):
        if at_us[worker] <= now:
            for at in range(first[worker], first[worker] + count[worker]):
                tail = _insert(queued_us, queued, head, tail, queued[at], queued_us[at], order)
            at_us[worker] = np.inf
        next_us = min(next_us, at_us[worker])
    return tail, next_us


@njit(cache=True)
def _shed(
    now: float, quickest_us: Any, sizes: Any, waiting: Any, levels: Any, head: int, tail: int, free_us: Any, status: Any
) -> int:
    """Shed queries by priority; the rest moves up to ``tail``: the new head."""
    queued_us, queued, _ = waiting
    workers = 0
    for at_us in free_us:
        workers += at_us < np.inf
    while True:
        at = to_shed(quickest_us, sizes, now, queued_us[head:tail], levels[queued[head:tail]], workers)
        if at < 0:
            return head
        status[queued[head + at]] = SHED
        for place in range(head + at, head, -1):
            queued[place], queued_us[place] = queued[place - 1], queued_us[place - 1]
        head += 1


@njit(cache=True)
def _batch(queued: Any, head: int, most: int, least: Any, row: int) -> int:
    """How many of the first ``most`` go together: those the point of ``row`` is accurate enough for."""
    size = 1
    while size < most and (len(least) == 0 or least[queued[head + size]] <= row):
        size += 1
    return size


@njit(_RUN, cache=True)
def _run(  # noqa: PLR0912
    choose: Any, latency_us: Any, accuracy: Any, sizes: Any, plan: Any,
    arrival_us: Any, deadline_us: Any, order: Any, least: Any, levels: Any, quickest_us: Any, death_us: Any,
    values: Any, starts: Any, seed: int,
    queued_us: Any, queued: Any, status: Any, started_us: Any, done_us: Any, row_of: Any, batch_of: Any,
) -> tuple[float, int]:  # fmt: skip
    waiting, columns, free_us = (queued_us, queued, order), len(sizes), np.zeros(len(death_us))
    # Batches of dead workers, where they lie in the queue's memory: nothing is written there again.
    lost: Any = np.full(len(death_us), np.inf), np.zeros(len(death_us), np.int64), np.zeros(len(death_us), np.int64)
    head = tail = arrived = calls = 0
    now, busy_us, next_back = 0.0, 0.0, np.inf
    while True:
        worker = np.argmin(free_us)
        now = max(now, free_us[worker])
        if head == tail:
            now = max(now, min(arrival_us[arrived] if arrived < len(arrival_us) else np.inf, next_back))
        if now == np.inf:
            break
        if death_us[worker] <= now:
            free_us[worker] = np.inf
            continue
        arrived, tail = _let_in(now, arrived, arrival_us, deadline_us, waiting, head, tail)
        if next_back <= now:
            tail, next_back = _take_back(now, lost, waiting, head, tail)
        while head < tail and queued_us[head] <= now:
            status[queued[head]] = EXPIRED
            head += 1
        if head == tail:
            continue
        if len(levels):
            head = _shed(now, quickest_us, sizes, waiting, levels, head, tail, free_us, status)
        lowest, cell = least[queued[head]] if len(least) else 0, -1
        if lowest < len(accuracy):
            cell = choose(latency_us, accuracy, sizes, plan, now, queued_us[head:tail], lowest, 0,
                          arrival_us[max(0, arrived - RECENT) : arrived], free_us)  # fmt: skip
        if cell < 0:
            status[queued[head]] = REJECTED
            head += 1
            continue
        row = cell // columns
        size = _batch(queued, head, min(sizes[cell % columns], tail - head), least, row)
        cell = row * columns + int(np.searchsorted(sizes, size))
        done = now + draw_us(values, starts, cell, seed, calls)
        calls += 1
        busy_us += min(done, death_us[worker]) - now
        free_us[worker] = done if death_us[worker] >= done else np.inf
        if death_us[worker] < done:
            lost[0][worker], lost[1][worker], lost[2][worker] = death_us[worker], head, size
            next_back = min(next_back, death_us[worker])
        else:
            for at in range(head, head + size):
                query = queued[at]
                status[query] = IN_TIME if done <= queued_us[at] + ROUNDING_US else LATE
                started_us[query], done_us[query], row_of[query], batch_of[query] = now, done, row, size
        head += size
    for query in range(len(status)):
        if status[query] == WAITING:
            status[query] = EXPIRED
    return busy_us, calls
