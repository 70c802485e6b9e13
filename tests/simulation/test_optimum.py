"""The offline optimum against every schedule there is, on traces small enough to try them all."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid, FixedBatching, MaxBatch, MinCost, SlackFit, ValueIteration
from slotool.simulation import Scenario, simulate
from slotool.simulation.optimum import PASSES, optimum_of_one_worker
from slotool.testing.policies import three_versions

GRID = ControlGrid(three_versions())
DEADLINE_US = 3_000.0


def tried_out(arrivals: np.ndarray) -> float:
    """The best utility over all choices of batch, point and drops; batches are runs of arrivals."""

    @cache
    def best(first: int, free_us: float) -> float:
        if first == len(arrivals):
            return 0.0
        value = best(first + 1, free_us)
        for count in range(1, min(int(GRID.sizes[-1]), len(arrivals) - first) + 1):
            start_us = max(free_us, arrivals[first + count - 1])
            for row in range(len(GRID.points)):
                done_us = start_us + GRID.latency_us[row, GRID.columns_for(count)]
                if done_us <= arrivals[first] + DEADLINE_US:
                    value = max(value, count * GRID.accuracy[row] + best(first + count, done_us))
        return value

    return best(0, 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_the_dynamic_program_finds_what_trying_everything_finds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    gaps = generator.integers(0, [40, 8, 3][seed % 3], generator.integers(1, 9))
    scenario = Scenario.of(np.cumsum(gaps) * 50e-6, DEADLINE_US / 1e6)
    # All times are multiples of 50 µs, so 60 steps of the deadline are exact.
    found = optimum_of_one_worker(GRID, scenario, steps=60)
    assert found.reached == pytest.approx(found.bound) == pytest.approx(tried_out(scenario.arrival_us))


@pytest.mark.parametrize("seed", range(4))
def test_no_policy_beats_the_bound_and_finer_steps_close_the_gap(seed: int) -> None:
    times_s = np.cumsum(np.random.default_rng(seed).exponential(2e-4, 200))
    scenario = Scenario.of(times_s, DEADLINE_US / 1e6)
    coarse, fine = (optimum_of_one_worker(GRID, scenario, steps) for steps in (40, 160))
    assert coarse.reached <= fine.reached <= fine.bound <= coarse.bound
    for make in (SlackFit, MaxBatch, MinCost, FixedBatching, ValueIteration):
        assert simulate(make(GRID), scenario).utility <= fine.bound + 1e-9


def test_a_long_trace_is_the_sum_of_stretches_that_do_not_meet() -> None:
    """Of more queries than are looked at at once, in stretches further apart than a deadline."""
    one_s = np.cumsum(np.random.default_rng(5).exponential(2e-4, 300))
    many_s = np.concatenate([one_s + at * (one_s[-1] + 1.0) for at in range(9)])
    done: list[int] = []
    one = optimum_of_one_worker(GRID, Scenario.of(one_s, DEADLINE_US / 1e6), steps=60)
    many = optimum_of_one_worker(GRID, Scenario.of(many_s, DEADLINE_US / 1e6), steps=60, advance=done.append)
    assert many.reached == pytest.approx(9 * one.reached)
    assert many.bound == pytest.approx(9 * one.bound)
    assert len(done) == 2 * PASSES
    assert sum(done) == PASSES * len(many_s)


def test_it_says_what_it_is_for() -> None:
    for scenario in (
        Scenario.of(np.array([1.0]), 0.01, workers=2),
        Scenario.of(np.array([1.0]), 0.01, death_s=(5.0,)),
        Scenario.of(np.array([1.0, 2.0]), np.array([0.01, 0.02])),
    ):
        with pytest.raises(InputError, match="one worker that lives and equal deadlines"):
            optimum_of_one_worker(GRID, scenario)
