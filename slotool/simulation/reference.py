"""The event loop once more, in plain Python, around the queue and the ``decide`` that the server calls.

Slow, and open to every policy; the compiled loop is held against it.
"""

from __future__ import annotations

import math

import numpy as np

from slotool.scheduling import Decision, EdfQueue, Policy, Query
from slotool.scheduling.batching import ControlGrid
from slotool.simulation.events import ROUNDING_US
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REFUSED, WAITING, Outcome
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes


def simulate_plainly(
    policy: Policy, grid: ControlGrid, scenario: Scenario, times: ServiceTimes | None = None
) -> Outcome:
    """As ``events.simulate``, for any policy whose points are in ``grid``."""
    return _Loop(policy, grid, scenario, times or ServiceTimes.planned(grid)).run()


class _Loop:
    def __init__(self, policy: Policy, grid: ControlGrid, scenario: Scenario, times: ServiceTimes):
        self._policy, self._grid, self._scenario, self._times = policy, grid, scenario, times
        count, workers = len(scenario), len(scenario.death_us)
        self._queue = EdfQueue()
        self._queue.free_us = np.zeros(workers)
        self._given_back: list[tuple[float, list[Query]]] = []
        self._out = Outcome(
            grid, scenario, np.zeros(count, dtype=np.int8), np.full(count, np.nan), np.full(count, np.nan),
            np.full(count, -1, dtype=np.int16), np.zeros(count, dtype=np.int16), 0.0, 0,
        )  # fmt: skip
        self._arrived, self._calls, self._busy_us = 0, 0, 0.0

    def run(self) -> Outcome:
        queue, free_us, death_us = self._queue, self._queue.free_us, self._scenario.death_us
        now_us = 0.0
        while True:
            worker = int(np.argmin(free_us))
            if math.isinf(free_us[worker]):
                break
            now_us = max(now_us, float(free_us[worker]))
            if not queue:
                soonest_us = self._soonest_us()
                if math.isinf(soonest_us):
                    break
                now_us = max(now_us, soonest_us)
            if death_us[worker] <= now_us:
                free_us[worker] = math.inf
                continue
            self._let_in(now_us)
            for late in queue.expire(now_us):
                self._out.status[int(late.id)] = EXPIRED
            if queue:
                self._dispatch(worker, now_us)
        status = np.where(self._out.status == WAITING, EXPIRED, self._out.status)
        arrays = (status, self._out.started_us, self._out.done_us, self._out.row, self._out.batch)
        return Outcome(self._grid, self._scenario, *arrays, self._busy_us, self._calls)

    def _soonest_us(self) -> float:
        arrivals = self._scenario.arrival_us
        ahead = float(arrivals[self._arrived]) if self._arrived < len(arrivals) else math.inf
        return min([ahead, *(time for time, _ in self._given_back)])

    def _let_in(self, now_us: float) -> None:
        asked = self._scenario
        while self._arrived < len(asked) and asked.arrival_us[self._arrived] <= now_us:
            i = self._arrived
            least = None if asked.min_accuracy is None else float(asked.min_accuracy[i])
            priority = 0 if asked.priority is None else int(asked.priority[i])
            times = float(asked.arrival_us[i]), float(asked.deadline_us[i])
            self._queue.push(Query(str(i), *times, min_accuracy=least, priority=priority))
            self._arrived += 1
        for time_us, batch in self._given_back:
            if time_us <= now_us:
                for query in batch:
                    self._queue.push(query, returning=True)
        self._given_back = [entry for entry in self._given_back if entry[0] > now_us]

    def _dispatch(self, worker: int, now_us: float) -> None:
        decision = self._policy.decide(now_us, self._queue)
        if not isinstance(decision, Decision):
            self._out.status[int(self._queue.pop().id)] = REFUSED
            return
        row = self._grid.index(decision.point)
        accuracy = float(self._grid.accuracy[row])
        batch = self._queue.take(decision.batch_size, lambda query: (query.min_accuracy or 0.0) <= accuracy)
        cell = row * len(self._grid.sizes) + self._grid.columns_for(len(batch))
        done_us = now_us + self._times.draw(cell, self._calls)
        self._calls += 1
        death_us = float(self._scenario.death_us[worker])
        self._queue.free_us[worker] = done_us if death_us >= done_us else math.inf
        self._busy_us += min(done_us, death_us) - now_us
        if death_us < done_us:
            self._given_back.append((death_us, batch))
            return
        for query in batch:
            i = int(query.id)
            self._out.status[i] = IN_TIME if done_us <= query.deadline_us + ROUNDING_US else LATE
            self._out.started_us[i], self._out.done_us[i] = now_us, done_us
            self._out.row[i], self._out.batch[i] = row, len(batch)
