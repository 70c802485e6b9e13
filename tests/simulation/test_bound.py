"""The fluid bound: above everything anybody reaches, and not far above the optimum."""

from __future__ import annotations

import numpy as np
import pytest

from slotool.scheduling.batching import ControlGrid, FixedBatching, MaxBatch, MinCost, SlackFit, ValueIteration
from slotool.simulation import Scenario, ServiceTimes, fluid_bound, optimum_of_one_worker, simulate
from slotool.testing.policies import three_versions
from slotool.workloads import Bursty

GRID = ControlGrid(three_versions())
POLICIES = (SlackFit, MaxBatch, MinCost, FixedBatching, ValueIteration)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_above_the_optimum_and_close(seed: int) -> None:
    times_s = Bursty(800.0, 2_400.0, 4.0).times(0.5, seed=seed)
    scenario = Scenario.of(times_s, 0.004)
    optimum, bound = optimum_of_one_worker(GRID, scenario, steps=320), fluid_bound(GRID, scenario)
    assert optimum.reached <= bound + 1e-6
    assert bound <= min(1.03 * optimum.bound, len(scenario) * GRID.accuracy[-1] + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_no_policy_is_above_it_with_dying_workers_and_mixed_deadlines(seed: int) -> None:
    generator = np.random.default_rng(seed)
    arrival_us = np.cumsum(generator.exponential(60.0, 1_500))
    slack_us = generator.choice([800.0, 3_000.0, 12_000.0], len(arrival_us))
    deaths = np.array([np.inf, 20_000.0, np.inf, 45_000.0])
    scenario = Scenario(arrival_us, np.maximum.accumulate(arrival_us + slack_us), deaths)
    varying = {(p, int(n)): GRID.latency_us[i, j] * np.array([0.8, 1.0, 1.3])
               for i, p in enumerate(GRID.points) for j, n in enumerate(GRID.sizes)}  # fmt: skip
    times = ServiceTimes.sampled(GRID, varying, seed)
    bound = fluid_bound(GRID, scenario)
    noisy = fluid_bound(GRID, scenario, times.min_us.reshape(GRID.latency_us.shape))
    assert bound <= noisy + 1e-6
    for make in POLICIES:
        assert simulate(make(GRID), scenario).utility <= bound + 1e-6
        assert simulate(make(GRID), scenario, times).utility <= noisy + 1e-6


def test_what_it_is_where_one_can_reckon_it() -> None:
    alone = Scenario.of(np.arange(50) * 0.1, 0.003)
    assert fluid_bound(GRID, alone) == pytest.approx(50 * 0.98), "every query is alone and has time for the largest"
    hurried = Scenario.of(np.arange(50) * 0.1, 0.0005)
    assert fluid_bound(GRID, hurried) == pytest.approx(50 * 0.95), "the largest takes 2 ms"
    dead = Scenario.of(np.arange(1, 51) * 0.1, 0.003, 1, (2.55,))
    assert fluid_bound(GRID, dead) == pytest.approx(25 * 0.98), "nobody serves after 2.55 s"
    assert fluid_bound(GRID, Scenario.of(np.empty(0), 0.003)) == 0.0
    # 1,000 at once in 4 ms, and 8 of the fastest take 450 µs: one worker serves 71 of them, fluid.
    crowd = Scenario.of(np.full(1_000, 0.004), 0.004)
    assert fluid_bound(GRID, crowd) == pytest.approx(4_000 / 450 * 8 * 0.9, rel=1e-3)
