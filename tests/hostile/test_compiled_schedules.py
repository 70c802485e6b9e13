"""What reaches the compiled policies and the compiled event loop: figures of every wrong kind are rejected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.errors import InputError
from slotool.scheduling.batching import POLICIES, ControlGrid, make_policy
from slotool.scheduling.batching.kernel import REJECT
from slotool.scheduling.space import ControlSpace
from slotool.simulation.scenario import Scenario
from slotool.simulation.service import ServiceTimes
from slotool.tables import OperatingPoint

SMALL, LARGE = OperatingPoint.of(version="small"), OperatingPoint.of(version="large")
TESTS = Path(__file__).parent.parent


def grid(latency_us: dict[int, float] | None = None) -> ControlGrid:
    times = latency_us or {1: 100.0, 4: 150.0}
    by_cell = {(point, size): us * (1 + (point == LARGE)) for point in (SMALL, LARGE) for size, us in times.items()}
    return ControlGrid(ControlSpace([SMALL, LARGE], by_cell, {SMALL: 0.7, LARGE: 0.9}))


@pytest.mark.parametrize("us", [np.nan, np.inf, -1.0, 0.0, 1e300, 1e14])
def test_latencies_that_no_call_takes_are_rejected(us: float) -> None:
    with pytest.raises(InputError, match="not a positive, finite time"):
        grid({1: 100.0, 4: us})


@pytest.mark.parametrize("size", [0, -1, 2**15, 2**62])
def test_batch_sizes_that_cannot_be_are_rejected(size: int) -> None:
    with pytest.raises(InputError, match="a batch has 1 to 32,767 examples"):
        grid({size: 100.0, 4: 100.0})


@pytest.mark.parametrize(
    ("values", "starts"),
    [
        ([1.0], [0]),
        ([1.0], [0, 2]),
        ([1.0], [0, -1]),
        ([1.0, 2.0], [0, 2, 2]),
        ([1.0, 2.0], [1, 2]),
        ([1.0, 2.0], [0, 2, 1, 2]),
        ([1.0], []),
        ([np.nan], [0, 1]),
        ([-1.0], [0, 1]),
        ([np.inf], [0, 1]),
        ([[1.0]], [0, 1]),
    ],
)
def test_service_times_that_point_elsewhere_are_rejected(values: Any, starts: Any) -> None:
    with pytest.raises(InputError, match="service times"):
        ServiceTimes(np.array(values), np.array(starts, dtype=np.int64))


@pytest.mark.parametrize(
    ("idle", "memory_us"),
    [([1.0], 5.0), ([1.0, np.nan], 5.0), ([1.0, 0.0], 5.0), ([1.0, 2.0], 0.0), ([1.0, 2.0], -1.0)],
)
def test_service_times_of_idle_workers_that_cannot_be_are_rejected(idle: list[float], memory_us: float) -> None:
    with pytest.raises(InputError, match="service times"):
        ServiceTimes(np.ones(2), np.array([0, 1, 2]), idle=np.array(idle), memory_us=memory_us)


def test_service_times_of_another_grid_are_rejected() -> None:
    from slotool.scheduling.batching import MaxAccuracy
    from slotool.simulation import simulate

    scenario = Scenario(np.zeros(1), np.full(1, 1e4))
    with pytest.raises(InputError, match="service times of 1 cells for a grid of 4"):
        simulate(MaxAccuracy(grid()), scenario, ServiceTimes(np.ones(1), np.array([0, 1])))


@pytest.mark.parametrize(
    "changed",
    [
        {"arrival_us": [np.nan, 1.0]},
        {"arrival_us": [0.0, 1e300]},
        {"arrival_us": [0.0, 1e14], "deadline_us": [1.0, 1e15]},
        {"deadline_us": [np.nan, 9.0]},
        {"death_us": [np.nan]},
        {"death_us": [[1.0]]},
        {"death_us": []},
        {"arrival_us": [[0.0], [1.0]]},
    ],
)
def test_scenarios_that_cannot_be_are_rejected(changed: dict[str, Any]) -> None:
    good = {"arrival_us": [0.0, 1.0], "deadline_us": [8.0, 9.0], "death_us": [np.inf]}
    with pytest.raises((InputError, ValueError)):
        Scenario(**{name: np.array(value) for name, value in {**good, **changed}.items()})
    Scenario(**{name: np.array(value) for name, value in good.items()})


@pytest.mark.parametrize("name", POLICIES)
def test_choices_asked_for_directly_with_what_does_not_fit_are_rejected(name: str) -> None:
    policy = make_policy(name, grid(), 1_000.0)
    own = policy.grid
    good: dict[str, Any] = {
        "latency_us": own.latency_us,
        "accuracy": own.accuracy,
        "sizes": own.sizes,
        "plan": policy.plan,
        "now_us": 0.0,
        "deadlines_us": np.full(2, 900.0),
        "lowest": 0,
        "narrowest": 0,
        "arrived_us": np.zeros(2),
        "free_us": np.zeros(1),
    }
    choose, cells = type(policy).choose, own.latency_us.size
    assert 0 <= choose(*good.values()) < cells
    far = 2**40
    wrong: list[dict[str, Any]] = [{"lowest": value} for value in (-1, 2, far, -far)]
    wrong += [{"narrowest": value} for value in (-1, 2, far, -far)]
    wrong += [{"deadlines_us": np.zeros(0)}, {"accuracy": own.accuracy[:1].copy()}, {"sizes": own.sizes[:1].copy()}]
    if len(policy.plan):
        wrong.append({"plan": np.zeros(0)})
    for changed in wrong:
        assert choose(*{**good, **changed}.values()) == REJECT, changed
    rng = np.random.default_rng(0)
    for at in range(min(len(policy.plan), 200)):
        for value in (-1.0, 0.0, 1e6, 1e18, np.inf, -np.inf, np.nan, float(rng.integers(100))):
            plan = policy.plan.copy()
            plan[at] = value
            assert REJECT <= choose(*{**good, "plan": plan}.values()) < cells, (at, value)


@pytest.mark.skipif(not os.environ.get("SLOTOOL_HOSTILE_SECONDS"), reason="minutes of compiling: see make hostile")
def test_schedules_and_simulations_keep_within_bounds(tmp_path: Path) -> None:
    """Their own tests once more, compiled with every index checked."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    which = ["scheduling/test_batching_policies.py", "simulation/test_simulation.py", "simulation/test_bound.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which]
    ended = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-3_000:]
