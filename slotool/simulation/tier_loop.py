"""Requests of tolerance tiers on workers, compiled: the loop of ``TieredService.simulate``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from slotool.compilation import count_until, njit
from slotool.scheduling.dispatcher import MAX_PASSED
from slotool.scheduling.tolerance_tiers import LARGE_ENOUGH, LAST_CALL, MAX_AHEAD
from slotool.simulation.events import ROUNDING_US
from slotool.simulation.scenario import IN_TIME, LATE, REJECTED
from slotool.simulation.service import after_call, after_rest, draw_us, how_rested


class Requests(NamedTuple):
    """Requests; ``is_taken``: in a call; ``choices``: int16 [tiers, any, 2], rows of ensembles, −1 after the last."""

    arrival_us: Any
    deadline_us: Any
    example: Any
    tier: Any
    is_taken: Any
    choices: Any


class EnsembleArrays(NamedTuple):
    asks: Any
    at_once: Any
    depths: Any
    worst_us: Any
    sizes: Any
    first_us: Any


class Service(NamedTuple):
    """Service times, as ``ServiceTimes``, by version and size; a worker's call adds ``call_us`` or ``idle_call_us``."""

    values: Any
    starts: Any
    seed: Any
    idle: Any
    memory_us: Any
    saturation: Any
    call_us: Any
    idle_call_us: Any
    cancels: Any


class Workers(NamedTuple):
    """A heap by ``free_us``, the instants at which workers become idle; ``busy_share``: how busy each was as it did."""

    free_us: Any
    busy_share: Any


class Results(NamedTuple):
    status: Any
    started_us: Any
    done_us: Any
    row: Any
    batch: Any
    version_calls: Any


@njit(cache=True)
def _busy_until(workers: Workers, at: int, until_us: float, busy_share: float) -> None:
    """Set when the worker at ``at`` becomes idle."""
    free_us, count = workers.free_us, len(workers.free_us)
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and free_us[below + 1] < free_us[below]:
            below += 1
        if free_us[below] >= until_us:
            break
        free_us[at], workers.busy_share[at] = free_us[below], workers.busy_share[below]
        at = below
    free_us[at], workers.busy_share[at] = until_us, busy_share


@njit(cache=True)
def _share(workers: Workers, at: int, now: float, service: Service) -> float:
    """Return how busy the worker at ``at``, which is idle, counts as."""
    return after_rest(workers.busy_share[at], now - workers.free_us[at], service.memory_us)


@njit(cache=True)
def _ends_us(now: float, took_us: float, rested: float, service: Service) -> float:
    """Return the end of a worker's call whose versions take ``took_us``."""
    return float(now + took_us + service.call_us + rested * (service.idle_call_us - service.call_us))


@njit(cache=True)
def _chosen(choices: Any, worst_us: Any, slack_us: float, one_idle: int) -> int:
    """Return the first of a tier's ensembles that fits, as ``ToleranceTiers`` has it; −1: none."""
    for at in range(len(choices)):
        row = choices[at, one_idle]
        if row < 0:
            break
        if worst_us[row, 0] <= slack_us:
            return int(row)
    return -1


@njit(cache=True)
def _room(row: int, slack_us: float, ensembles: EnsembleArrays) -> int:
    """Return the most requests of a call within ``slack_us``."""
    room = 1
    for column in range(len(ensembles.sizes)):
        if ensembles.worst_us[row, column] <= slack_us:
            room = max(room, ensembles.sizes[column])
    return room


@njit(cache=True)
def _learn(on: Any, row: int, took_us: float, column: Any, ensembles: EnsembleArrays) -> None:
    """Update ``on``, the learnt time of each ensemble (NaN at first), by one call, as ``Calls.observe``."""
    first_us, worst_us = ensembles.first_us[row, column], ensembles.worst_us[row, column]
    share = (took_us - first_us) / (worst_us - first_us) if worst_us > first_us else 0.0
    on[row] = share if np.isnan(on[row]) else on[row] + LAST_CALL * (share - on[row])


@njit(cache=True)
def _expected_us(row: int, column: Any, on: Any, ensembles: EnsembleArrays) -> float:
    """Return ``Calls.expected_us``."""
    first_us, share = ensembles.first_us[row, column], 1.0 if np.isnan(on[row]) else max(0.0, on[row])
    return float(first_us + share * (ensembles.worst_us[row, column] - first_us))


@njit(cache=True)
def _enough(row: int, on: Any, ensembles: EnsembleArrays) -> int:
    """Return ``Calls.enough``."""
    best_us, sizes = np.inf, ensembles.sizes
    for column in range(len(sizes)):
        if ensembles.worst_us[row, column] < np.inf:
            best_us = min(best_us, _expected_us(row, column, on, ensembles) / sizes[column])
    for column in range(len(sizes)):
        if LARGE_ENOUGH * _expected_us(row, column, on, ensembles) / sizes[column] <= best_us:
            return int(sizes[column])
    return 1


@njit(cache=True)
def _gather(
    requests: Requests, head: int, end: int, row: int, room: int, now: float, ensembles: EnsembleArrays, members: Any
) -> tuple[int, bool, float]:
    """Put at most ``room`` requests before ``end`` that share the call of ``head`` into ``members``, as ``Dispatcher``.

    Returns their number, True if no other could share, and the longest time that a passed one needs.
    """
    worst_us, sizes, choices = ensembles.worst_us, ensembles.sizes, requests.choices
    members[0], count, passed, ends_by_us, passed_us = head, 1, 0, np.inf, 0.0
    for query in range(head + 1, end):
        if requests.is_taken[query]:
            continue
        # The tier's own ensemble: both versions at once, and in turn.
        first, in_turn = choices[requests.tier[query], 0, 0], choices[requests.tier[query], 0, 1]
        if row not in (first, in_turn):
            needs_us, passed = worst_us[in_turn, 0], passed + 1
            ends_by_us, passed_us = min(ends_by_us, requests.deadline_us[query] - needs_us), max(passed_us, needs_us)
            if passed > MAX_PASSED:
                break
        elif count == room or now + worst_us[row, count_until(sizes, count)] > ends_by_us:
            return count, False, passed_us
        else:
            members[count] = query
            count += 1
    return count, True, passed_us


@njit(cache=True)
def _loses_others(
    requests: Requests, head: int, end: int, passed_us: float, one_idle: int, workers: int, now: float, on: Any,
    ensembles: EnsembleArrays,
) -> bool:  # fmt: skip
    """True if calls like that of ``head`` would make a request late, as ``ToleranceTiers`` looks ahead."""
    choices, idle_us, query = requests.choices[requests.tier[head]], now, head
    unserved = int((~requests.is_taken[head:end]).sum())
    for _ in range(MAX_AHEAD):
        if unserved == 0:
            break
        while requests.is_taken[query]:
            query += 1
        slack_us = requests.deadline_us[query] - idle_us
        row = _chosen(choices, ensembles.worst_us, slack_us, one_idle)
        if row < 0:
            return True
        size = min(_room(row, slack_us - passed_us, ensembles), unserved)
        needed = 2 if ensembles.at_once[row] else 1
        idle_us += needed * _expected_us(row, count_until(ensembles.sizes, size - 1), on, ensembles) / workers
        unserved -= size
        while size > 0:
            size -= not requests.is_taken[query]
            query += 1
    return False


@njit(cache=True)
def _take(
    row: int, members: Any, example: Any, ensembles: EnsembleArrays, service: Service, rested: float,
    other_rested: float, drawn: int, results: Results,
) -> tuple[float, float, int]:  # fmt: skip
    """Return µs of an ensemble's versions for a batch, those of a concurrent second apart, and the next call's number.

    Each version has the examples that go on to it. ``rested``: share of time for which the workers were idle.
    """
    asks, depths, sizes = ensembles.asks, ensembles.depths, ensembles.sizes
    both, took_us, second_us, steps = ensembles.at_once[row], 0.0, 0.0, 0
    for query in members:
        steps = max(steps, depths[row, example[query]])
    for step in range(2 if both else steps):
        version, count = asks[row, step], 0
        for query in members:
            count += both or depths[row, example[query]] > step
        cell = version * len(sizes) + count_until(sizes, count - 1)
        is_other = step == 1 and both
        how = other_rested if is_other else rested
        one_us = draw_us(service.values, service.idle, service.starts, cell, service.seed, drawn, how)
        drawn += 1
        results.version_calls[version] += count
        if is_other:
            second_us = one_us
        else:
            took_us += one_us
    return took_us, second_us, drawn


@njit(cache=True)
def _answer(
    row: int, other: int, now: float, members: Any, example: Any, ensembles: EnsembleArrays, service: Service,
    workers: Workers, drawn: int, results: Results,
) -> tuple[float, float, int]:  # fmt: skip
    """Have the first worker of the heap answer a batch, and ``other`` one of two concurrent versions.

    Returns the end of the batch, µs of workers, and the number of the next call.
    """
    memory_us, saturation = service.memory_us, service.saturation
    share = _share(workers, 0, now, service)
    other_share = _share(workers, other, now, service) if ensembles.at_once[row] else 0.0
    rested, other_rested = how_rested(share, saturation), how_rested(other_share, saturation)
    took_us, second_us, drawn = _take(row, members, example, ensembles, service, rested, other_rested, drawn, results)
    done = _ends_us(now, took_us, rested, service)
    busy_us, share = done - now, after_call(share, done - now, memory_us)
    answered = done
    if ensembles.at_once[row]:
        is_needed = False
        for each in members:
            is_needed |= ensembles.depths[row, example[each]] > 1
        second = _ends_us(now, second_us, other_rested, service)
        if not is_needed and service.cancels:
            second = min(second, done)
        busy_us += second - now
        _busy_until(workers, other, second, after_call(other_share, second - now, memory_us))
        if is_needed:
            answered = max(done, second)
    _busy_until(workers, 0, done, share)
    return answered, busy_us, drawn


@njit(cache=True)
def run(
    requests: Requests, ensembles: EnsembleArrays, service: Service, of_workers: Workers, results: Results
) -> tuple[float, int, int]:
    worst_us, free_us = ensembles.worst_us, of_workers.free_us
    members = np.empty(ensembles.sizes[-1], dtype=np.int64)
    now, busy_us, drawn, calls, others, workers, end = 0.0, 0.0, 0, 0, 0, len(free_us), 0
    on = np.full(len(ensembles.worst_us), np.nan)
    for query in range(len(requests.arrival_us)):
        if requests.is_taken[query]:
            continue
        now = max(now, requests.arrival_us[query], free_us[0])
        while end < len(requests.arrival_us) and requests.arrival_us[end] <= now:
            end += 1
        slack_us = requests.deadline_us[query] - now
        if slack_us <= 0:
            continue
        other = 0 if workers == 1 else 2 if workers > 2 and free_us[2] < free_us[1] else 1
        one_idle = 0 if other and free_us[other] <= now else 1
        choices = requests.choices[requests.tier[query]]
        row, preferred = _chosen(choices, worst_us, slack_us, one_idle), choices[0, one_idle]
        if row < 0:
            results.status[query] = REJECTED
            continue
        room = _room(row, slack_us, ensembles)
        size, is_all, passed_us = _gather(requests, query, end, row, room, now, ensembles, members)
        is_large = row == preferred and (is_all or size >= _enough(row, on, ensembles))
        if not (is_large or np.isnan(on[preferred]) or requests.is_taken[query + 1 : end].all()) and _loses_others(
            requests, query, end, passed_us, one_idle, workers, now, on, ensembles
        ):
            results.status[query] = REJECTED
            continue
        batch = members[:size]
        done, took_us, drawn = _answer(
            row, other, now, batch, requests.example, ensembles, service, of_workers, drawn, results
        )
        calls += 1
        busy_us += took_us
        _learn(on, row, done - now, count_until(ensembles.sizes, size - 1), ensembles)
        for each in batch:
            others += row != requests.choices[requests.tier[each], 0, one_idle]
            requests.is_taken[each] = True
            results.status[each] = IN_TIME if done <= requests.deadline_us[each] + ROUNDING_US else LATE
            results.started_us[each], results.done_us[each] = now, done
            results.row[each], results.batch[each] = row, size
    return busy_us, calls, others
