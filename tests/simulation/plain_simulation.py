"""The event loop in plain Python, around the ``Dispatcher`` that a server has: the compiled one is held against it."""

from __future__ import annotations

import math

import numpy as np

from slotool.scheduling import Batch, Dispatcher, Policy, Query, RequestOutcome
from slotool.scheduling.batching import ControlGrid
from slotool.simulation.events import ROUNDING_US
from slotool.simulation.scenario import EXPIRED, IN_TIME, LATE, REJECTED, WAITING, Scenario, SimulationResult
from slotool.simulation.service import ServiceTimes, after_call, after_rest

_STATUS = {RequestOutcome.EXPIRED: EXPIRED, RequestOutcome.REJECTED: REJECTED}


def simulate_plainly(
    policy: Policy, grid: ControlGrid, scenario: Scenario, times: ServiceTimes | None = None
) -> SimulationResult:
    """As ``events.simulate``, for any policy whose points are in ``grid``."""
    return _Loop(policy, grid, scenario, times or ServiceTimes.planned(grid)).run()


class _Loop:
    def __init__(self, policy: Policy, grid: ControlGrid, scenario: Scenario, times: ServiceTimes):
        self._grid, self._scenario, self._times = grid, scenario, times
        count, workers = len(scenario), len(scenario.death_us)
        self._state = Dispatcher(policy, workers)
        self._done_us: dict[int, float] = {}
        self._out = SimulationResult(
            grid, scenario, np.zeros(count, dtype=np.int8), np.full(count, np.nan), np.full(count, np.nan),
            np.full(count, -1, dtype=np.int16), np.zeros(count, dtype=np.int16), 0.0, 0,
        )  # fmt: skip
        self._arrived, self._calls, self._busy_us = 0, 0, 0.0
        # Of each worker how busy it was of late, and until when it is or was.
        self._busy_share, self._until_us = np.zeros(workers), np.zeros(workers)

    def run(self) -> SimulationResult:
        state, free_us, death_us = self._state, self._state.workers.free_us, self._scenario.death_us
        now_us = 0.0
        while True:
            worker = int(np.argmin(free_us))
            if math.isinf(free_us[worker]):
                break
            now_us = max(now_us, float(free_us[worker]))
            if not state.queue:
                soonest_us = self._soonest_us()
                if math.isinf(soonest_us):
                    break
                now_us = max(now_us, soonest_us)
            self._let_work_end(now_us)
            if death_us[worker] <= now_us:
                assert state.lost(worker) is None
                continue
            self._let_in(now_us)
            batch, dropped = state.next_batch(now_us)
            for drop in dropped:
                self._out.status[int(drop.query.id)] = _STATUS[drop.outcome]
            if batch is not None:
                self._begin(batch, now_us)
        self._let_work_end(math.inf)
        status = np.where(self._out.status == WAITING, EXPIRED, self._out.status)
        arrays = (status, self._out.started_us, self._out.done_us, self._out.row, self._out.batch)
        return SimulationResult(self._grid, self._scenario, *arrays, self._busy_us, self._calls)

    def _soonest_us(self) -> float:
        arrivals, deaths = self._scenario.arrival_us, self._scenario.death_us
        ahead = float(arrivals[self._arrived]) if self._arrived < len(arrivals) else math.inf
        return float(min([ahead, *(deaths[worker] for worker, done in self._done_us.items() if deaths[worker] < done)]))

    def _let_work_end(self, now_us: float) -> None:
        """Batches whose answers are there by ``now_us``, and those whose workers have died."""
        for worker, done_us in sorted(self._done_us.items(), key=lambda item: item[1]):
            death_us = float(self._scenario.death_us[worker])
            if death_us < done_us and death_us <= now_us:
                lost = self._state.lost(worker)
                assert lost is not None
                self._state.returned(lost)
            elif death_us >= done_us and done_us <= now_us:
                self._state.finished(worker, done_us)
            else:
                continue
            del self._done_us[worker]

    def _let_in(self, now_us: float) -> None:
        asked = self._scenario
        while self._arrived < len(asked) and asked.arrival_us[self._arrived] <= now_us:
            i = self._arrived
            self._state.arrive(Query(str(i), float(asked.arrival_us[i]), float(asked.deadline_us[i])))
            self._arrived += 1

    def _begin(self, batch: Batch, now_us: float) -> None:
        row, size = self._grid.index(batch.decision.point), len(batch.queries)
        cell = row * len(self._grid.sizes) + self._grid.columns_for(size)
        memory_us, worker = self._times.memory_us, batch.worker
        share = after_rest(self._busy_share[worker], now_us - self._until_us[worker], memory_us)
        took_us = self._times.draw(cell, self._calls, share)
        done_us = now_us + took_us
        self._busy_share[worker], self._until_us[worker] = after_call(share, took_us, memory_us), done_us
        self._calls += 1
        death_us = float(self._scenario.death_us[batch.worker])
        self._state.workers.free_us[batch.worker] = done_us
        self._done_us[batch.worker] = done_us
        self._busy_us += min(done_us, death_us) - now_us
        if death_us < done_us:
            return
        for query in batch.queries:
            i = int(query.id)
            self._out.status[i] = IN_TIME if done_us <= query.deadline_us + ROUNDING_US else LATE
            self._out.started_us[i], self._out.done_us[i] = now_us, done_us
            self._out.row[i], self._out.batch[i] = row, size
