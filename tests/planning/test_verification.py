"""``plan --verify``: a fleet as planned, with the front end as probed, and as a real server serves it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import slotool as api
from slotool.artifacts.bundle import shipped_artifact
from slotool.data import DataSource
from slotool.errors import InputError, PromiseBroken
from slotool.planning import front_end, verification
from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.front_end import FrontEnd, burst_times_s, fastest_apart, read_in_turn
from slotool.planning.model_on_workers import Demand, all_busy
from slotool.planning.planner import Planner
from slotool.planning.promise import Promise
from slotool.planning.traffic import Traffic
from slotool.planning.verified_plan import FRONT_END, examples_sent
from slotool.scheduling.batching import read_profile
from slotool.simulation.service import Overhead
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads import ArrivalTable, Poisson
from slotool.workloads.requests import RequestLog
from tests.conftest import Slotool
from tests.machines import UNKNOWN, run_as


def table(one_s: float = 1e-3) -> LatencyTable:
    """One point, whose calls of four take twice as long as those of one."""
    rows = [
        {"subject": "net", "point": "version=only", "batch_size": size, "samples_s": [took_s] * 5}
        for size, took_s in ((1, one_s), (4, 2 * one_s))
    ]
    return LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=0.9))


def worker(one_s: float = 1e-3) -> WorkerType:
    return WorkerType("one", read_profile(table(one_s)), 1, 1.0)


def log(outside_ms: np.ndarray, compute_ms: float, status: int = 200) -> RequestLog:
    count = len(outside_ms)
    intended_s = np.arange(count) * 0.02
    took_s = 1e-3 * (outside_ms + compute_ms)
    rows = {"intended_s": intended_s, "sent_s": intended_s, "done_s": intended_s + took_s, "status": status,
            "label": 1, "answer": np.where(status == 200, 1, -1), "point": "version=only", "deadline_s": 0.02,
            "queue_s": 0.0, "compute_s": 1e-3 * compute_ms}  # fmt: skip
    return RequestLog(pd.DataFrame(rows))


def log_of(due_s: np.ndarray, took_us: np.ndarray) -> RequestLog:
    """Of requests within 50 ms; infinite: without an answer."""
    lost = ~np.isfinite(took_us)
    done_s = due_s + 1e-6 * np.where(lost, 0.0, took_us)
    rows = log(np.zeros(len(due_s)), 1.0).rows
    return RequestLog(
        rows.assign(intended_s=due_s, sent_s=due_s, done_s=done_s, status=np.where(lost, 503, 200), deadline_s=0.05)
    )


def test_the_front_end_is_what_the_table_does_not_know() -> None:
    outside_ms = np.linspace(0.4, 0.8, 101)
    front_end = FrontEnd.of_probe(log(outside_ms, 1.25), worker().profile)
    assert front_end.overhead.call_us == pytest.approx(250.0), (
        "calls take a quarter of a millisecond longer than the table says"
    )
    assert np.sort(front_end.outside_us) == pytest.approx(1e3 * outside_ms)
    assert front_end.overhead.reserve_us == pytest.approx(1e3 * np.quantile(outside_ms, 0.999) + 250.0)
    assert str(front_end).startswith(
        "0.6 ms a request (p99 0.8), 0 ms for each one before it; a call takes 0.25 ms more"
    )
    with pytest.raises(InputError, match="answered none"):
        FrontEnd.of_probe(log(outside_ms, 1.0, status=503), worker().profile)


def two_points() -> WorkerType:
    """One fast and one slow point, of 1 and 21 ms."""
    rows = [
        {"subject": "net", "point": f"version={name}", "batch_size": 1, "samples_s": [took_s] * 5}
        for name, took_s in (("short", 1e-3), ("long", 21e-3))
    ]
    accuracy = [0.8, 0.9]
    return WorkerType("two", read_profile(LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=accuracy))), 1, 1.0)


def planner(times_s: np.ndarray, promise: Promise) -> Planner:
    """Of one model, which has no name."""
    return Planner([Demand("", times_s, promise, {"one": worker()}, ["slackfit"])], reserve_us=2e3)


def answered(
    search: Planner, pool: Pool, draw: int, times_s: np.ndarray, front_end: FrontEnd, longer: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    return verification.answered(search, {"": pool}, draw, {"": times_s}, {"": front_end}, longer)[""]


def planned(
    search: Planner, pool: Pool, draw: int, traffic: Traffic, front_end: FrontEnd, cores: int | None = None
) -> dict[str, Any]:
    return verification.planned(search, {"": pool}, draw, {"": traffic}, {"": front_end}, cores)[""]


@pytest.mark.parametrize(
    ("short_ms", "long_ms", "call_us", "slower"),
    [
        pytest.param(0.25, 2.25, 150.0, 0.1, id="a part grows with the call"),
        pytest.param(0.25, 0.25, 250.0, 0.0, id="all calls alike"),
        pytest.param(0.25, -3.0, 250.0, 0.0, id="long calls were measured on a busy machine"),
        pytest.param(-0.5, 2.0, 0.0, 0.1, id="none for short calls"),
    ],
)
def test_what_calls_take_longer_is_a_line_through_the_fastest_and_the_slowest(
    short_ms: float, long_ms: float, call_us: float, slower: float
) -> None:
    kind, outside_ms = two_points(), np.full(50, 0.5)
    assert fastest_apart(kind.profile) == kind.profile.grid.points[0]
    assert fastest_apart(worker().profile) is None
    logs = [
        RequestLog(log(outside_ms, took_ms).rows.assign(point=f"version={name}"))
        for name, took_ms in (("long", 21.0 + long_ms), ("short", 1.0 + short_ms))
    ]
    found = FrontEnd.of_probe(logs[0], kind.profile, logs[1])
    assert (found.overhead.call_us, found.overhead.slower) == pytest.approx((call_us, slower))
    assert FrontEnd.of_probe(logs[0], kind.profile).overhead.call_us == pytest.approx(1e3 * max(0.0, long_ms))
    assert ("times what the table says" in str(found)) == (slower > 0)
    # One request every 0.1 s: none waits, and the slow point answers.
    times_s = 0.1 * np.arange(300.0)
    search = planner(times_s, Promise(90e3, 0.9))
    took_us, _ = answered(search, Pool(kind, "maxacc", 1), 1, times_s, found)
    assert took_us == pytest.approx(np.full(300, 500.0 + 21e3 * (1 + slower) + call_us))


@pytest.mark.parametrize(
    ("provenance", "data", "split"),
    [
        ({"data": "held-out.npz", "split": "all"}, "some/held-out.npz", "all"),
        ({"data": "held-out.parquet", "split": "all"}, "held-out.parquet:kind", "all"),
        ({"data": "held-out.npz", "split": "all"}, "others.npz", "test"),
        ({"data": "digits", "split": "validation"}, "digits", "test"),
        ({}, "digits", "test"),
        (None, "digits", "test"),
    ],
)
def test_all_examples_are_sent_where_outcomes_are_of_all(
    provenance: dict[str, str] | None, data: str, split: str
) -> None:
    """Those were held out from the models; of other data the training examples may have been seen."""
    rows = [{"example": "0", "version": "only", "error": 0.0, "latency_s": 1e-3, "confidence": 1.0}]
    outcomes = None if provenance is None else OutcomeTable(OutcomeTable.of(rows).rows, provenance)
    assert examples_sent(outcomes, data) == split
    assert examples_sent(outcomes, DataSource(data, label="kind")) == split


def test_a_front_end_has_one_request_after_the_other() -> None:
    arrived_us = np.array([1e6, 1e6, 1e6, 2e6])
    assert read_in_turn(arrived_us, np.full(4, 2e3), np.zeros(4)) == pytest.approx([1e6, 1.002e6, 1.004e6, 2e6])
    slow_first_us = read_in_turn(arrived_us, np.full(4, 2e3), np.full(4, 1e3))
    assert slow_first_us == pytest.approx([1e6, 1.003e6, 1.005e6, 2e6])


@settings(max_examples=50, deadline=None)
@given(
    gaps_us=st.lists(st.floats(0, 1e3), min_size=1, max_size=60),
    each_us=st.floats(0, 500),
    seed=st.integers(0, 9),
)
def test_requests_are_read_in_turn_as_by_lindleys_recursion(gaps_us: list[float], each_us: float, seed: int) -> None:
    arrival_us = np.cumsum(gaps_us)
    ranks = each_us * np.arange(len(arrival_us))
    alike = read_in_turn(arrival_us, np.full(len(arrival_us), each_us), np.zeros(len(arrival_us)))
    assert alike == pytest.approx(ranks + np.maximum.accumulate(arrival_us - ranks))
    longer_us = np.random.default_rng(seed).uniform(0, 300, len(arrival_us))
    later = read_in_turn(arrival_us, np.full(len(arrival_us), each_us), longer_us)
    assert (later >= alike - 1e-6).all()
    assert (np.diff(later) >= each_us - 1e-6).all(), "the loop reads one at a time"


@pytest.mark.parametrize("first_us", [0.0, 400.0, 2_000.0])
@pytest.mark.parametrize("each_us", [60.0, 150.0, 350.0])
def test_bursts_tell_what_a_request_takes_of_the_loop(each_us: float, first_us: float) -> None:
    """As far as the worker's calls do not take longer: the first of a burst apart from the others."""
    search = planner(Poisson(50.0).times(20.0, seed=0), Promise(50e3, 0.9))
    pool, due_s = Pool(worker(5e-5), "slackfit", 1), burst_times_s(0.05)
    true = FrontEnd(np.full(1, 700.0), Overhead(1e3, 20.0), each_us, first_us)
    took_us, _ = answered(search, pool, 1, due_s, true)
    bursts = log_of(due_s, took_us)
    probed = FrontEnd(true.outside_us, true.overhead)
    found = verification.with_bursts(search, "", pool, probed, bursts)
    assert found.each_us == pytest.approx(each_us, abs=20.0)
    assert found.first_us == pytest.approx(first_us, abs=200.0)


def test_bursts_that_outlast_the_deadline_do_not_tell_the_first_request_apart() -> None:
    search = planner(Poisson(50.0).times(20.0, seed=0), Promise(50e3, 0.9))
    pool, due_s = Pool(worker(5e-5), "slackfit", 1), burst_times_s(0.05)
    true = FrontEnd(np.full(1, 700.0), Overhead(1e3, 20.0), 900.0)
    took_us, _ = answered(search, pool, 1, due_s, true)
    assert (took_us[-96:] > 50e3).any()
    bursts = log_of(due_s, took_us)
    found = verification.with_bursts(search, "", pool, FrontEnd(true.outside_us, true.overhead), bursts)
    assert (found.each_us, found.first_us) == (pytest.approx(900.0, abs=10.0), 0.0)


def test_a_plan_with_a_front_end_has_its_time_in_each_answer() -> None:
    promise, times_s = Promise(20e3, 0.9), Poisson(50.0).times(20.0, seed=0)
    search = planner(times_s, promise)
    pool, traffic = Pool(worker(), "slackfit", 1), Traffic.whole(times_s)
    none = FrontEnd(np.zeros(1), Overhead(2e3))
    bare = planned(search, pool, 1, traffic, none)
    verdict = search.served({"": pool}, 1, 1, {"": traffic}).verdict
    assert (bare["attainment"], bare["accuracy"]) == (verdict.attainment, pytest.approx(verdict.accuracy))
    assert bare["p99_s"] == pytest.approx(verdict.p99_us / 1e6)
    slower = FrontEnd(np.full(3, 700.0), Overhead(2e3, 300.0))
    later = planned(search, pool, 1, traffic, slower)
    assert later["p99_s"] >= bare["p99_s"] + 0.99e-3, "both parts of the front end are in the tail"
    # A server keeps half of each deadline for calls, whatever a stalled probe says.
    stalled = FrontEnd(np.zeros(1), Overhead(600e3))
    assert planned(search, pool, 1, traffic, stalled)["attainment"] > 0.95
    hopeless = FrontEnd(np.full(3, 30e3), Overhead(2e3))
    assert planned(search, pool, 1, traffic, hopeless)["attainment"] == 0


def test_front_end_and_client_take_their_part_of_cores_that_workers_keep_busy() -> None:
    """Pairs of requests for two workers: the second of each pair finds the other one busy."""
    times_s = np.repeat(0.05 * np.arange(100.0), 2) + np.tile([0.0, 2e-4], 100)
    search = planner(times_s, Promise(20e3, 0.9))
    pool, traffic = Pool(worker(), "slackfit", 2), Traffic.whole(times_s)
    takes = FrontEnd(np.zeros(1), Overhead(2e3), cpu_us=3e3, client_us=2e3)
    longer = all_busy(5e3, traffic.rate_per_s, 2)
    assert longer == pytest.approx(1 / (1 - 5e-3 * traffic.rate_per_s / 2))
    took_us, _ = answered(search, pool, 1, times_s, takes, longer)
    assert took_us == pytest.approx(np.tile([1e3, 1e3 * longer], 100))
    left = planned(search, pool, 1, traffic, takes)
    taken = planned(search, pool, 1, traffic, takes, cores=2)
    assert (left["p99_s"], taken["p99_s"]) == pytest.approx((1e-3, 1e-3 * longer))
    apart_s = 0.05 * np.arange(100.0)
    took_us, _ = answered(search, pool, 1, apart_s, takes, longer)
    assert took_us == pytest.approx(np.full(100, 1e3)), "one core is free for the front end"
    assert all_busy(5e3, 1e6, 2) == 2, "beyond half of the cores nothing is known"


def test_what_was_served_counts_requests_without_an_answer() -> None:
    answered, lost = log(np.full(90, 0.5), 1.0), log(np.full(10, 0.5), 1.0, status=503)
    found = verification.served(RequestLog(pd.concat([answered.rows, lost.rows], ignore_index=True)))
    assert (found["requests"], found["attainment"], found["accuracy"]) == (100, 0.9, 1.0)
    assert math.isinf(found["p99_s"])
    none = verification.served(lost)
    assert none["attainment"] == 0
    assert math.isnan(none["accuracy"])


def test_a_plan_is_verified_by_a_real_server(slotool: Slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(UNKNOWN, monkeypatch, cores_given=1)
    for name, value in (("PROBE_S", 1.0), ("BURSTS", 5), ("BUSY_S", 0.5)):  # long enough to probe, and no more
        monkeypatch.setattr(front_end, name, value)
    arrivals = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(60.0).times(10.0, seed=0)}))
    arrivals.save(tmp_path / "arrivals.parquet")
    root = Path(__file__).parents[2] / "datasets"
    found = slotool(
        "plan", root / "digits-supernet-latency.parquet", "--outcomes", root / "digits-supernet-outcomes.parquet",
        "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 200, "--attainment", 0.5, "--policies",
        "slackfit", "--artifact", shipped_artifact("supernet").path, "-o", tmp_path / "service.toml", "--verify", "2s",
        "--data", "digits",
    )  # fmt: skip
    assert found.exit_code == 0, found.stderr
    said = " ".join(found.stderr.split())
    assert "as probed at the server's start" in said
    assert "the workers take every core of this machine" in said
    assert FRONT_END in found.stdout
    assert "served as promised: attainment" in " ".join(found.stdout.split())


@pytest.mark.parametrize(
    ("lost", "planned", "kept"),
    [
        pytest.param(0, 1.0, True, id="all in time"),
        pytest.param(1, 1.0, None, id="fewer by no more than chance"),
        pytest.param(40, 1.0, False, id="fewer than chance explains"),
        pytest.param(40, 0.5, True, id="as few as were planned for this stretch"),
    ],
)
def test_a_promise_is_broken_where_less_was_served_than_chance_explains(
    lost: int, planned: float, kept: bool | None
) -> None:
    rows = [log(np.full(count, 0.5), 1.0, status).rows for count, status in ((100 - lost, 200), (lost, 503)) if count]
    joined = RequestLog(pd.concat(rows, ignore_index=True))
    found = verification.verdict(Promise(20e3, 0.995), {"attainment": planned, "accuracy": 0.9}, joined)
    assert found.kept is kept, found.sentence
    assert f"attainment {1 - lost / 100:.4f}" in found.sentence
    on_a_busy_machine = verification.verdict(
        Promise(20e3, 0.995), {"attainment": planned, "accuracy": 0.9}, joined, 1.5
    )
    assert on_a_busy_machine.kept is (kept or None)


def test_the_accuracy_that_was_served_is_judged_too() -> None:
    rows = log(np.full(200, 0.5), 1.0).rows
    half_right = RequestLog(rows.assign(answer=np.arange(200) % 2))
    planned = {"attainment": 1.0, "accuracy": 0.9}
    assert verification.verdict(Promise(20e3, 0.9, 0.8), planned, half_right).kept is False
    assert verification.verdict(Promise(20e3, 0.9), planned, half_right).kept is True, "no accuracy was promised"
    unlabelled = RequestLog(rows.assign(label=-1))
    assert verification.verdict(Promise(20e3, 0.9, 0.8), planned, unlabelled).kept is True


def test_a_late_client_breaks_no_promise() -> None:
    rows = log(np.full(200, 0.5), 1.0).rows
    late = RequestLog(rows.assign(sent_s=rows["sent_s"] + 0.05, done_s=rows["done_s"] + 0.05))
    found = verification.verdict(Promise(20e3, 0.9), {"attainment": 1.0, "accuracy": 0.9}, late)
    assert found.kept is None
    assert "1.0000 counted from when the client sent them" in found.sentence


def test_a_plan_that_was_not_kept_ends_so() -> None:
    arrivals = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(60.0).times(10.0, seed=0)}))
    plan = api.plan(
        table(), arrivals=arrivals, deadline_ms=20, attainment=0.9,
        policies="slackfit", progress=None,
    )  # fmt: skip
    plan.judge()
    assert plan.exit_code == 0
    assert type(plan)(plan.rows, {**plan.facts, "verify_s": 1.0}, "", kept=None).exit_code == 4
    broken = type(plan)(plan.rows, plan.facts, "", kept=False, verdict="the promise was broken as it was served: …")
    with pytest.raises(PromiseBroken, match="broken as it was served"):
        broken.judge()


def test_a_p99_without_an_end_is_shown_as_unanswered() -> None:
    arrivals = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(60.0).times(10.0, seed=0)}))
    plan = api.plan(
        table(), arrivals=arrivals, deadline_ms=20, attainment=0.9,
        policies="slackfit", progress=None,
    )  # fmt: skip
    figures = verification.served(log(np.full(10, 0.5), 1.0, status=503))
    shown = type(plan)(plan.rows, {**plan.facts, "verify_s": 1.0}, "", verified=[{"what": "served", **figures}])
    assert "1 % unanswered" in repr(shown)


def test_models_that_share_all_cores_share_them_with_the_front_end_too() -> None:
    """Two requests at once, of two models, for two workers: the second finds the other one busy."""
    times_s = {"first": 0.05 * np.arange(100.0), "second": 0.05 * np.arange(100.0) + 2e-4}
    search = Planner(
        [Demand(name, own, Promise(20e3, 0.9), {"one": worker()}, ["slackfit"]) for name, own in times_s.items()]
    )
    pools = {name: Pool(worker(), "slackfit", 2) for name in times_s}
    traffic = {name: Traffic.whole(own) for name, own in times_s.items()}
    # 4 ms of a request on average.
    front_ends = {
        name: FrontEnd(np.zeros(1), Overhead(2e3), cpu_us=cpu_us, client_us=1e3)
        for name, cpu_us in (("first", 2e3), ("second", 4e3))
    }
    assert verification.mean_cpu_us(traffic, front_ends) == pytest.approx((3e3, 1e3))
    left = verification.planned(search, pools, 1, traffic, front_ends)
    taken = verification.planned(search, pools, 1, traffic, front_ends, cores=2)
    longer = all_busy(4e3, verification.rate_per_s(traffic), 2)
    assert longer > 1.05
    assert [left[name]["p99_s"] for name in times_s] == pytest.approx([1e-3, 1e-3])
    assert [taken[name]["p99_s"] for name in times_s] == pytest.approx([1e-3, longer * 1e-3])
