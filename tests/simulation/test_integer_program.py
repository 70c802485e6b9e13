"""The integer program: against the dynamic program, against every schedule there is, and above every policy."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.scheduling.batching import ControlGrid, FixedBatching, MaxBatch, MinCost, SlackFit, ValueIteration
from slotool.simulation import (
    Scenario,
    ServiceTimes,
    fluid_bound,
    optimum_of_one_worker,
    simulate,
)
from slotool.testing.policies import three_versions
from tests.simulation.integer_program import optimum_by_integer_program

GRID = ControlGrid(three_versions())
POLICIES = (SlackFit, MaxBatch, MinCost, FixedBatching, ValueIteration)


def mixed(seed: int, count: int, workers: int) -> Scenario:
    """All times whole steps of 100 µs: mixed deadlines, and all workers but one die."""
    generator = np.random.default_rng(seed)
    arrival_us = 100.0 * np.cumsum(generator.integers(0, 6, count))
    slack_us = generator.choice([600.0, 1_200.0, 2_400.0], count)
    deaths = np.r_[np.inf, 100.0 * generator.integers(5, 20, workers - 1)]
    return Scenario(arrival_us, np.maximum.accumulate(arrival_us + slack_us), deaths)


def tried_out(scenario: Scenario, latency_us: np.ndarray) -> float:
    """The best utility over every sequence of (worker, set of queries, point), each as soon as it can be."""

    @cache
    def best(left: frozenset[int], free_us: tuple[float, ...]) -> float:
        value = 0.0
        for count in range(1, len(left) + 1):
            for batch in combinations(sorted(left), count):
                members = list(batch)
                for row in range(len(GRID.points)):
                    for worker, at_us in enumerate(free_us):
                        begun_us = max(at_us, scenario.arrival_us[members].max())
                        done_us = begun_us + latency_us[row, GRID.columns_for(count)]
                        if done_us > min(scenario.deadline_us[members].min(), scenario.death_us[worker]):
                            continue
                        after = (*free_us[:worker], done_us, *free_us[worker + 1 :])
                        value = max(value, count * GRID.accuracy[row] + best(left - set(batch), after))
        return value

    return best(frozenset(range(len(scenario))), (0.0,) * len(scenario.death_us))


@pytest.mark.parametrize("seed", range(6))
def test_it_finds_what_trying_everything_finds(seed: int) -> None:
    scenario = mixed(seed, 4, 2)
    # Whole steps, so that both roundings leave everything as it is.
    whole_us = 100.0 * np.ceil(GRID.latency_us / 100.0)
    steps = round(float(np.median(scenario.deadline_us - scenario.arrival_us)) / 100.0)
    found = optimum_by_integer_program(GRID, scenario, steps, whole_us)
    assert found.reached == pytest.approx(found.bound) == pytest.approx(tried_out(scenario, whole_us))


@pytest.mark.parametrize("seed", range(4))
def test_with_one_worker_and_equal_deadlines_it_is_the_dynamic_program(seed: int) -> None:
    gaps = np.random.default_rng(seed).integers(0, [8, 3][seed % 2], 7)
    scenario = Scenario.of(np.cumsum(gaps) * 100e-6, 0.0016)
    found, best = optimum_by_integer_program(GRID, scenario, 32), optimum_of_one_worker(GRID, scenario, 32)
    assert found.reached == pytest.approx(found.bound) == pytest.approx(best.reached)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_it_lies_between_every_policy_and_the_fluid_bound(seed: int) -> None:
    scenario = mixed(seed, 9, 3)
    steps = round(float(np.median(scenario.deadline_us - scenario.arrival_us)) / 100.0)
    found = optimum_by_integer_program(GRID, scenario, steps)
    assert found.reached <= min(found.bound, fluid_bound(GRID, scenario)) + 1e-6
    for make in POLICIES:
        assert simulate(make(GRID), scenario).utility <= found.bound + 1e-6
    quick = {(p, int(n)): GRID.latency_us[i, j] * np.array([0.5, 1.0])
             for i, p in enumerate(GRID.points) for j, n in enumerate(GRID.sizes)}  # fmt: skip
    times = ServiceTimes.sampled(GRID, quick, seed)
    noisy = optimum_by_integer_program(GRID, scenario, steps, times.min_us.reshape(GRID.latency_us.shape))
    assert found.reached <= noisy.bound + 1e-6
    assert simulate(ValueIteration(GRID), scenario, times).utility <= noisy.bound + 1e-6


def test_what_it_says_of_nothing_of_too_much_and_of_too_little_time() -> None:
    assert optimum_by_integer_program(GRID, Scenario.of(np.empty(0), 0.003)).bound == 0.0
    hopeless = Scenario(np.zeros(2), np.full(2, 1.0))
    assert optimum_by_integer_program(GRID, hopeless).bound == 0.0
    with pytest.raises(InputError, match="unknowns is too large"):
        optimum_by_integer_program(GRID, Scenario.of(np.arange(2_000) * 1e-5, 0.003))
    hurried = optimum_by_integer_program(GRID, mixed(0, 14, 3), 24, time_limit_s=1e-3)
    assert 0.0 <= hurried.reached <= hurried.bound <= 14.0
