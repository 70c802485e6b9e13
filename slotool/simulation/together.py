"""Several models on the same workers, on a virtual clock, compiled: each has a queue and a policy of its own.

What a server of several models does when a worker is idle (``serving.router``): the queue whose first request has the
earliest deadline gets it, and that model's policy chooses a point and a batch. Where the policy has no way to meet the
first request, the next of the same queue has its turn.
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
from slotool.simulation.events import ROUNDING_US, busy_others, expire_waiting
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SimulationResult
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes, after_call, after_rest, draw_us, how_rested

# Of one simulation: the compiled loop has a place for each.
MAX_MODELS = 8


def simulate_together(
    policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], times: Sequence[ServiceTimes]
) -> list[SimulationResult]:
    """What becomes of the queries of each model; ``busy_us`` and ``calls`` of a result are its own.

    ``policies``, ``scenarios``, ``times``: one per model. All scenarios are of the same workers, none of which dies,
    and have deadlines in order of arrival, as where all queries of a model have the same time. Raises ``InputError``
    for others, for no model or more than ``MAX_MODELS``, and as ``simulate`` does.
    """
    workers = _workers(policies, scenarios, times)
    cells = [np.append(each.starts[:-1], len(each.values)) for each in times]
    models = _Models(
        _joined([policy.grid.latency_us.ravel() for policy in policies]),
        _joined([policy.grid.accuracy for policy in policies]),
        _joined([policy.grid.sizes for policy in policies]),
        _joined([policy.plan for policy in policies]),
        _joined([each.values for each in times]),
        _joined(cells),
        np.array([each.seed for each in times], dtype=np.int64),
        np.array([each.per_machine for each in times], dtype=np.int64),
        _joined([each.idle for each in times]),
        np.array([each.memory_us for each in times]),
        np.array([each.saturation for each in times]),
    )
    queries = _Queries(
        _joined([scenario.arrival_us for scenario in scenarios]),
        _joined([scenario.deadline_us for scenario in scenarios]),
    )
    count, number = len(queries.arrival_us.values), len(policies)
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
        _run((*choose, *choose[:1] * (MAX_MODELS - number)), models, queries, np.zeros(workers), found)
    starts, results = queries.arrival_us.starts, []
    for at, (policy, scenario) in enumerate(zip(policies, scenarios, strict=True)):
        status, started_us, done_us, row, batch = (values[starts[at] : starts[at + 1]] for values in found[:5])
        of_queries = status, started_us, done_us, row, batch
        results.append(
            SimulationResult(policy.grid, scenario, *of_queries, float(found.busy_us[at]), int(found.calls[at]))
        )
    return results


def _workers(policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], times: Sequence[ServiceTimes]) -> int:
    """How many there are. Raises ``InputError`` for what cannot be simulated."""
    if not 1 <= len(policies) <= MAX_MODELS:
        raise InputError(f"{len(policies)} models cannot be simulated together; 1 to {MAX_MODELS} can")
    for policy, scenario, each in zip(policies, scenarios, times, strict=True):
        if (np.diff(scenario.deadline_us) < 0).any() or scenario.priority is not None or np.isfinite(
            scenario.death_us
        ).any() or scenario.min_accuracy is not None:  # fmt: skip
            raise InputError("models are simulated together in order of deadlines, on workers that live")
        if len(each.starts) - 1 != each.per_machine * policy.grid.latency_us.size:
            raise InputError(
                f"service times of {len(each.starts) - 1} cells for a grid of {policy.grid.latency_us.size}"
            )
        if len(scenario):
            policy.grid.require_deadline(float((scenario.deadline_us - scenario.arrival_us).max()))
    (count, *others) = {len(scenario.death_us) for scenario in scenarios}
    if others:
        raise InputError("models that share workers have the same number of them")
    return count


class _Joined(NamedTuple):
    """Arrays one behind the other; that of model m is ``values[starts[m]:starts[m + 1]]``."""

    values: Any
    starts: Any


def _joined(arrays: Sequence[np.ndarray]) -> _Joined:
    return _Joined(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))


class _Models(NamedTuple):
    """Of each its grid, the plan of its policy, and the latencies of its calls as in ``ServiceTimes``; those of workers
    that share a machine are in blocks by how many others are busy, whichever model's calls these compute."""

    latency_us: _Joined
    accuracy: _Joined
    sizes: _Joined
    plan: _Joined
    values: _Joined
    cells: _Joined
    seeds: Any
    per_machine: Any
    idle: _Joined
    memory_us: Any
    saturation: Any


class _Queries(NamedTuple):
    arrival_us: _Joined
    deadline_us: _Joined


class _Results(NamedTuple):
    """Per query, as in ``SimulationResult``; and ``busy_us`` and ``calls`` per model."""

    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    busy_us: Any
    calls: Any


_F, _I, _S = np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
_OF_FLOATS, _OF_NUMBERS = _Joined(_F, _I), _Joined(_I, _I)
_RUN = types.void(
    types.UniTuple(types.FunctionType(CHOOSE), MAX_MODELS),
    typeof(
        _Models(_OF_FLOATS, _OF_FLOATS, _OF_NUMBERS, _OF_FLOATS, _OF_FLOATS, _OF_NUMBERS, _I, _I, _OF_FLOATS, _F, _F)
    ),
    typeof(_Queries(_OF_FLOATS, _OF_FLOATS)),
    typeof(_F),
    typeof(_Results(np.empty(0, dtype=np.int8), _F, _F, _S, _S, _F, _I)),
)


@njit(cache=True)
def _of(joined: _Joined, model: int) -> Any:
    return joined.values[joined.starts[model] : joined.starts[model + 1]]


@njit(cache=True)
def _earliest_deadline(queries: _Queries, head: Any, arrived: Any) -> int:
    """The model whose first waiting query has the earliest deadline, of equal ones the earliest arrival; −1: none."""
    found, soonest_us, came_us = -1, np.inf, np.inf
    for model in range(len(head)):
        if head[model] == arrived[model]:
            continue
        due_us, from_us = queries.deadline_us.values[head[model]], queries.arrival_us.values[head[model]]
        if due_us < soonest_us or (due_us == soonest_us and from_us < came_us):
            found, soonest_us, came_us = model, due_us, from_us
    return found


@njit(cache=True)
def _next_arrival_us(queries: _Queries, arrived: Any) -> float:
    """Of all models; ``inf``: none comes any more."""
    next_us = np.inf
    for model in range(len(arrived)):
        if arrived[model] < queries.arrival_us.starts[model + 1]:
            next_us = min(next_us, queries.arrival_us.values[arrived[model]])
    return next_us


@njit(cache=True)
def _let_in(now: float, queries: _Queries, head: Any, arrived: Any, status: Any) -> None:
    """Queries that have come wait, those whose deadline has come do not any more."""
    for model in range(len(head)):
        end = queries.arrival_us.starts[model + 1]
        while arrived[model] < end and queries.arrival_us.values[arrived[model]] <= now:
            arrived[model] += 1
        while head[model] < arrived[model] and queries.deadline_us.values[head[model]] <= now:
            status[head[model]] = EXPIRED
            head[model] += 1


@njit(cache=True)
def _record(found: _Results, deadline_us: Any, first: int, size: int, now: float, done: float, row: int) -> None:
    for query in range(first, first + size):
        found.status[query] = IN_TIME if done <= deadline_us[query] + ROUNDING_US else LATE
        found.started_us[query], found.done_us[query] = now, done
        found.row[query], found.batch[query] = row, size


@njit(_RUN, cache=True)
def _run(choose: Any, models: _Models, queries: _Queries, free_us: Any, found: _Results) -> None:
    starts, status = queries.arrival_us.starts, found.status
    arrival_us, deadline_us = queries.arrival_us.values, queries.deadline_us.values
    # Queries wait in order of arrival, which is that of their deadlines: a queue is from ``head`` to ``arrived``.
    head, arrived, now = starts[:-1].copy(), starts[:-1].copy(), 0.0
    # Of each worker, whichever model's calls it computes, over the memory of each model.
    busy_share = np.zeros((len(head), len(free_us)))
    while True:
        worker = np.argmin(free_us)
        now = max(now, free_us[worker])
        if _earliest_deadline(queries, head, arrived) < 0:
            now = max(now, _next_arrival_us(queries, arrived))
        if now == np.inf:
            break
        _let_in(now, queries, head, arrived, status)
        model = _earliest_deadline(queries, head, arrived)
        if model < 0:
            continue
        accuracy, sizes = _of(models.accuracy, model), _of(models.sizes, model)
        latency_us = _of(models.latency_us, model).reshape((len(accuracy), len(sizes)))
        plan, columns = _of(models.plan, model), len(sizes)
        recent_us = arrival_us[max(starts[model], arrived[model] - RECENT) : arrived[model]]
        while head[model] < arrived[model]:
            first = head[model]
            waiting_us = deadline_us[first : arrived[model]]
            cell = choose[model](latency_us, accuracy, sizes, plan, now, waiting_us, 0, 0, recent_us, free_us)
            if cell < 0:
                status[first] = REJECTED
                head[model] += 1
                continue
            row, size = cell // columns, min(sizes[cell % columns], len(waiting_us))
            cell = row * columns + int(np.searchsorted(sizes, size))
            cell += latency_us.size * busy_others(int(worker), now, free_us, models.per_machine[model])
            for each in range(len(head)):
                rested_us = now - free_us[worker]
                busy_share[each, worker] = after_rest(busy_share[each, worker], rested_us, models.memory_us[each])
            rested = how_rested(busy_share[model, worker], models.saturation[model])
            took_us = draw_us(
                _of(models.values, model), _of(models.idle, model), _of(models.cells, model), cell,
                models.seeds[model], found.calls[model], rested,
            )  # fmt: skip
            for each in range(len(head)):
                busy_share[each, worker] = after_call(busy_share[each, worker], took_us, models.memory_us[each])
            found.calls[model] += 1
            found.busy_us[model] += took_us
            free_us[worker] = now + took_us
            _record(found, deadline_us, first, size, now, now + took_us, row)
            head[model] += size
            break
    expire_waiting(status)
