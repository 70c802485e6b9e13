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
from slotool.scheduling.batching.kernel import CHOOSE, first_free
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
    arrival_us, deadline_us = (
        np.concatenate([getattr(scenario, name) for scenario in scenarios]) for name in ("arrival_us", "deadline_us")
    )
    starts, count, number = np.cumsum([0, *map(len, scenarios)]), len(arrival_us), len(policies)
    # Batches of dead workers go back to the queue, where they lie behind all that came before.
    rooms = [
        len(own) + len(death_us) * int(policy.grid.sizes[-1]) for own, policy in zip(scenarios, policies, strict=True)
    ]
    places = np.cumsum([0, *rooms])[:-1]
    found = _Results(
        np.zeros(count, dtype=np.int8),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, -1, dtype=np.int16),
        np.zeros(count, dtype=np.int16),
        np.zeros(number),
        np.zeros(number, dtype=np.int64),
    )
    with warnings.catch_warnings():
        # Of functions in a tuple, each of which has been compiled.
        warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
        _run(
            _padded([type(policy).choose for policy in policies]),
            _Grids(
                _padded([policy.grid.latency_us for policy in policies]),
                _padded([policy.grid.accuracy for policy in policies]),
                _padded([policy.grid.sizes for policy in policies]),
                _padded([policy.plan for policy in policies]),
            ),
            _calls(times),
            _Queries(arrival_us, deadline_us, starts),
            _Queue(
                np.empty(sum(rooms)),
                np.empty(sum(rooms), dtype=np.int64),
                places,
                places.copy(),
                starts[:-1].copy(),
            ),
            _at_rest(death_us, number),
            found,
        )
    found.status[found.status == WAITING] = EXPIRED  # served by nobody
    results = []
    for at, (policy, scenario) in enumerate(zip(policies, scenarios, strict=True)):
        status, started_us, done_us, row, batch = (values[starts[at] : starts[at + 1]] for values in found[:5])
        used = float(found.busy_us[at]), int(found.calls[at])
        results.append(SimulationResult(policy.grid, scenario, status, started_us, done_us, row, batch, *used))
    return results


def _padded(of_models: Sequence[Any]) -> tuple[Any, ...]:
    """``of_models`` as a tuple of ``MAX_MODELS``: compiled code has one type for all numbers of models."""
    return tuple(of_models) + tuple(of_models[:1]) * (MAX_MODELS - len(of_models))


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


class _Grids(NamedTuple):
    """By model: latencies of the grid, accuracies, batch sizes, and the plan of its policy."""

    latency_us: Any
    accuracy: Any
    sizes: Any
    plan: Any


class _CallTimes(NamedTuple):
    """Latencies of calls as in ``ServiceTimes``, the cells of all models one behind the other: those of model m from
    ``first[m]`` on, in blocks by how many other workers of the machine are busy, whichever model's calls they compute.
    ``seed`` and what follows: by model."""

    values: Any
    cells: Any
    idle: Any
    first: Any
    seed: Any
    per_machine: Any
    memory_us: Any
    saturation: Any


def _calls(times: Sequence[ServiceTimes]) -> _CallTimes:
    ends = np.cumsum([0, *(len(each.values) for each in times)])
    has_idle = any(len(each.idle) for each in times)
    return _CallTimes(
        np.concatenate([each.values for each in times]),
        np.concatenate([*(each.starts[:-1] + end for each, end in zip(times, ends, strict=False)), ends[-1:]]),
        np.concatenate([each.idle if len(each.idle) else each.values for each in times]) if has_idle else np.empty(0),
        np.cumsum([0, *(len(each.starts) - 1 for each in times)]),
        np.array([each.seed for each in times], dtype=np.int64),
        np.array([each.per_machine for each in times], dtype=np.int64),
        np.array([each.memory_us for each in times]),
        np.array([each.saturation for each in times]),
    )


class _Queries(NamedTuple):
    """Queries of all models; those of model m are from ``starts[m]`` to ``starts[m + 1]``."""

    arrival_us: Any
    deadline_us: Any
    starts: Any


class _Queue(NamedTuple):
    """Memory of the queues: deadlines and numbers of the waiting queries, in order, those of model m from ``head[m]``
    to ``tail[m]``; ``arrived[m]``: the first query that has not come yet."""

    deadline_us: Any
    query: Any
    head: Any
    tail: Any
    arrived: Any


class _Workers(NamedTuple):
    """``death_us`` and ``free_us``, instants; ``busy_share`` [models, workers]: over the memory of each model.

    The batch of each dead worker: when it died (``lost_us``; ``inf``: none), of which model, and where the batch lies
    in the queue's memory, in which nothing is written there again."""

    death_us: Any
    free_us: Any
    busy_share: Any
    lost_us: Any
    lost_model: Any
    lost_first: Any
    lost_count: Any


class _Results(NamedTuple):
    """Per query, as in ``SimulationResult``; and ``busy_us`` and ``calls`` per model."""

    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    busy_us: Any
    calls: Any


def _at_rest(death_us: np.ndarray, models: int) -> _Workers:
    """Return workers that have done nothing yet."""
    count = len(death_us)
    none = (np.zeros(count, dtype=np.int64) for _ in range(3))
    return _Workers(death_us, np.zeros(count), np.zeros((models, count)), np.full(count, np.inf), *none)


_F, _I, _S = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
_OF_MODELS = [_padded([array]) for array in (np.empty((0, 0)), _F, _I, _F)]
_RUN = types.void(
    types.UniTuple(types.FunctionType(CHOOSE), MAX_MODELS),
    typeof(_Grids(*_OF_MODELS)),
    typeof(_CallTimes(_F, _I, _F, _I, _I, _I, _F, _F)),
    typeof(_Queries(_F, _F, _I)),
    typeof(_Queue(_F, _I, _I, _I, _I)),
    typeof(_Workers(_F, _F, np.empty((0, 0)), _F, _I, _I, _I)),
    typeof(_Results(np.empty(0, dtype=np.int8), _F, _F, _S, _S, _F, _I)),
)  # fmt: skip


@njit(cache=True)
def _insert(queue_us: Any, queue_query: Any, head: int, tail: int, query: int, deadline_us: float) -> None:
    """Put ``query`` in its place within ``head:tail``."""
    at = tail
    while at > head and queue_query[at - 1] > query:
        queue_query[at], queue_us[at] = queue_query[at - 1], queue_us[at - 1]
        at -= 1
    queue_query[at], queue_us[at] = query, deadline_us


@njit(cache=True)
def _record(
    due_us: Any, batch: Any, now: float, done: float, row: int, status: Any, started_us: Any, done_us: Any,
    rows: Any, batches: Any,
) -> None:  # fmt: skip
    """Write what became of a batch's queries."""
    for at in range(len(batch)):
        query = batch[at]
        status[query] = IN_TIME if done <= due_us[at] + ROUNDING_US else LATE
        started_us[query], done_us[query] = now, done
        rows[query], batches[query] = row, len(batch)


# Of arrays, not of the tuples above: Numba would count references to each array of a tuple handed on, and compile twice
# as long.
@njit(inline="always")
def _next_us(arrival_us: Any, starts: Any, arrived: Any, lost_us: Any) -> float:
    """When the next query comes, or a batch is given back; ``inf``: none."""
    next_us = np.inf
    for model in range(len(arrived)):
        if arrived[model] < starts[model + 1]:
            next_us = min(next_us, arrival_us[arrived[model]])
    for at_us in lost_us:
        next_us = min(next_us, at_us)
    return next_us


@njit(inline="always")
def _let_in(
    now: float, arrival_us: Any, deadline_us: Any, starts: Any, arrived: Any, queue_us: Any, queue_query: Any,
    head: Any, tail: Any, lost_us: Any, lost_model: Any, lost_first: Any, lost_count: Any,
) -> None:  # fmt: skip
    """Have queries that have come wait, and batches of workers dead by ``now``."""
    for model in range(len(head)):
        while arrived[model] < starts[model + 1] and arrival_us[arrived[model]] <= now:
            query = arrived[model]
            _insert(queue_us, queue_query, head[model], tail[model], query, deadline_us[query])
            arrived[model] += 1
            tail[model] += 1
    for worker in range(len(lost_us)):
        if lost_us[worker] <= now:
            model = lost_model[worker]
            for at in range(lost_first[worker], lost_first[worker] + lost_count[worker]):
                _insert(queue_us, queue_query, head[model], tail[model], queue_query[at], queue_us[at])
                tail[model] += 1
            lost_us[worker] = np.inf


@njit(inline="always")
def _most_urgent(
    now: float, arrival_us: Any, queue_us: Any, queue_query: Any, head: Any, tail: Any, status: Any
) -> int:
    """Expire queries whose deadline has come; the model whose first waiting query has the earliest deadline, of equal
    ones the earliest arrival; −1: none."""
    found, soonest_us, came_us = -1, np.inf, np.inf
    for model in range(len(head)):
        while head[model] < tail[model] and queue_us[head[model]] <= now:
            status[queue_query[head[model]]] = EXPIRED
            head[model] += 1
        if head[model] < tail[model]:
            due_us, from_us = queue_us[head[model]], arrival_us[queue_query[head[model]]]
            if due_us < soonest_us or (due_us == soonest_us and from_us < came_us):
                found, soonest_us, came_us = model, due_us, from_us
    return found


@njit(inline="always")
def _busy_beside(worker: int, per_machine: int, now: float, free_us: Any) -> int:
    """How many other workers of the machine are busy."""
    busy, first = 0, worker - worker % per_machine
    for other in range(first, min(first + per_machine, len(free_us))):
        busy += other != worker and now < free_us[other] < np.inf
    return busy


@njit(_RUN, cache=True)
def _run(
    choose: Any, grids: _Grids, of_calls: _CallTimes, queries: _Queries, queue: _Queue, of_workers: _Workers,
    found: _Results,
) -> None:  # fmt: skip
    latencies_us, accuracies, all_sizes, plans = grids
    values, cells, idle, first_cell, seed, per_machine, memory_us, saturation = of_calls
    arrival_us, deadline_us, starts = queries
    queue_us, queue_query, head, tail, arrived = queue
    death_us, free_us, busy_share, lost_us, lost_model, lost_first, lost_count = of_workers
    status, started_us, done_us, rows, batches, busy_us, calls = found
    now = 0.0
    while True:
        worker = first_free(free_us)
        now = max(now, free_us[worker])
        if _most_urgent(-np.inf, arrival_us, queue_us, queue_query, head, tail, status) < 0:
            now = max(now, _next_us(arrival_us, starts, arrived, lost_us))
        if now == np.inf:
            break
        if death_us[worker] <= now:
            free_us[worker] = np.inf
            continue
        _let_in(
            now, arrival_us, deadline_us, starts, arrived, queue_us, queue_query, head, tail, lost_us, lost_model,
            lost_first, lost_count,
        )  # fmt: skip
        model = _most_urgent(now, arrival_us, queue_us, queue_query, head, tail, status)
        if model < 0:
            continue
        latency_us, accuracy, sizes, plan = latencies_us[model], accuracies[model], all_sizes[model], plans[model]
        recent_us, cell = arrival_us[max(starts[model], arrived[model] - RECENT) : arrived[model]], -1
        while cell < 0 and head[model] < tail[model]:
            waiting_us = queue_us[head[model] : tail[model]]
            cell = choose[model](latency_us, accuracy, sizes, plan, now, waiting_us, 0, 0, recent_us, free_us)
            if cell < 0:
                status[queue_query[head[model]]] = REJECTED
                head[model] += 1
        if cell < 0:
            continue
        first, row = head[model], cell // len(sizes)
        size, column = min(sizes[cell % len(sizes)], tail[model] - first), 0
        head[model] += size
        while sizes[column] < size:
            column += 1
        busy = _busy_beside(worker, per_machine[model], now, free_us)
        for each in range(len(busy_share)):
            busy_share[each, worker] = after_rest(busy_share[each, worker], now - free_us[worker], memory_us[each])
        at_cell = first_cell[model] + busy * latency_us.size + row * len(sizes) + column
        took_us = draw_us(
            values, idle, cells, at_cell, seed[model], calls[model],
            how_rested(busy_share[model, worker], saturation[model]),
        )  # fmt: skip
        for each in range(len(busy_share)):
            busy_share[each, worker] = after_call(busy_share[each, worker], took_us, memory_us[each])
        done = now + took_us
        calls[model] += 1
        busy_us[model] += min(done, death_us[worker]) - now
        if death_us[worker] < done:
            free_us[worker], lost_us[worker], lost_model[worker] = np.inf, death_us[worker], model
            lost_first[worker], lost_count[worker] = first, size
            continue
        free_us[worker] = done
        _record(
            queue_us[first : first + size], queue_query[first : first + size], now, done, row, status, started_us,
            done_us, rows, batches,
        )  # fmt: skip
