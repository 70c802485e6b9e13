"""The virtual clock: two loops with one answer, faults, and what a person can check by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.scheduling.batching import POLICIES as REGISTRY
from slotool.scheduling.batching import (
    BatchingPolicy,
    ControlGrid,
    FixedBatching,
    MaxBatch,
    ModelSwitching,
    SlackFit,
    make_policy,
)
from slotool.scheduling.space import ControlSpace
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.simulation.scenario import EXPIRED, IN_TIME, REJECTED
from slotool.testing.policies import three_versions
from tests.simulation.plain_simulation import simulate_plainly

GRID = ControlGrid(three_versions())
POLICIES = (SlackFit, MaxBatch, ModelSwitching, FixedBatching)


@cache
def policy_named(name: str) -> BatchingPolicy:
    """Made once, and not before it is asked for: value iteration takes a second."""
    return make_policy(name, GRID, 3_000.0)


def noisy() -> ServiceTimes:
    generator = np.random.default_rng(3)
    samples = {
        (point, int(size)): GRID.latency_us[p, b] * generator.uniform(0.7, 1.1, 50)
        for p, point in enumerate(GRID.points)
        for b, size in enumerate(GRID.sizes)
    }
    return ServiceTimes.sampled(GRID, samples, seed=5)


def rested(times: ServiceTimes, ratio: float, memory_us: float, saturation: float = 1.0) -> ServiceTimes:
    """The same, where calls of workers that have rested take so many times as long."""
    values = times.values
    return ServiceTimes(values, times.starts, times.seed, times.per_machine, ratio * values, memory_us, saturation)


MEMORIES_US = st.sampled_from([1.0, 300.0, 20_000.0])


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    count, workers = draw(st.integers(1, 120)), draw(st.integers(1, 4))
    arrivals = np.cumsum(generator.exponential(draw(st.sampled_from([30.0, 200.0, 1_500.0])), count))
    slacks = generator.uniform(80.0, 6_000.0, count) if draw(st.booleans()) else np.full(count, 3_000.0)
    deadlines = np.maximum.accumulate(arrivals + np.maximum(slacks, 101.0 * (np.arange(count) == 0)))
    deaths = np.full(workers, np.inf)
    for worker in range(draw(st.integers(0, workers))):
        deaths[worker] = generator.uniform(0.0, 1.2 * arrivals[-1])
    return Scenario(arrivals, deadlines, deaths)


@pytest.mark.parametrize("name", REGISTRY)
@given(scenario=scenarios(), noise=st.booleans(), memory_us=st.one_of(st.none(), MEMORIES_US))
@settings(max_examples=20, deadline=None)
def test_the_compiled_loop_and_the_plain_one_around_the_servers_queue_agree(
    name: str, scenario: Scenario, noise: bool, memory_us: float | None
) -> None:
    policy = policy_named(name)
    times = noisy() if noise else ServiceTimes.planned(GRID)
    if memory_us is not None:
        times = rested(times, 1.4, memory_us, 0.6)
    fast, plain = simulate(policy, scenario, times), simulate_plainly(policy, GRID, scenario, times)
    for column in ("status", "row", "batch", "started_us", "done_us"):
        assert np.array_equal(getattr(fast, column), getattr(plain, column), equal_nan=column.endswith("_us")), column
    assert (fast.calls, fast.busy_us) == (plain.calls, pytest.approx(plain.busy_us))


@given(scenarios(), st.sampled_from(POLICIES))
@settings(max_examples=20, deadline=None)
def test_every_query_is_counted_once_and_no_worker_does_two_things_at_a_time(
    scenario: Scenario, make: type[BatchingPolicy]
) -> None:
    outcome = simulate(make(GRID), scenario)
    summary = outcome.summary()
    in_time = round(summary["attainment"] * len(scenario))
    assert in_time + summary["late"] + summary["drops"] == len(scenario)
    assert summary["late"] == 0, "without noise a decision keeps its deadline"
    served = outcome.status == IN_TIME
    assert (outcome.started_us[served] >= scenario.arrival_us[served]).all()
    starts = np.unique(outcome.started_us[served])
    for at_us in starts:
        running = served & (outcome.started_us <= at_us) & (outcome.done_us > at_us)
        calls = len(set(zip(outcome.started_us[running], outcome.done_us[running], strict=True)))
        assert calls <= len(scenario.death_us)
    assert 0 <= summary["utilisation"] <= 1 + 1e-9


@given(scenarios(), MEMORIES_US)
@settings(max_examples=20, deadline=None)
def test_workers_whose_calls_are_alike_when_they_rested_change_nothing(scenario: Scenario, memory_us: float) -> None:
    policy, times = policy_named("slackfit"), noisy()
    one, other = simulate(policy, scenario, times), simulate(policy, scenario, rested(times, 1.0, memory_us))
    for column in ("status", "row", "batch", "started_us", "done_us"):
        assert np.array_equal(getattr(one, column), getattr(other, column), equal_nan=column.endswith("_us")), column


@given(scenarios(), st.floats(1.0, 3.0), MEMORIES_US)
@settings(max_examples=20, deadline=None)
def test_calls_take_between_what_busy_and_rested_workers_take(
    scenario: Scenario, ratio: float, memory_us: float
) -> None:
    """More cannot be said: a longer call leaves its worker less rested, so that a later answer may come earlier."""
    found = simulate(FixedBatching(GRID), scenario, rested(ServiceTimes.planned(GRID), ratio, memory_us))
    served = found.row >= 0
    columns = [GRID.columns_for(size) for size in found.batch[served]]
    planned_us, took_us = GRID.latency_us[found.row[served], columns], (found.done_us - found.started_us)[served]
    assert (took_us >= planned_us - 1e-6).all()
    assert (took_us <= ratio * planned_us + 1e-6).all()


def test_a_call_takes_its_time_by_how_busy_its_worker_was() -> None:
    """Three queries, the second right behind the first, the third long after: by hand, over a memory of 100 µs."""
    only = ControlGrid(ControlSpace(GRID.points[:1], {(GRID.points[0], 1): 100.0}, {GRID.points[0]: 0.9}))
    scenario = Scenario.of(np.array([1.0, 1.0, 2.0]), 0.5)
    found = simulate(FixedBatching(only), scenario, rested(ServiceTimes.planned(only), 2.0, 100.0))
    second_us = 200.0 - 100.0 * (1 - np.exp(-2.0))
    assert found.done_us - found.started_us == pytest.approx([200.0, second_us, 200.0])
    found = simulate(FixedBatching(only), scenario, rested(ServiceTimes.planned(only), 2.0, 100.0, saturation=0.8))
    assert found.done_us - found.started_us == pytest.approx([200.0, 100.0, 200.0]), "it was busy enough"


def test_one_query_by_hand() -> None:
    outcome = simulate(SlackFit(GRID), Scenario.of(np.array([1.0]), 0.005))
    assert outcome.status.tolist() == [IN_TIME]
    assert outcome.done_us[0] - outcome.started_us[0] == pytest.approx(GRID.latency_us[outcome.row[0], 0])
    assert outcome.summary()["effective_accuracy"] == GRID.accuracy[outcome.row[0]]


def test_a_dying_worker_gives_its_batch_back() -> None:
    """Worker one starts the only query at 1 s, dies in it, and worker two answers it in what is left."""
    scenario = Scenario.of(np.array([1.0]), 0.004, workers=2, death_s=(1.001,))
    outcome = simulate(FixedBatching(GRID), scenario)
    assert outcome.status.tolist() == [IN_TIME]
    assert outcome.started_us[0] == pytest.approx(1.001e6)
    assert simulate(FixedBatching(GRID), Scenario.of(np.array([1.0]), 0.0025, 2, (1.001,))).status[0] == REJECTED
    assert simulate(FixedBatching(GRID), Scenario.of(np.array([1.0]), 0.004, 1, (1.001,))).status[0] == EXPIRED


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"times_s": np.array([1.0, 0.5])}, "in ascending order"),
        ({"times_s": np.array([-1.0, 0.5])}, "not negative"),
        ({"times_s": np.array([1.0, np.nan])}, "must be finite"),
        ({"deadline_s": 0.0}, "after its query's arrival"),
        ({"deadline_s": np.array([1.0])}, "1 values of deadline_us for 2|after its query"),
        ({"deadline_s": np.array([2.0, 0.1])}, "in the order of the arrivals"),
        ({"workers": 0}, "0 workers"),
        ({"death_s": (1.0, 2.0)}, "2 deaths among 1 worker"),
        ({"death_s": (-1.0,)}, "at a positive time"),
    ],
)
def test_impossible_scenarios_are_rejected(change: dict[str, object], sentence: str) -> None:
    arguments = {"times_s": np.array([0.5, 1.0]), "deadline_s": 0.1} | change
    if "1 values" in sentence:
        arguments = {"times_s": np.array([0.5, 1.0]), "deadline_s": np.array([-1.0, 1.0])}
    with pytest.raises(InputError, match=sentence):
        Scenario.of(**arguments)


def test_a_deadline_below_the_fastest_point_is_rejected() -> None:
    with pytest.raises(InputError, match=r"one query, 0\.1 ms"):
        simulate(SlackFit(GRID), Scenario.of(np.array([1.0]), 0.00005))


def test_a_cell_without_samples_is_rejected() -> None:
    with pytest.raises(InputError, match="no latency sample of version=small at batch size 1"):
        ServiceTimes.sampled(GRID, {})
