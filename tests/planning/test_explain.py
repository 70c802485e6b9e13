"""``slotool plan --explain``: why not one worker fewer, and what would have to change."""

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
    assert fewer["tried"]["replicas"] == found.rows[0]["replicas"] - 1
    assert fewer["tried"]["verdict"]["attainment"] == found.rows[0]["fewer"]["attainment"]
    assert min(fewer["bounds"].values()) == found.rows[0]["fewer"]["attainment_at_least"] < 0.9
    late = sum(fewer["lateness"]["not_in_time"].values())
    assert late == round((1 - fewer["tried"]["verdict"]["attainment"]) * len(traffic.times_s)) > 0
    worst = fewer["lateness"]["worst"]
    assert BURST_AT_S - 0.2 < worst["start_s"] < worst["end_s"] < BURST_AT_S + 0.4
    assert worst["late_share"] > 1 - fewer["tried"]["verdict"]["attainment"]
    assert fewer["lateness"]["half_within"] <= 2
    windows = np.histogram(traffic.times_s, fewer["lateness"]["windows"])[0]
    for window in (worst, fewer["lateness"]["busiest"]):
        assert window["rate_per_s"] == pytest.approx(window["requests"] / (window["end_s"] - window["start_s"]))
    assert fewer["lateness"]["busiest"]["requests"] == max(windows)


def test_requests_at_one_instant_have_no_windows(latency: LatencyTable) -> None:
    found = _plan(latency, ArrivalTable(pd.DataFrame({"arrival_s": np.zeros(60)})), explain=True)
    shown = " ".join(found.reasons["sentences"])
    assert found.holds
    assert found.facts["rate_per_s"] == 60
    assert "60/s come on average" in shown
    assert found.reasons["margins"]["traffic"] is None
    assert "window" not in shown


def test_limits_count_what_fits_and_say_where_the_trials_end(latency: LatencyTable) -> None:
    seldom = ArrivalTable(pd.DataFrame({"arrival_s": np.arange(60.0)}))
    margins = (found := _plan(latency, seldom, deadline_ms=6, min_accuracy=0, explain=True)).reasons["margins"]
    assert found.rows[0]["replicas"] == 1
    # The call of two takes 6.4 ms.
    assert margins["fastest_per_s"] == pytest.approx(1 / 4e-3)
    assert margins["traffic"] == {"value": 8.0, "breaks": ()}
    shown = " ".join(found.reasons["sentences"])
    assert "the same requests come 8.00 times as fast or faster, the most that is tried" in shown
    assert "none is promised" in shown


def test_where_no_fleet_holds_it_says_what_would(
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
    assert "no fleet holds, but 1 worker would do with a deadline of" in few.stdout
    assert "no fleet keeps the promise" not in few.stdout
    assert few.stderr.count("no fleet keeps the promise") == 1
    none = slotool(*command, "--deadline-ms", 3).stdout
    assert "nothing to explain: no fleet holds, because of 1 ms left for computing" in none


def test_what_would_allow_one_worker_fewer_does(latency: LatencyTable, traffic: ArrivalTable) -> None:
    found = _plan(latency, traffic, explain=True)
    fewer = found.reasons["fewer"]
    few = {"max_workers": fewer["tried"]["replicas"]}
    longer_ms = fewer["deadline_us"]["value"] / 1e3
    assert longer_ms > 60
    assert _plan(latency, traffic, deadline_ms=1.001 * longer_ms, **few).holds
    assert not _plan(latency, traffic, deadline_ms=0.9 * longer_ms, **few).holds
    share = fewer["traffic"]["value"]
    slower = ArrivalTable(pd.DataFrame({"arrival_s": traffic.times_s / share}))
    assert share < 1
    assert _plan(latency, slower, **few).holds
    shown = fewer["tried"]["verdict"]
    assert _plan(latency, traffic, attainment=shown["attainment_at_least"] - 1e-9, **few).holds


def test_the_plan_holds_as_far_as_its_margins_say(latency: LatencyTable, traffic: ArrivalTable) -> None:
    found = _plan(latency, traffic, explain=True)
    replicas, margins = {"max_workers": found.rows[0]["replicas"]}, found.reasons["margins"]
    shorter_ms = margins["deadline_us"]["value"] / 1e3
    assert shorter_ms < 60
    assert _plan(latency, traffic, deadline_ms=1.001 * shorter_ms, **replicas).holds
    times = margins["traffic"]["value"]
    faster = ArrivalTable(pd.DataFrame({"arrival_s": traffic.times_s / (0.999 * times)}))
    assert _plan(latency, faster, **replicas).holds
    assert sum(margins["point_shares"].values()) == pytest.approx(1.0)


def test_a_share_that_is_never_answered_is_called_so(latency: LatencyTable, traffic: ArrivalTable) -> None:
    """Where a promise leaves room for it."""
    found = _plan(latency, traffic, attainment=0.8, confidence=0.5, min_accuracy=0.0, max_workers=1, explain=True)
    assert found.holds
    assert found.rows[0]["p99_us"] == np.inf
    assert "more than 1 % are never answered" in " ".join(found.reasons["sentences"])


def test_a_policy_that_plans_by_deadline_is_explained_by_its_own_plans(
    latency: LatencyTable, traffic: ArrivalTable
) -> None:
    counted: list[tuple[str, int, int | None]] = []

    def count(text: str, done: int, total: int | None) -> None:
        counted.append((text, done, total))

    promise = {"attainment": 0.9, "min_accuracy": 0.82, "reserve_ms": 0, "policies": "hindsight"}
    found = api.plan(latency, arrivals=traffic, deadline_ms=60, explain=True, progress=count, **promise)
    limit, few = found.reasons["margins"]["deadline_us"], {"max_workers": found.rows[0]["replicas"], **promise}
    assert limit["breaks"]
    for holds, times in ((True, 1.0), (False, 8 ** (-1 / 128))):
        shorter_ms = times * limit["value"] / 1e3
        assert api.plan(latency, arrivals=traffic, deadline_ms=shorter_ms, progress=None, **few).holds == holds
    explained = [(done, total) for text, done, total in counted if text == "fleets to explain the plan"]
    assert explained[-1][0] == explained[-1][1]


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
    for sentence in document["reasons"]["sentences"]:
        assert sentence in shown
    changes = {tried["change"] for tried in document["reasons"]["alternatives"]}
    assert {"point", "batch limit"} <= changes
    assert all(tried["misses"] for tried in document["reasons"]["alternatives"] if tried["change"] == "policy")
    assert slotool(*command[:-1], "--json").document["reasons"] is None
