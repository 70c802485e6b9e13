"""``slotool plan --explain``: what one worker fewer misses of the promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.tables import LatencyTable
from slotool.workloads import ArrivalTable, Poisson
from tests.conftest import Slotool

CALM_PER_S, BURST_AT_S, BURST = 40.0, 2.2, 60


@pytest.fixture
def latency() -> LatencyTable:
    """Two versions, 4 and 10 ms for one request."""
    points = {"version=small": (4e-3, 0.8), "version=large": (10e-3, 0.95)}
    rows = LatencyTable.of(
        {"subject": "net", "point": point, "batch_size": size, "samples_s": [one_s * (0.4 + 0.6 * size)] * 3}
        for point, (one_s, _) in points.items()
        for size in (1, 2, 4)
    ).rows
    return LatencyTable(rows.assign(accuracy=[points[point][1] for point in rows["point"]]))


@pytest.fixture
def traffic() -> ArrivalTable:
    """Few requests for four seconds, and a burst within a tenth of one."""
    calm_s = Poisson(CALM_PER_S).times(4.0, seed=1)
    burst_s = np.linspace(BURST_AT_S, BURST_AT_S + 0.1, BURST)
    return ArrivalTable(pd.DataFrame({"arrival_s": np.sort(np.concatenate([calm_s, burst_s]))}))


def _plan(latency: LatencyTable, traffic: ArrivalTable, **other: Any) -> Any:
    promise: dict[str, Any] = {"deadline_ms": 60, "attainment": 0.9, "min_accuracy": 0.85, **other}
    return api.plan(latency, arrivals=traffic, policies="maxacc", reserve_ms=0, progress=None, **promise)


def test_one_worker_fewer_fails_where_the_burst_is(latency: LatencyTable, traffic: ArrivalTable) -> None:
    found = _plan(latency, traffic, explain=True)
    fewer = found.reasons["fewer"]
    assert fewer["replicas"] == found.rows[0]["replicas"] - 1
    assert fewer["verdict"]["attainment"] == found.rows[0]["fewer"]["attainment"]
    assert fewer["misses"] == found.rows[0]["fewer"]["misses"]
    assert min(fewer["bounds"].values()) == found.rows[0]["fewer"]["attainment_at_least"] < 0.9
    late = sum(fewer["lateness"]["not_in_time"].values())
    assert late == round((1 - fewer["verdict"]["attainment"]) * len(traffic.times_s)) > 0
    worst = fewer["lateness"]["worst"]
    assert BURST_AT_S - 0.2 < worst["start_s"] < worst["end_s"] < BURST_AT_S + 0.4
    assert worst["late_share"] > 1 - fewer["verdict"]["attainment"]
    assert fewer["lateness"]["half_within"] <= 2
    windows = np.histogram(traffic.times_s, fewer["lateness"]["windows"])[0]
    for window in (worst, fewer["lateness"]["busiest"]):
        assert window["rate_per_s"] == pytest.approx(window["requests"] / (window["end_s"] - window["start_s"]))
    assert fewer["lateness"]["busiest"]["requests"] == max(windows)


def test_a_promise_of_what_was_shown_allows_one_worker_fewer(latency: LatencyTable, traffic: ArrivalTable) -> None:
    fewer = _plan(latency, traffic, explain=True).reasons["fewer"]
    less = {"attainment": fewer["verdict"]["attainment_at_least"] - 1e-9, "max_workers": fewer["replicas"]}
    assert _plan(latency, traffic, **less).holds


def test_requests_at_one_instant_have_no_windows(latency: LatencyTable) -> None:
    found = _plan(latency, ArrivalTable(pd.DataFrame({"arrival_s": np.zeros(60)})), explain=True)
    assert found.holds
    assert found.facts["rate_per_s"] == 60
    assert "window" not in " ".join(found.reasons["sentences"])


def test_one_worker_needs_no_explanation(latency: LatencyTable) -> None:
    seldom = ArrivalTable(pd.DataFrame({"arrival_s": np.arange(60.0)}))
    found = _plan(latency, seldom, min_accuracy=0, explain=True)
    assert found.rows[0]["replicas"] == 1
    assert found.reasons["fewer"] is None
    assert found.reasons["sentences"]


def test_where_no_fleet_holds_the_closest_is_explained(
    slotool: Slotool, tmp_path: Path, latency: LatencyTable, traffic: ArrivalTable
) -> None:
    latency.save(tmp_path / "latency.parquet")
    traffic.save(tmp_path / "arrivals.parquet")
    command = (
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--policies", "maxacc",
        "--attainment", 0.9, "--explain",
    )  # fmt: skip
    few = slotool(*command, "--deadline-ms", 60, "--max-workers", 1, "--min-accuracy", 0.85)
    assert few.exit_code == 1
    assert "with 1 worker: attainment is" in few.stdout
    assert few.stderr.count("no fleet keeps the promise") == 1
    none = slotool(*command, "--deadline-ms", 3).stdout
    assert "nothing to explain: no fleet holds, because of 1 ms left for computing" in none


def test_the_command_says_why_in_sentences(
    slotool: Slotool, tmp_path: Path, latency: LatencyTable, traffic: ArrivalTable
) -> None:
    latency.save(tmp_path / "latency.parquet")
    traffic.save(tmp_path / "arrivals.parquet")
    command = (
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 60,
        "--attainment", 0.9, "--min-accuracy", 0.85, "--policies", "maxacc,slackfit,fixed", "--explain",
    )  # fmt: skip
    document = slotool(*command, "--json").document
    shown = slotool(*command).stdout
    assert document["reasons"]["sentences"]
    for sentence in document["reasons"]["sentences"]:
        assert sentence in shown
    assert slotool(*command[:-1], "--json").document["reasons"] is None
