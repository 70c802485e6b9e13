"""Requests of tolerance tiers in plain Python, around the ``Dispatcher`` that a server has, ensembles call by call."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from slotool.rules import from_point
from slotool.rules.policies import Conc
from slotool.scheduling import Batch, Dispatcher, Query, RequestOutcome, ToleranceTiers
from slotool.simulation import Scenario, ServiceTimes
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED
from slotool.simulation.tiers import Asked
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


def simulate_plainly(
    policy: ToleranceTiers,
    outcomes: OutcomeTable,
    versions: Sequence[str],
    scenario: Scenario,
    asked: Asked,
    tiers: Sequence[tuple[float, str]],
    times: ServiceTimes,
    cancels: bool,
    sizes: np.ndarray,
) -> PlainResult:
    """As ``TieredService.simulate``. ``times``: of a call of each of ``versions`` with each of ``sizes``."""
    count = len(scenario)
    out = PlainResult(
        np.full(count, EXPIRED),
        np.full(count, np.nan),
        [""] * count,
        np.zeros(len(versions), dtype=int),
        0.0,
        np.zeros(count, dtype=int),
    )
    state = Dispatcher(policy, len(scenario.death_us))
    ends: list[tuple[float, int, int]] = []
    drawn, busy_us, arrived, now_us = 0, 0.0, 0, 0.0

    def call_us(version: str, examples: int) -> float:
        nonlocal drawn
        at = versions.index(version)
        out.version_calls[at] += examples
        drawn += 1
        return times.draw(at * len(sizes) + int(np.searchsorted(sizes, examples)), drawn - 1)

    def begin(batch: Batch) -> None:
        nonlocal busy_us
        own, numbers = from_point(batch.decision.point), [int(query.id) for query in batch.queries]
        each = own.asked(outcomes)[asked.example[numbers]]
        taken = int(each.max())
        if batch.second_worker is None:
            going_on = [int((each > step).sum()) for step in range(taken)]
            done_us = now_us + sum(map(call_us, own.versions[:taken], going_on))
            lasting = {batch.worker: done_us}
        else:
            assert isinstance(own, Conc)
            first_us, second_us = (now_us + call_us(version, len(each)) for version in own.versions)
            if taken == 1 and cancels:
                second_us = min(first_us, second_us)
            lasting = {batch.worker: first_us, batch.second_worker: second_us}
            done_us = first_us if taken == 1 else max(first_us, second_us)
        for worker, end_us in lasting.items():
            busy_us += end_us - now_us
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
