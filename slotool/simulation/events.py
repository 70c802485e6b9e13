"""The event loop on a virtual clock, compiled: one model or several on the same workers.

Each model has a queue and a policy of its own. As in a server of several models (``serving.router``), an idle worker
gets the queue whose first query has the earliest deadline, and that model's policy chooses a point and a batch. Where
the policy has no way to meet the first query, the next of the same queue has its turn.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaExperimentalFeatureWarning

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching import BatchingPolicy
from slotool.scheduling.batching.kernel import CHOOSE
from slotool.scheduling.edf import RECENT
from slotool.simulation.scenario import EXPIRED, IN_TIME, LATE, REJECTED, WAITING, Scenario, SimulationResult
from slotool.simulation.service import ServiceTimes, after_call, after_rest, draw_us, how_rested

# Rounding of instants must not make a call late that fits exactly.
ROUNDING_US = 1e-3
# Of one simulation: the compiled loop has a place for each.
MAX_MODELS = 8


def simulate(policy: BatchingPolicy, scenario: Scenario, times: ServiceTimes | None = None) -> SimulationResult:
    """Simulate ``policy`` on a virtual clock, called whenever a worker is idle and a query waits (superserve, §5).

    A worker that dies gives the batch it works on back to the queue. ``times``: how long calls take; as planned
    where left out; some are of workers that share a machine (``ServiceTimes.colocated``).
    Raises ``InputError`` when every deadline is shorter than the fastest call, and for times of another grid.
    """
    return simulate_together([policy], [scenario], [times or ServiceTimes.planned(policy.grid)])[0]


def simulate_together(
    policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], times: Sequence[ServiceTimes]
) -> list[SimulationResult]:
    """Simulate models that share workers; ``busy_us`` and ``calls`` of a result are of its own calls.

    ``policies``, ``scenarios``, ``times``: one per model; all scenarios have the same workers and deaths. Raises
    ``InputError`` for others, for no model or more than ``MAX_MODELS``, and as ``simulate`` does.
    """
    death_us = _deaths_us(policies, scenarios, times)
    models = _models(policies, times)
    queries = _Queries(
        np.concatenate([scenario.arrival_us for scenario in scenarios]),
        np.concatenate([scenario.deadline_us for scenario in scenarios]),
        np.cumsum([0, *map(len, scenarios)]),
    )
    count, number = len(queries.arrival_us), len(policies)
    # Batches of dead workers go back to the queue, where they lie behind all that came before.
    rooms = [
        len(own) + len(death_us) * int(policy.grid.sizes[-1]) for own, policy in zip(scenarios, policies, strict=True)
    ]
    queue = _Queue(np.empty(sum(rooms)), np.empty(sum(rooms), dtype=np.int64), np.cumsum([0, *rooms]))
    found = _Results(
        np.zeros(count, dtype=np.int8),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, -1, dtype=np.int16),
        np.zeros(count, dtype=np.int16),
        np.zeros(number),
        np.zeros(number, dtype=np.int64),
    )
    choose = [type(policy).choose for policy in policies]
    with warnings.catch_warnings():
        # Of functions in a tuple, each of which has been compiled.
        warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
        _run((*choose, *choose[:1] * (MAX_MODELS - number)), models, queries, death_us, queue, found)
    results = []
    for at, (policy, scenario) in enumerate(zip(policies, scenarios, strict=True)):
        own = slice(queries.starts[at], queries.starts[at + 1])
        results.append(
            SimulationResult(
                policy.grid, scenario, found.status[own], found.started_us[own], found.done_us[own], found.row[own],
                found.batch[own], float(found.busy_us[at]), int(found.calls[at]),
            )
        )  # fmt: skip
    return results


def _deaths_us(
    policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], times: Sequence[ServiceTimes]
) -> np.ndarray:
    """Deaths of the workers. Raises ``InputError`` for what cannot be simulated."""
    if not 1 <= len(policies) <= MAX_MODELS:
        raise InputError(f"{len(policies)} models cannot be simulated together; 1 to {MAX_MODELS} can")
    death_us = np.ascontiguousarray(scenarios[0].death_us)
    for policy, scenario, each in zip(policies, scenarios, times, strict=True):
        if len(scenario):
            policy.grid.require_deadline(float((scenario.deadline_us - scenario.arrival_us).max()))
        if len(each.starts) - 1 != each.per_machine * policy.grid.latency_us.size:
            raise InputError(
                f"service times of {len(each.starts) - 1} cells for a grid of {policy.grid.latency_us.size}"
            )
        if not np.array_equal(scenario.death_us, death_us):
            raise InputError("models that share workers have the same number of them, with the same deaths")
    return death_us


# Which row of ``_Models.starts`` is of which of its arrays.
_LATENCY, _ACCURACY, _SIZES, _PLAN, _VALUES, _CELLS, _IDLE = range(7)


class _Models(NamedTuple):
    """Models: grids, plans of their policies, and latencies of their calls as in ``ServiceTimes``; those of
    workers that share a machine are in blocks by how many others are busy, whichever model's calls these compute.

    Arrays of the models lie one behind the other: of the one in row a of ``starts``, that of model m is from
    ``starts[a, m]`` to ``starts[a, m + 1]``."""

    latency_us: Any
    accuracy: Any
    sizes: Any
    plan: Any
    values: Any
    cells: Any
    idle: Any
    starts: Any
    seeds: Any
    per_machine: Any
    memory_us: Any
    saturation: Any


def _models(policies: Sequence[BatchingPolicy], times: Sequence[ServiceTimes]) -> _Models:
    of_models = [
        (
            policy.grid.latency_us.ravel(), policy.grid.accuracy, policy.grid.sizes, policy.plan,
            each.values, np.append(each.starts[:-1], len(each.values)), each.idle,
        )
        for policy, each in zip(policies, times, strict=True)
    ]  # fmt: skip
    latency_us, accuracy, sizes, plan, values, cells, idle = map(np.concatenate, zip(*of_models, strict=True))
    return _Models(
        latency_us, accuracy, sizes, plan, values, cells, idle,
        np.array([np.cumsum([0, *map(len, arrays)]) for arrays in zip(*of_models, strict=True)]),
        np.array([each.seed for each in times], dtype=np.int64),
        np.array([each.per_machine for each in times], dtype=np.int64),
        np.array([each.memory_us for each in times]),
        np.array([each.saturation for each in times]),
    )  # fmt: skip


class _Queries(NamedTuple):
    """Queries of all models; those of model m are from ``starts[m]`` to ``starts[m + 1]``."""

    arrival_us: Any
    deadline_us: Any
    starts: Any


class _Queue(NamedTuple):
    """Memory of the queues: deadlines and numbers of the waiting queries, in order; that of model m from
    ``starts[m]`` on."""

    deadline_us: Any
    query: Any
    starts: Any


class _Results(NamedTuple):
    """Per query, as in ``SimulationResult``; and ``busy_us`` and ``calls`` per model."""

    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    busy_us: Any
    calls: Any


class _Lost(NamedTuple):
    """Batch of each dead worker: when it died (``inf``: none), of which model, and where the batch lies in the queue's
    memory, in which nothing is written there again."""

    at_us: Any
    model: Any
    first: Any
    count: Any


_F, _I, _S = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
_II = np.empty((0, 0), dtype=np.int64)
_RUN = types.void(
    types.UniTuple(types.FunctionType(CHOOSE), MAX_MODELS),
    typeof(_Models(_F, _F, _I, _F, _F, _I, _F, _II, _I, _I, _F, _F)),
    typeof(_Queries(_F, _F, _I)),
    typeof(_F),
    typeof(_Queue(_F, _I, _I)),
    typeof(_Results(np.empty(0, dtype=np.int8), _F, _F, _S, _S, _F, _I)),
)  # fmt: skip


@njit(inline="always")
def _of(model: int, values: Any, starts: Any, array: int) -> Any:
    return values[starts[array, model] : starts[array, model + 1]]


@njit(inline="always")
def _insert(queue: _Queue, head: int, tail: int, query: int, deadline_us: float) -> None:
    """Put ``query`` in its place within ``head:tail``."""
    at = tail
    while at > head and queue.query[at - 1] > query:
        queue.query[at], queue.deadline_us[at] = queue.query[at - 1], queue.deadline_us[at - 1]
        at -= 1
    queue.query[at], queue.deadline_us[at] = query, deadline_us


@njit(inline="always")
def _let_in(
    now: float, queries: _Queries, queue: _Queue, arrived: Any, head: Any, tail: Any, lost: _Lost, status: Any
) -> None:
    """Queries that have come wait, and batches of workers dead by ``now``; those whose deadline has come do not any
    more."""
    for model in range(len(head)):
        end = queries.starts[model + 1]
        while arrived[model] < end and queries.arrival_us[arrived[model]] <= now:
            query = arrived[model]
            _insert(queue, head[model], tail[model], query, queries.deadline_us[query])
            arrived[model] += 1
            tail[model] += 1
    for worker in range(len(lost.at_us)):
        if lost.at_us[worker] <= now:
            model = lost.model[worker]
            for at in range(lost.first[worker], lost.first[worker] + lost.count[worker]):
                _insert(queue, head[model], tail[model], queue.query[at], queue.deadline_us[at])
                tail[model] += 1
            lost.at_us[worker] = np.inf
    for model in range(len(head)):
        while head[model] < tail[model] and queue.deadline_us[head[model]] <= now:
            status[queue.query[head[model]]] = EXPIRED
            head[model] += 1


@njit(inline="always")
def _next_us(queries: _Queries, arrived: Any, lost: _Lost) -> float:
    """When the next query comes, or a batch is given back; ``inf``: none."""
    next_us = np.inf
    for model in range(len(arrived)):
        if arrived[model] < queries.starts[model + 1]:
            next_us = min(next_us, queries.arrival_us[arrived[model]])
    for at_us in lost.at_us:
        next_us = min(next_us, at_us)
    return next_us


@njit(inline="always")
def _earliest_deadline(queries: _Queries, queue: _Queue, head: Any, tail: Any) -> int:
    """The model whose first waiting query has the earliest deadline, of equal ones the earliest arrival; −1: none."""
    found, soonest_us, came_us = -1, np.inf, np.inf
    for model in range(len(head)):
        if head[model] < tail[model]:
            due_us, from_us = queue.deadline_us[head[model]], queries.arrival_us[queue.query[head[model]]]
            if due_us < soonest_us or (due_us == soonest_us and from_us < came_us):
                found, soonest_us, came_us = model, due_us, from_us
    return found


@njit(inline="always")
def _took_us(
    models: _Models, model: int, cell: int, call: int, worker: int, now: float, free_us: Any, busy_share: Any
) -> float:
    """µs that a call takes, by how many workers of its machine are busy and how busy its own was of late;
    ``busy_share`` of its worker, over the memory of each model, becomes what it is as the call ends."""
    busy, per_machine = 0, models.per_machine[model]
    first = worker - worker % per_machine
    for other in range(first, min(first + per_machine, len(free_us))):
        busy += other != worker and now < free_us[other] < np.inf
    cells = models.starts[_LATENCY, model + 1] - models.starts[_LATENCY, model]
    for each in range(len(busy_share)):
        busy_share[each, worker] = after_rest(busy_share[each, worker], now - free_us[worker], models.memory_us[each])
    values, idle = _of(model, models.values, models.starts, _VALUES), _of(model, models.idle, models.starts, _IDLE)
    starts = _of(model, models.cells, models.starts, _CELLS)
    rested = how_rested(busy_share[model, worker], models.saturation[model])
    took_us = draw_us(values, idle, starts, cell + cells * busy, models.seeds[model], call, rested)
    for each in range(len(busy_share)):
        busy_share[each, worker] = after_call(busy_share[each, worker], took_us, models.memory_us[each])
    return float(took_us)


@njit(inline="always")
def _begin(
    models: _Models, queue: _Queue, model: int, worker: int, now: float, row: int, first: int, size: int,
    death_us: Any, free_us: Any, busy_share: Any, lost: _Lost, found: _Results,
) -> None:  # fmt: skip
    """Have ``worker`` begin a call of so many queries, from place ``first`` on, at the point of ``row``."""
    sizes = _of(model, models.sizes, models.starts, _SIZES)
    cell = row * len(sizes) + int(np.searchsorted(sizes, size))
    done = now + _took_us(models, model, cell, found.calls[model], worker, now, free_us, busy_share)
    found.calls[model] += 1
    found.busy_us[model] += min(done, death_us[worker]) - now
    if death_us[worker] < done:
        free_us[worker] = np.inf
        lost.at_us[worker], lost.model[worker] = death_us[worker], model
        lost.first[worker], lost.count[worker] = first, size
    else:
        free_us[worker] = done
        for at in range(first, first + size):
            query = queue.query[at]
            found.status[query] = IN_TIME if done <= queue.deadline_us[at] + ROUNDING_US else LATE
            found.started_us[query], found.done_us[query] = now, done
            found.row[query], found.batch[query] = row, size


@njit(_RUN, cache=True)
def _run(choose: Any, models: _Models, queries: _Queries, death_us: Any, queue: _Queue, found: _Results) -> None:
    status, workers, starts = found.status, len(death_us), models.starts
    head, tail, arrived = queue.starts[:-1].copy(), queue.starts[:-1].copy(), queries.starts[:-1].copy()
    lost = _Lost(
        np.full(workers, np.inf), np.zeros(workers, np.int64), np.zeros(workers, np.int64), np.zeros(workers, np.int64)
    )
    free_us, busy_share, now = np.zeros(workers), np.zeros((len(head), workers)), 0.0
    while True:
        worker = np.argmin(free_us)
        now = max(now, free_us[worker])
        if _earliest_deadline(queries, queue, head, tail) < 0:
            now = max(now, _next_us(queries, arrived, lost))
        if now == np.inf:
            break
        if death_us[worker] <= now:
            free_us[worker] = np.inf
            continue
        _let_in(now, queries, queue, arrived, head, tail, lost, status)
        model = _earliest_deadline(queries, queue, head, tail)
        if model < 0:
            continue
        accuracy, sizes = _of(model, models.accuracy, starts, _ACCURACY), _of(model, models.sizes, starts, _SIZES)
        plan = _of(model, models.plan, starts, _PLAN)
        latency_us = _of(model, models.latency_us, starts, _LATENCY).reshape((len(accuracy), len(sizes)))
        recent_us = queries.arrival_us[max(queries.starts[model], arrived[model] - RECENT) : arrived[model]]
        while head[model] < tail[model]:
            first = head[model]
            waiting_us = queue.deadline_us[first : tail[model]]
            cell = choose[model](latency_us, accuracy, sizes, plan, now, waiting_us, 0, 0, recent_us, free_us)
            if cell < 0:
                status[queue.query[first]] = REJECTED
                head[model] += 1
                continue
            size = min(sizes[cell % len(sizes)], tail[model] - first)
            head[model] += size
            _begin(
                models, queue, model, int(worker), now, cell // len(sizes), first, size, death_us, free_us, busy_share,
                lost, found,
            )  # fmt: skip
            break
    for query in range(len(status)):
        if status[query] == WAITING:  # served by nobody
            status[query] = EXPIRED
