"""Requests of tolerance tiers in plain Python, around the ``Dispatcher`` that a server has, ensembles call by call."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from slotool.rules import from_point
from slotool.rules.policies.routing import Conc
from slotool.scheduling import Batch, Dispatcher, Query, RequestOutcome, ToleranceTiers
from slotool.simulation import Scenario, ServiceTimes
from slotool.simulation.scenario import EXPIRED, IN_TIME, LATE, REJECTED
from slotool.simulation.service import Overhead, after_call, after_rest, how_rested
from slotool.simulation.tiers import TierRequests
from slotool.tables import OutcomeTable

_STATUS = {RequestOutcome.EXPIRED: EXPIRED, RequestOutcome.REJECTED: REJECTED}


class PlainResult(NamedTuple):
    """As of ``TierResult``; ``point``: of each request's ensemble, empty where none answered."""

    status: np.ndarray
    done_us: np.ndarray
    point: list[str]
    version_calls: np.ndarray
    busy_us: float
    batch: np.ndarray


class _Calls:
    """Of workers, by how busy each was of late. ``times``: of each of ``versions`` with each of ``sizes``, as a latency
    table has it; ``version_calls``: examples that each version has had."""

    def __init__(
        self, versions: Sequence[str], sizes: np.ndarray, times: ServiceTimes, overhead: Overhead, workers: int
    ):
        self._versions, self._sizes, self._times, self._overhead = list(versions), sizes, times, overhead
        self._share, self._until_us, self._drawn = [0.0] * workers, [0.0] * workers, 0
        self.version_calls = np.zeros(len(versions), dtype=int)

    def took_us(self, worker: int, now_us: float, asked_of: Sequence[tuple[str, int]]) -> float:
        """Of versions, each with so many examples, in turn."""
        overhead, rested = self._overhead, how_rested(self._busy_share(worker, now_us), self._overhead.saturation)
        # One that rested has no turn from call to call.
        left, turns = (rested + (1 - rested) * overhead.busy_part, 1 - rested) if overhead.memory_us else (1.0, 1.0)
        took_us = turns * overhead.turnaround_us + left * overhead.call_us
        for version, examples in asked_of:
            at = self._versions.index(version)
            self.version_calls[at] += examples
            cell = at * len(self._sizes) + int(np.searchsorted(self._sizes, examples))
            took_us += (1 + left * overhead.slower) * self._times.draw(cell, self._drawn)
            self._drawn += 1
        return took_us

    def ended(self, worker: int, begun_us: float, ended_us: float) -> None:
        share = after_call(self._busy_share(worker, begun_us), ended_us - begun_us, self._overhead.memory_us)
        self._share[worker], self._until_us[worker] = share, ended_us

    def _busy_share(self, worker: int, now_us: float) -> float:
        return after_rest(self._share[worker], now_us - self._until_us[worker], self._overhead.memory_us)


def simulate_plainly(
    policy: ToleranceTiers,
    outcomes: OutcomeTable,
    versions: Sequence[str],
    scenario: Scenario,
    asked: TierRequests,
    tiers: Sequence[tuple[float, str]],
    times: ServiceTimes,
    cancels: bool,
    sizes: np.ndarray,
    overhead: Overhead,
) -> PlainResult:
    """As ``TieredService.simulate``; of ``times``: see ``_Calls``."""
    count = len(scenario)
    calls = _Calls(versions, sizes, times, overhead, len(scenario.death_us))
    out = PlainResult(
        np.full(count, EXPIRED),
        np.full(count, np.nan),
        [""] * count,
        calls.version_calls,
        0.0,
        np.zeros(count, dtype=int),
    )
    state = Dispatcher(policy, len(scenario.death_us))
    ends: list[tuple[float, int, int]] = []
    busy_us, arrived, now_us = 0.0, 0, 0.0

    def begin(batch: Batch) -> None:
        nonlocal busy_us
        own, numbers = from_point(batch.decision.point), [int(query.id) for query in batch.queries]
        each = own.depths(outcomes)[asked.example[numbers]]
        taken = int(each.max())
        if batch.second_worker is None:
            going_on = [int((each > step).sum()) for step in range(taken)]
            done_us = now_us + calls.took_us(batch.worker, now_us, list(zip(own.versions, going_on, strict=False)))
            lasting = {batch.worker: done_us}
        else:
            assert isinstance(own, Conc)
            first_us, second_us = (
                now_us + calls.took_us(worker, now_us, [(version, len(each))])
                for worker, version in zip((batch.worker, batch.second_worker), own.versions, strict=True)
            )
            if taken == 1 and cancels:
                second_us = min(first_us, second_us)
            lasting = {batch.worker: first_us, batch.second_worker: second_us}
            done_us = first_us if taken == 1 else max(first_us, second_us)
        for worker, end_us in lasting.items():
            busy_us += end_us - now_us
            calls.ended(worker, now_us, end_us)
            heappush(ends, (end_us, len(ends), worker))
        policy.observe(batch.decision.point, len(numbers), done_us - now_us)
        for i, query in zip(numbers, batch.queries, strict=True):
            out.status[i] = IN_TIME if done_us <= query.deadline_us + 1e-3 else LATE
            out.done_us[i], out.point[i], out.batch[i] = done_us, batch.decision.point.key, len(numbers)

    while arrived < count or ends:
        soonest_us = float(scenario.arrival_us[arrived]) if arrived < count else np.inf
        now_us = min(soonest_us, ends[0][0]) if ends else soonest_us
        while ends and ends[0][0] <= now_us:
            end_us, _, worker = heappop(ends)
            state.ended(worker, end_us)
        while arrived < count and scenario.arrival_us[arrived] <= now_us:
            tolerance, objective = tiers[int(asked.tier[arrived])]
            instants = float(scenario.arrival_us[arrived]), float(scenario.deadline_us[arrived])
            state.arrive(Query(str(arrived), *instants, tolerance, objective))
            arrived += 1
        batch: Batch | None
        while True:
            batch, drops = state.next_batch(now_us)
            for drop in drops:
                out.status[int(drop.query.id)] = _STATUS[drop.outcome]
            if batch is None:
                break
            begin(batch)
    return out._replace(busy_us=busy_us)
