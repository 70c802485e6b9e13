"""``slotool plan`` has workers come with the load where peaks need more than the mean, and the promise still holds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.planning.scaling import START_S
from slotool.scheduling.worker_counts import CALM_S, Autoscaler
from slotool.tables import LatencyTable
from slotool.workloads import ArrivalTable
from tests.machines import UNKNOWN, run_as

LOW_PER_S, HIGH_PER_S = 60.0, 600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_as(UNKNOWN, monkeypatch, cores_given=8)
    generator = np.random.default_rng(5)
    rows = LatencyTable.of(
        {
            "subject": "net",
            "point": "full",
            "batch_size": size,
            "samples_s": list(4e-3 * (0.4 + 0.6 * size) * generator.lognormal(0, 0.05, 30)),
        }
        for size in (1, 2, 4)
    ).rows
    LatencyTable(rows.assign(accuracy=0.9)).save(tmp_path / "latency.parquet")
    (tmp_path / "artifact").mkdir()
    return tmp_path


def planned(folder: Path, rates_per_s: np.ndarray) -> tuple[api.Plan, dict[str, Any], np.ndarray]:
    """Under Poisson arrivals of these rates, one a second: plan, service file and instants."""
    generator = np.random.default_rng(7)
    times_s = np.concatenate(
        [second + np.sort(generator.random(generator.poisson(rate))) for second, rate in enumerate(rates_per_s)]
    )
    found = api.plan(
        folder / "latency.parquet", arrivals=ArrivalTable(pd.DataFrame({"arrival_s": times_s})), deadline_ms=60,
        attainment=0.98, policies="fixed", artifact=folder / "artifact", out=folder / "service.toml", progress=None,
    )  # fmt: skip
    return found, tomllib.loads((folder / "service.toml").read_text()), times_s


def test_workers_come_with_a_load_that_grows_slowly(folder: Path) -> None:
    ramp = np.linspace(LOW_PER_S, HIGH_PER_S, 60)
    low = np.full(40, LOW_PER_S)
    found, service, times_s = planned(folder, np.concatenate([low, ramp, ramp[::-1], low]))
    limits = found.scaling
    assert limits is not None
    replicas = found.rows[0]["replicas"]
    assert 1 <= service["replicas"] < service["max-replicas"] == replicas
    assert service["requests-per-worker"] == limits["requests_per_worker"]
    assert service["replicas"] <= limits["mean_workers"] < 0.9 * replicas
    assert limits["verdict"]["attainment_at_least"] >= 0.98
    assert "workers that come with the load keep it too" in str(found)
    # As the server scales: all of them at the peak, and as few as written before.
    autoscaler = Autoscaler(service["replicas"], service["max-replicas"], service["requests-per-worker"])
    workers = [service["replicas"]]
    for second in range(1, int(times_s[-1])):
        change = autoscaler.look(float(second), int(np.searchsorted(times_s, second)), workers[-1])
        workers.append(workers[-1] if change is None else change.workers)
    assert set(workers[:30]) == {service["replicas"]}
    assert max(workers[: 100 + int(START_S)]) == replicas
    assert workers[-1] < replicas


@pytest.mark.parametrize("shape", ["jumps", "constant"])
def test_all_workers_are_there_always_where_fewer_would_not_do(folder: Path, shape: str) -> None:
    """A load that jumps does not wait until workers have started; one that stays has nothing to scale by."""
    jumps = np.tile(np.repeat([LOW_PER_S, HIGH_PER_S], [int(CALM_S) + 5, 10]), 3)
    found, service, _ = planned(folder, jumps if shape == "jumps" else np.full(60, 400.0))
    assert found.rows[0]["replicas"] > 1
    assert found.scaling is None
    assert service["replicas"] == found.rows[0]["replicas"]
    assert "max-replicas" not in service


def test_workers_that_models_share_come_with_the_load_of_all(folder: Path) -> None:
    """One of them grows while the other falls, by less."""
    ramp = np.linspace(LOW_PER_S, HIGH_PER_S, 60)
    low, generator = np.full(40, LOW_PER_S), np.random.default_rng(7)
    models: list[dict[str, Any]] = []
    for name, rates_per_s in (("growing", np.concatenate([low, ramp, ramp[::-1], low])), ("steady", np.full(200, 40))):
        times_s = np.concatenate(
            [second + np.sort(generator.random(generator.poisson(rate))) for second, rate in enumerate(rates_per_s)]
        )
        arrivals = ArrivalTable(pd.DataFrame({"arrival_s": times_s}))
        own = {"name": name, "latency": folder / "latency.parquet", "artifact": folder / "artifact"}
        models.append({**own, "arrivals": arrivals, "deadline_ms": 60})
    found = api.plan(models=models, attainment=0.98, policies="fixed", out=folder / "service.toml", progress=None)
    service, limits = tomllib.loads((folder / "service.toml").read_text()), found.scaling
    assert found.rows[0]["kind"] == "shared"
    assert limits is not None
    assert 1 <= service["replicas"] < service["max-replicas"] == found.rows[0]["replicas"]
    assert service["requests-per-worker"] == limits["requests_per_worker"]
    assert limits["mean_workers"] < 0.9 * found.rows[0]["replicas"]
    assert set(limits["verdicts"]) == {"growing", "steady"}
    assert all(verdict["attainment_at_least"] >= 0.98 for verdict in limits["verdicts"].values())
    assert "workers that come with the load keep it too" in str(found)
