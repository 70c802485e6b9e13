"""The event loop on a virtual clock, compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import typeof, types

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import BatchingPolicy
from slotool.scheduling.batching.kernel import CHOOSE
from slotool.scheduling.batching.shedding import to_shed
from slotool.scheduling.edf import RECENT
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SHED, WAITING, SimulationResult
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes, after_call, after_rest, draw_us, how_rested

# Rounding of instants must not make a call late that fits exactly.
ROUNDING_US = 1e-3


def simulate(policy: BatchingPolicy, scenario: Scenario, times: ServiceTimes | None = None) -> SimulationResult:
    """``policy`` on a virtual clock, called whenever a worker is idle and a query waits (superserve, §5).

    A worker that dies gives the batch it works on back to the queue. ``times``: how long calls take; as planned
    where left out; some are of workers that share a machine (``ServiceTimes.colocated``).
    Raises ``InputError`` when every deadline is shorter than the fastest call, and for times of another grid.
    """
    grid = policy.grid
    if len(scenario):
        grid.require_deadline(float((scenario.deadline_us - scenario.arrival_us).max()))
    times = times or ServiceTimes.planned(grid)
    if len(times.starts) - 1 != times.per_machine * grid.latency_us.size:
        raise InputError(f"service times of {len(times.starts) - 1} cells for a grid of {grid.latency_us.size}")
    count, workers = len(scenario), len(scenario.death_us)
    least: np.ndarray = np.zeros(0, dtype=np.int16)
    if scenario.min_accuracy is not None:
        least = np.searchsorted(grid.accuracy, scenario.min_accuracy).astype(np.int16)
    levels = np.zeros(0)
    if scenario.priority is not None and len(np.unique(scenario.priority)) > 1:
        levels = scenario.levels
    found = _Results(
        np.zeros(count, dtype=np.int8),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, -1, dtype=np.int16),
        np.zeros(count, dtype=np.int16),
    )
    arrival_us, deadline_us, death_us = map(
        np.ascontiguousarray, (scenario.arrival_us, scenario.deadline_us, scenario.death_us)
    )
    room = count + workers * int(grid.sizes[-1])
    of_calls = times.values, times.idle, times.memory_us, times.saturation, times.starts, times.seed
    service = _Service(death_us, *of_calls, times.per_machine)
    busy_us, calls = _run(
        type(policy).choose,
        policy.plan,
        _Grid(grid.latency_us, grid.accuracy, grid.sizes, grid.quickest_us),
        _Queries(arrival_us, deadline_us, scenario.order, least, levels),
        service,
        _Queue(np.empty(room), np.empty(room, dtype=np.int32)),
        found,
    )
    return SimulationResult(grid, scenario, *found, busy_us, calls)


class _Grid(NamedTuple):
    """The arrays of a ``ControlGrid``."""

    latency_us: Any
    accuracy: Any
    sizes: Any
    quickest_us: Any


class _Queries(NamedTuple):
    """Of a scenario. ``order``: empty when queries are in order already; ``lowest``: the first row that is accurate
    enough for each query, empty without minimum accuracies; ``levels``: empty when all priorities are equal."""

    arrival_us: Any
    deadline_us: Any
    order: Any
    lowest: Any
    levels: Any


class _Service(NamedTuple):
    """Workers' deaths, and the latencies of calls as in ``ServiceTimes``; ``per_machine``: how many workers, in their
    order, share a machine: one block of cells for each number of others that are busy there."""

    death_us: Any
    values: Any
    idle: Any
    memory_us: Any
    saturation: Any
    starts: Any
    seed: Any
    per_machine: Any


class _Queue(NamedTuple):
    """Memory of the queue: deadlines and numbers of the waiting queries, in order."""

    deadline_us: Any
    query: Any


class _Results(NamedTuple):
    """Per query, as in ``SimulationResult``."""

    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any


_F, _I, _S = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
_RUN = types.Tuple((types.float64, types.int64))(
    types.FunctionType(CHOOSE),
    typeof(_F),
    typeof(_Grid(np.empty((0, 0)), _F, _I, _F)),
    typeof(_Queries(_F, _F, _I, _S, _F)),
    typeof(_Service(_F, _F, _F, 0.0, 0.0, _I, 0, 0)),
    typeof(_Queue(_F, np.empty(0, dtype=np.int32))),
    typeof(_Results(np.empty(0, dtype=np.int8), _F, _F, _S, _S)),
)


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
                tail = _insert(queued_us, queued, head, tail, int(queued[at]), queued_us[at], order)
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


@njit(cache=True)
def _record(found: _Results, queue: _Queue, head: int, size: int, now: float, done: float, row: int) -> None:
    """The results of a call of the first ``size`` queries."""
    for at in range(head, head + size):
        query = queue.query[at]
        found.status[query] = IN_TIME if done <= queue.deadline_us[at] + ROUNDING_US else LATE
        found.started_us[query], found.done_us[query] = now, done
        found.row[query], found.batch[query] = row, size


@njit(cache=True)
def busy_others(worker: int, now: float, free_us: Any, per_machine: int) -> int:
    """Workers that compute on the machine of ``worker`` besides it."""
    busy, first = 0, worker - worker % per_machine
    for other in range(first, min(first + per_machine, len(free_us))):
        busy += other != worker and now < free_us[other] < np.inf
    return busy


@njit(cache=True)
def _take(service: _Service, cell: int, call: int, worker: int, rested_us: float, busy_share: Any) -> float:
    """µs that a call takes; ``busy_share`` of its worker becomes what it is as the call ends."""
    share = after_rest(busy_share[worker], rested_us, service.memory_us)
    rested = how_rested(share, service.saturation)
    took_us = draw_us(service.values, service.idle, service.starts, cell, service.seed, call, rested)
    busy_share[worker] = after_call(share, took_us, service.memory_us)
    return float(took_us)


@njit(cache=True)
def expire_waiting(status: Any) -> None:
    """What waits at the end will be served by nobody."""
    for query in range(len(status)):
        if status[query] == WAITING:
            status[query] = EXPIRED


@njit(_RUN, cache=True)
def _run(
    choose: Any, plan: Any, grid: _Grid, queries: _Queries, service: _Service, queue: _Queue, found: _Results
) -> tuple[float, int]:
    latency_us, accuracy, sizes, quickest_us = grid
    arrival_us, deadline_us, order, least, levels = queries
    death_us, per_machine = service.death_us, service.per_machine
    (queued_us, queued), status = queue, found.status
    waiting, columns, free_us = (queued_us, queued, order), len(sizes), np.zeros(len(death_us))
    # Batches of dead workers, where they lie in the queue's memory: nothing is written there again.
    lost: Any = np.full(len(death_us), np.inf), np.zeros(len(death_us), np.int64), np.zeros(len(death_us), np.int64)
    busy_share = np.zeros(len(death_us))  # of each worker, as its last call ended
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
        cell += latency_us.size * busy_others(int(worker), now, free_us, per_machine)
        done = now + _take(service, cell, calls, int(worker), now - free_us[worker], busy_share)
        calls, busy_us = calls + 1, busy_us + min(done, death_us[worker]) - now
        free_us[worker] = done if death_us[worker] >= done else np.inf
        if death_us[worker] < done:
            lost[0][worker], lost[1][worker], lost[2][worker] = death_us[worker], head, size
            next_back = min(next_back, death_us[worker])
        else:
            _record(found, queue, head, size, now, done, row)
        head += size
    expire_waiting(status)
    return busy_us, calls
