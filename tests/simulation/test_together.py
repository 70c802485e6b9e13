"""Several models on the same workers: the compiled loop beside the server's dispatchers and its choice of queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.scheduling import Dispatcher, Query, RequestOutcome, Workers
from slotool.scheduling.batching import BatchingPolicy, ControlGrid, make_policy
from slotool.serving.routing.model_queue import earliest_deadline
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.simulation.events import MAX_MODELS, ROUNDING_US, simulate_together
from slotool.simulation.scenario import EXPIRED, IN_TIME, LATE, REJECTED, SimulationResult
from slotool.testing.policies import three_versions

GRID = ControlGrid(three_versions())
POLICIES = [make_policy(name, GRID, 3_000.0) for name in ("slackfit", "maxacc", "maxbatch")]
COLUMNS = ("status", "row", "batch", "started_us", "done_us")


def times(seed: int) -> ServiceTimes:
    generator = np.random.default_rng(seed)
    cells = [(point, int(size)) for point in GRID.points for size in GRID.sizes]
    samples = {
        (point, size): GRID.latency_us[GRID.index(point), GRID.columns_for(size)] * generator.uniform(0.7, 1.4, 20)
        for point, size in cells
    }
    return ServiceTimes.sampled(GRID, samples, seed)


def plainly(
    policies: Sequence[BatchingPolicy], scenarios: Sequence[Scenario], taken: Sequence[ServiceTimes]
) -> list[dict[str, np.ndarray]]:
    """What a router makes of them, a worker after the other, with all queues expired while no worker was idle."""
    workers = Workers(len(scenarios[0].death_us))
    queues = [SimpleNamespace(dispatcher=Dispatcher(policy, workers)) for policy in policies]
    found = [{"status": np.full(len(each), EXPIRED), "row": np.full(len(each), -1), "batch": np.zeros(len(each), int),
              "started_us": np.full(len(each), np.nan), "done_us": np.full(len(each), np.nan)}
             for each in scenarios]  # fmt: skip
    arrived, calls, now_us = [0] * len(policies), [0] * len(policies), 0.0
    busy: dict[int, tuple[float, int]] = {}
    while True:
        now_us = max(now_us, float(workers.free_us.min()))
        if not any(len(queue.dispatcher.queue) for queue in queues):
            ahead = [s.arrival_us[at] for s, at in zip(scenarios, arrived, strict=True) if at < len(s)]
            if not ahead:
                return found
            now_us = max(now_us, min(ahead))
        for worker, (done_us, model) in sorted(busy.items(), key=lambda item: item[1]):
            if done_us <= now_us:
                queues[model].dispatcher.finished(worker, done_us)
                del busy[worker]
        for model, scenario in enumerate(scenarios):
            while arrived[model] < len(scenario) and scenario.arrival_us[arrived[model]] <= now_us:
                at = arrived[model]
                query = Query(str(at), float(scenario.arrival_us[at]), float(scenario.deadline_us[at]))
                queues[model].dispatcher.arrive(query)
                arrived[model] += 1
            queues[model].dispatcher.queue.expire(now_us)
        chosen = earliest_deadline(queues)
        if chosen is None:
            continue
        model = queues.index(chosen)
        batch, dropped = chosen.dispatcher.next_batch(now_us)
        for drop in dropped:
            assert drop.outcome is RequestOutcome.REJECTED
            found[model]["status"][int(drop.query.id)] = REJECTED
        if batch is None:
            continue
        row, size = GRID.index(batch.decision.point), len(batch.queries)
        done_us = now_us + taken[model].draw(row * len(GRID.sizes) + GRID.columns_for(size), calls[model])
        calls[model] += 1
        workers.free_us[batch.worker] = done_us
        busy[batch.worker] = done_us, model
        for query in batch.queries:
            mine = found[model]
            mine["status"][int(query.id)] = IN_TIME if done_us <= query.deadline_us + ROUNDING_US else LATE
            mine["row"][int(query.id)], mine["batch"][int(query.id)] = row, size
            mine["started_us"][int(query.id)], mine["done_us"][int(query.id)] = now_us, done_us


@st.composite
def several(draw: st.DrawFn) -> list[Scenario]:
    workers = draw(st.integers(1, 3))
    found = []
    for seed in draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=3)):
        generator = np.random.default_rng(seed)
        gaps_us = generator.exponential(draw(st.sampled_from([40.0, 200.0, 1_500.0])), draw(st.integers(0, 80)))
        found.append(Scenario.of(np.cumsum(gaps_us) / 1e6, draw(st.sampled_from([8e-4, 3e-3, 9e-3])), workers))
    return found


def alike(found: SimulationResult, plain: dict[str, np.ndarray]) -> None:
    for column in COLUMNS:
        equal_nan = column.endswith("_us")
        assert np.array_equal(getattr(found, column), plain[column], equal_nan=equal_nan), column


@given(several())
@settings(max_examples=60, deadline=None)
def test_models_share_workers_as_the_servers_queues_do(scenarios: list[Scenario]) -> None:
    policies, taken = POLICIES[: len(scenarios)], [times(seed) for seed in range(len(scenarios))]
    for found, plain in zip(
        simulate_together(policies, scenarios, taken), plainly(policies, scenarios, taken), strict=True
    ):
        alike(found, plain)


@given(several(), st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_a_model_without_requests_changes_nothing(scenarios: list[Scenario], policy: int) -> None:
    """Also where workers die."""
    death_us = np.append(np.full(len(scenarios[0].death_us) - 1, 4e3), np.inf)
    first = replace(scenarios[0], death_us=death_us)
    idle = replace(Scenario.of(np.zeros(0), 1e-3), death_us=death_us)
    together = simulate_together([POLICIES[0], POLICIES[policy]], [idle, first], [times(1), times(2)])[1]
    alone = simulate(POLICIES[policy], first, times(2))
    alike(together, {column: getattr(alone, column) for column in COLUMNS})
    assert (together.calls, together.busy_us) == (alone.calls, pytest.approx(alone.busy_us))


@given(several(), st.integers(2, 4))
@settings(max_examples=20, deadline=None)
def test_busy_workers_of_a_machine_slow_each_other_down(scenarios: list[Scenario], per_machine: int) -> None:
    """As in the simulation of one model."""
    first, idle = scenarios[0], Scenario.of(np.zeros(0), 1e-3, len(scenarios[0].death_us))
    alone_us = times(2)
    slower = ServiceTimes.colocated(
        [ServiceTimes((1 + 0.4 * busy) * alone_us.values, alone_us.starts, 2) for busy in range(per_machine)]
    )
    together = simulate_together(POLICIES[:2], [idle, first], [times(1), slower])[1]
    alone = simulate(POLICIES[1], first, slower)
    alike(together, {column: getattr(alone, column) for column in COLUMNS})


@given(several(), st.sampled_from([50.0, 5_000.0]))
@settings(max_examples=20, deadline=None)
def test_calls_of_workers_that_rested_take_longer(scenarios: list[Scenario], memory_us: float) -> None:
    """As in the simulation of one model."""
    first, idle = scenarios[0], Scenario.of(np.zeros(0), 1e-3, len(scenarios[0].death_us))
    plain = times(2)
    longer = ServiceTimes(plain.values, plain.starts, 2, idle=1.5 * plain.values, memory_us=memory_us)
    together = simulate_together(POLICIES[:2], [idle, first], [times(1), longer])[1]
    alone = simulate(POLICIES[1], first, longer)
    alike(together, {column: getattr(alone, column) for column in COLUMNS})


def test_calls_of_another_model_keep_a_worker_from_resting() -> None:
    """Of two queries at one instant the first is the other model's."""
    one, other = (Scenario.of(np.array([1.0]), deadline_s) for deadline_s in (0.02, 0.03))
    plain = ServiceTimes.planned(GRID)
    longer = ServiceTimes(plain.values, plain.starts, idle=2 * plain.values, memory_us=1.0)
    first, second = simulate_together(POLICIES[1:2] * 2, [one, other], [longer, longer])
    rested_us, busy_us = (float((each.done_us - each.started_us)[0]) for each in (first, second))
    assert rested_us == pytest.approx(2 * busy_us)


def test_what_cannot_be_simulated_together_is_refused() -> None:
    one, other = Scenario.of(np.array([0.0, 1.0]), 0.01, 1), Scenario.of(np.array([0.0]), 0.01, 2)
    with pytest.raises(InputError, match="have the same number"):
        simulate_together(POLICIES[:2], [one, other], [times(0)] * 2)
    with pytest.raises(InputError, match=f"1 to {MAX_MODELS} can"):
        simulate_together([], [], [])
