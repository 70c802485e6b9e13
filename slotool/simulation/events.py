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
from slotool.errors import InputError, PluginError
from slotool.printable import reason
from slotool.scheduling.batching import BatchingPolicy
from slotool.scheduling.batching.kernel import CHOOSE, REJECT, first_free
from slotool.scheduling.batching.policy import outside_grid
from slotool.scheduling.edf import RECENT
from slotool.simulation.scenario import EXPIRED, IN_TIME, LATE, REJECTED, WAITING, Scenario, SimulationResult
from slotool.simulation.service import ServiceTimes, after_call, after_rest, draw_us, how_rested

# Rounding of instants must not make a call late that fits exactly.
ROUNDING_US = 1e-3
# Maximum number of models in a simulation: the compiled loop has a slot for each.
MAX_MODELS = 8


def simulate(policy: BatchingPolicy, scenario: Scenario, times: ServiceTimes | None = None) -> SimulationResult:
    """Simulate ``policy`` on a virtual clock, called whenever a worker is idle and a query waits (superserve, §5).

    A worker that dies gives the batch it works on back to the queue. ``times``: how long calls take; as planned
    where left out; some are of workers that share a machine (``ServiceTimes.colocated``).
    Raises ``InputError`` when every deadline is shorter than the fastest call, and for times of another grid;
    ``PluginError`` when the policy chooses a cell outside its grid, or its compiled code fails.
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
    queries = _Queries(arrival_us, deadline_us, starts)
    queue = _Queue(deadline_us.copy(), np.arange(count), starts[:-1].copy(), starts[:-1].copy())
    workers = _Workers(np.zeros(len(death_us)), np.zeros((number, len(death_us))))
    results = _Results(
        np.zeros(count, dtype=np.int8),
        np.full(count, np.nan),
        np.full(count, np.nan),
        np.full(count, -1, dtype=np.int16),
        np.zeros(count, dtype=np.int16),
        np.zeros(count, dtype=np.int64),
        np.zeros(number),
        np.zeros(number, dtype=np.int64),
    )
    # Compiled code has one type for all numbers of models.
    choose = tuple(type(policies[at if at < number else 0]).choose for at in range(MAX_MODELS))
    grids, of_calls, now_us = _grids(policies), _calls(times), 0.0
    deaths = [(death_us[worker], worker) for worker in np.argsort(death_us) if death_us[worker] < np.inf]
    with warnings.catch_warnings():
        # Type of a tuple of compiled functions.
        warnings.simplefilter("ignore", NumbaExperimentalFeatureWarning)
        for until_us, dying in [*deaths, (np.inf, None)]:
            try:
                model, cell = _run(now_us, until_us, choose, grids, of_calls, queries, queue, workers, results)
            except Exception as error:
                names = " or ".join(repr(policy.name) for policy in policies)
                raise PluginError(
                    f"`choose` of policy {names} failed: {type(error).__name__}: {reason(error)}"
                ) from error
            if model >= 0:
                raise outside_grid(policies[model], cell)
            if dying is not None:
                _die(dying, until_us, queries, queue, workers, results)
            now_us = until_us
    results.status[results.status == WAITING] = EXPIRED  # served by nobody
    per_model = []
    for at, (policy, scenario) in enumerate(zip(policies, scenarios, strict=True)):
        status, started_us, done_us, row, batch = (values[starts[at] : starts[at + 1]] for values in results[:5])
        used = float(results.busy_us[at]), int(results.calls[at])
        per_model.append(SimulationResult(policy.grid, scenario, status, started_us, done_us, row, batch, *used))
    return per_model


def _deaths_us(
    policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], times: Sequence[ServiceTimes]
) -> np.ndarray:
    """Return the deaths of the workers. Raises ``InputError`` for what cannot be simulated."""
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
    """Latencies, accuracies and batch sizes of all grids, and the policies' plans, concatenated over models.

    Those of model m begin at ``first[m]``, int64 [models + 1, 4].
    """

    latency_us: Any
    accuracy: Any
    sizes: Any
    plan: Any
    first: Any


def _grids(policies: Sequence[BatchingPolicy]) -> _Grids:
    of_models = [
        (policy.grid.latency_us.ravel(), policy.grid.accuracy, policy.grid.sizes, policy.plan) for policy in policies
    ]
    first = np.cumsum([(0, 0, 0, 0), *(tuple(map(len, arrays)) for arrays in of_models)], axis=0)
    latency_us, accuracy, sizes, plan = (np.concatenate(arrays) for arrays in zip(*of_models, strict=True))
    return _Grids(latency_us, accuracy, sizes, plan, first)


class _CallTimes(NamedTuple):
    """Latencies of calls as in ``ServiceTimes``, concatenated over models; those of model m begin at ``first[m]``.

    They stand in blocks by the number of other busy workers of the machine, whichever model's. ``seed`` and what
    follows: by model.
    """

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
    """Deadlines and numbers of all queries by model; those of model m wait from ``head[m]`` to ``tail[m]``."""

    deadline_us: Any
    query: Any
    head: Any
    tail: Any


class _Workers(NamedTuple):
    """Workers: ``free_us``, ``inf`` once dead, and ``busy_share`` [models, workers] over the memory of each model."""

    free_us: Any
    busy_share: Any


class _Results(NamedTuple):
    """Per query, as in ``SimulationResult``, and the worker; ``busy_us`` and ``calls`` per model."""

    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    worker: Any
    busy_us: Any
    calls: Any


def _die(worker: int, now_us: float, queries: _Queries, queue: _Queue, workers: _Workers, results: _Results) -> None:
    """Let ``worker`` die, and give the batch on which it works back to the queue."""
    done_us, workers.free_us[worker] = workers.free_us[worker], np.inf
    if done_us <= now_us:
        return
    batch = np.flatnonzero((results.worker == worker) & (results.done_us == done_us))
    model = int(np.searchsorted(queries.starts, batch[0], side="right")) - 1
    results.busy_us[model] -= done_us - now_us
    results.status[batch], results.row[batch], results.batch[batch] = WAITING, -1, 0
    results.started_us[batch] = results.done_us[batch] = np.nan
    head, tail = queue.head[model] - len(batch), queue.tail[model]
    waiting = np.sort(np.concatenate([batch, queue.query[queue.head[model] : tail]]))
    queue.query[head:tail], queue.deadline_us[head:tail] = waiting, queries.deadline_us[waiting]
    queue.head[model] = head


_F, _I, _S = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
_RUN = types.UniTuple(types.int64, 2)(
    types.float64,
    types.float64,
    types.UniTuple(types.FunctionType(CHOOSE), MAX_MODELS),
    typeof(_Grids(_F, _F, _I, _F, np.empty((0, 0), dtype=np.int64))),
    typeof(_CallTimes(_F, _I, _F, _I, _I, _I, _F, _F)),
    typeof(_Queries(_F, _F, _I)),
    typeof(_Queue(_F, _I, _I, _I)),
    typeof(_Workers(_F, np.empty((0, 0)))),
    typeof(_Results(np.empty(0, dtype=np.int8), _F, _F, _S, _S, _I, _F, _I)),
)  # fmt: skip


# Functions of arrays, not of the tuples above: Numba would count references to each array of a tuple handed on, and
# compile twice as long.
@njit(cache=True)
def _record(
    due_us: Any, batch: Any, now: float, done: float, row: int, by: int, status: Any, started_us: Any, done_us: Any,
    rows: Any, batches: Any, workers: Any,
) -> None:  # fmt: skip
    """Write what became of a batch's queries."""
    for at in range(len(batch)):
        query = batch[at]
        status[query] = IN_TIME if done <= due_us[at] + ROUNDING_US else LATE
        started_us[query], done_us[query] = now, done
        rows[query], batches[query], workers[query] = row, len(batch), by


@njit(inline="always")
def _most_urgent(
    now: float, arrival_us: Any, starts: Any, queue_us: Any, queue_query: Any, head: Any, tail: Any, status: Any
) -> int:
    """Admit and expire queries; return the model whose first query is due (then: arrived) first; −1: none."""
    chosen, soonest_us, came_us = -1, np.inf, np.inf
    for model in range(len(head)):
        while tail[model] < starts[model + 1] and arrival_us[tail[model]] <= now:
            tail[model] += 1
        while head[model] < tail[model] and queue_us[head[model]] <= now:
            status[queue_query[head[model]]] = EXPIRED
            head[model] += 1
        if head[model] < tail[model]:
            due_us, from_us = queue_us[head[model]], arrival_us[queue_query[head[model]]]
            if due_us < soonest_us or (due_us == soonest_us and from_us < came_us):
                chosen, soonest_us, came_us = model, due_us, from_us
    return chosen


@njit(inline="always")
def _busy_beside(worker: int, per_machine: int, now: float, free_us: Any) -> int:
    """Return the number of other busy workers of the machine."""
    busy, first = 0, worker - worker % per_machine
    for other in range(first, min(first + per_machine, len(free_us))):
        busy += other != worker and now < free_us[other] < np.inf
    return busy


@njit(_RUN, cache=True)
def _run(
    now: float, until_us: float, choose: Any, grids: _Grids, of_calls: _CallTimes, queries: _Queries, queue: _Queue,
    of_workers: _Workers, results: _Results,
) -> tuple[int, int]:  # fmt: skip
    """Decide all that is decided from ``now`` until before ``until_us``.

    Returns the model whose policy chose a cell outside its grid, and that cell; a negative model where none did.
    """
    latencies_us, accuracies, all_sizes, plans, of_grid = grids
    values, cells, idle, first_cell, seed, per_machine, memory_us, saturation = of_calls
    arrival_us, _, starts = queries
    queue_us, queue_query, head, tail = queue
    free_us, busy_share = of_workers
    status, started_us, done_us, rows, batches, by, busy_us, calls = results
    while True:
        worker = first_free(free_us)
        now = max(now, free_us[worker])
        if now >= until_us:
            return -1, 0
        model = _most_urgent(now, arrival_us, starts, queue_us, queue_query, head, tail, status)
        if model < 0:
            now = np.inf
            for each in range(len(tail)):
                if tail[each] < starts[each + 1]:
                    now = min(now, arrival_us[tail[each]])
            continue
        accuracy = accuracies[of_grid[model, 1] : of_grid[model + 1, 1]]
        sizes = all_sizes[of_grid[model, 2] : of_grid[model + 1, 2]]
        plan = plans[of_grid[model, 3] : of_grid[model + 1, 3]]
        latency_us = latencies_us[of_grid[model, 0] : of_grid[model + 1, 0]].reshape(len(accuracy), len(sizes))
        recent_us, cell = arrival_us[max(starts[model], tail[model] - RECENT) : tail[model]], -1
        while cell < 0 and head[model] < tail[model]:
            waiting_us = queue_us[head[model] : tail[model]]
            cell = choose[model](latency_us, accuracy, sizes, plan, now, waiting_us, 0, 0, recent_us, free_us)
            if not REJECT <= cell < latency_us.size:
                return model, cell
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
        free_us[worker] = now + took_us
        calls[model] += 1
        busy_us[model] += took_us
        _record(
            queue_us[first : first + size], queue_query[first : first + size], now, now + took_us, row, worker, status,
            started_us, done_us, rows, batches, by,
        )  # fmt: skip
