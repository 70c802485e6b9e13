"""Switching by a plan against each point alone, under a load that swings as fast as in a day of seconds."""

from __future__ import annotations

import numpy as np

from slotool.scheduling import ControlSpace
from slotool.scheduling.batching import ControlGrid
from slotool.scheduling.batching.baselines import FixedBatching, ModelSwitching
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.tables import OperatingPoint
from slotool.workloads.arrivals.recorded import RateTrace

DEADLINE_S = 0.03
POINTS = [OperatingPoint.of(version=name) for name in ("small", "medium", "large")]
FIRST_US, FURTHER_US, ACCURACY = (600, 1_200, 2_500), (400, 900, 2_200), (0.63, 0.7, 0.8)
# Up to which each is the most effective, by simulated load tests of Poisson arrivals.
RATES = dict(zip(POINTS, (2_268.0, 968.0, 454.0), strict=True))


def test_switching_is_right_more_often_than_the_best_single_point() -> None:
    rows = zip(POINTS, FIRST_US, FURTHER_US, strict=True)
    latency_us = {(point, n): first + more * (n - 1) for point, first, more in rows for n in (1, 4, 16)}
    grid = ControlGrid(ControlSpace(POINTS, latency_us, dict(zip(POINTS, ACCURACY, strict=True))))
    shape = np.array([0.2, 0.5, 0.9, 1.2, 1.6, 1.3, 0.8, 0.4, 0.2, 1.5, 0.3, 1.1, 2.5, 0.5, 4.0, 0.7])
    times = ServiceTimes.planned(grid)
    for duration_s in (2.0, 8.0):
        arrivals = RateTrace(shape, shape.mean() * RATES[POINTS[-1]]).times(duration_s, 3)
        scenario = Scenario.of(arrivals, DEADLINE_S, 1, ())

        def effective(policy: object, scenario: Scenario = scenario) -> float:
            return float(simulate(policy, scenario, times).summary()["effective_accuracy"])

        best = max(effective(FixedBatching(grid, point)) for point in POINTS)
        assert effective(ModelSwitching(grid, RATES, deadline_us=DEADLINE_S * 1e6)) > best + 0.05
