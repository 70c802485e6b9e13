"""``slotool.calibrate``: whole networks measured here, and the intervals that ``predict`` gives from then on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import slotool as library
from slotool.cache_folder import cache_folder
from slotool.commands.predictors.calibrate import _random_networks
from slotool.errors import ArgumentError, RunError
from slotool.graphs import OperatorGraph
from slotool.graphs.architectures import ARCHITECTURES
from slotool.graphs.store import write_graphs
from slotool.machine import usable_cores
from slotool.predictors.answers.measured_here import Checks
from slotool.profiling.operators import CheckedNetwork, NetworkTimer, OperatorTimes, Timed
from slotool.testing.predictors import random_networks

MLPS = random_networks(4, seed=0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_predict_adds_up_operators_and_says_what_checked_them(cache: Path, tmp_path: Path, slotool) -> None:
    write_graphs(tmp_path / "own.jsonl", MLPS)
    asked = ("predict", "--graph", tmp_path / "own.jsonl", "--threads", 1, "--json")
    first = slotool(*asked)
    assert first.exit_code == 0, first.stderr
    before = first.document
    assert before["this_machine"]["same"]
    assert "not checked by whole networks" in before["artifact_why"]
    # The command checks these operators, not those of all cores.
    command = "slotool calibrate" if usable_cores() == 1 else "slotool calibrate --threads 1"
    assert before["artifact_why"].endswith(command)
    assert all(
        row["low_s"] is None and "needs 10 whole networks" in row["no_interval"] for row in before["predictions"]
    )
    finished = slotool("calibrate", tmp_path / "own.jsonl", "--threads", 1, "--minutes", 1, "--json")
    assert finished.exit_code == 0, finished.stderr
    document = finished.document
    assert len(document["networks"]) == len(MLPS)
    assert Path(document["times"]).is_relative_to(cache)
    after = slotool(*asked).document
    assert "checked by 4 networks on 20" in after["artifact_why"]
    known = slotool(*asked, "--no-measure").document
    assert [row["latency_s"] for row in known["predictions"]] == [row["latency_s"] for row in after["predictions"]]


def test_a_second_calibration_adds_networks_and_measures_disturbed_ones_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = library.calibrate(MLPS[:3], threads=1, minutes=20, progress=None)
    assert (first.now, len(first.networks)) == (3, 3)
    assert "fewer than 10 networks; add some by --minutes " in first.warnings[0]
    times = OperatorTimes.load(cache, "torch", "cpu", 1)
    for mlp in MLPS[:3]:
        times.networks[mlp.id] = replace(times.networks[mlp.id], disturbed=mlp is MLPS[1])
    times.save()
    measured: list[str] = []
    original = NetworkTimer.network

    def timed_once(timer: NetworkTimer, graph: OperatorGraph, batch_size: int = 1) -> Timed | None:
        measured.append(graph.id)
        timed = original(timer, graph, batch_size)
        return None if timed is None else replace(timed, disturbed=graph is MLPS[0])

    monkeypatch.setattr(NetworkTimer, "network", timed_once)
    second = library.calibrate(MLPS, threads=1, minutes=20, progress=None)
    assert measured[:2] == [MLPS[3].id, MLPS[1].id]
    assert {network.graph_id for network in second.networks} == {network.id for network in MLPS}
    # What is disturbed replaces no undisturbed measurement.
    assert (second.now, second.disturbed) == (3, 0)
    assert OperatorTimes.load(cache, "torch", "cpu", 1).networks.keys() == {network.id for network in MLPS}


def test_networks_that_are_too_few_count_next_time(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = NetworkTimer.network
    with monkeypatch.context() as failing:
        failing.setattr(
            NetworkTimer, "network", lambda self, graph: None if graph is MLPS[2] else original(self, graph)
        )
        with pytest.raises(RunError, match=r"2 networks measured .*; run it again with --minutes [1-9]"):
            library.calibrate(MLPS[:3], threads=1, minutes=20, progress=None)
    assert OperatorTimes.load(cache, "torch", "cpu", 1).networks.keys() == {network.id for network in MLPS[:2]}


def test_a_network_that_cannot_be_timed_has_the_reason(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"status": "failed", "reason": "the worker ended"}
    with monkeypatch.context() as failing:
        failing.setattr("slotool.profiling.operators.NetworkTimer.operators", lambda *_: answers)
        with pytest.raises(RunError, match="the worker ended"):
            library.predict(MLPS[:1], threads=1, progress=None)
    library.predict(MLPS[1:], threads=1, progress=None)
    monkeypatch.setattr("slotool.profiling.operators.NetworkTimer.operators", lambda *_: answers)
    (row,) = library.predict(MLPS[:1], threads=1, progress=None).document["predictions"]
    assert row["estimated_share"] > 0
    assert "the worker ended" in row["outside"]


def test_ten_whole_networks_give_an_interval(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = library.predict(MLPS, threads=1, progress=None)
    assert np.isnan(few.interval_s).all()
    times = OperatorTimes.load(cache, "torch", "cpu", 1)
    errors = tuple(np.linspace(0.01, 0.1, 10).tolist())
    times.checks = asdict(Checks(residuals=errors, elsewhere=errors, networks=10, date="2026-11-01"))
    times.save()
    many = library.predict(MLPS, threads=1, progress=None)
    assert (many.interval_s[:, 0] < many.latency_s * np.exp(-0.09)).all()
    assert (many.interval_s[:, 1] > many.latency_s * np.exp(0.09)).all()


def test_a_network_far_smaller_than_those_checked_has_no_interval(cache: Path) -> None:
    library.predict(MLPS, threads=1, progress=None)
    times = OperatorTimes.load(cache, "torch", "cpu", 1)
    errors = tuple(np.linspace(0.01, 0.1, 10).tolist())
    times.checks = asdict(Checks(errors, errors, 10, "2026-11-01", (1.0, 2.0)))
    times.save()
    found = library.predict(MLPS, threads=1, progress=None)
    assert np.isnan(found.interval_s).all()
    assert all("takes 1 s" in row["no_interval"] for row in found.document["predictions"])


def test_estimates_leave_out_times_of_0(cache: Path) -> None:
    library.predict(MLPS[:1], threads=1, progress=None)
    times = OperatorTimes.load(cache, "torch", "cpu", 1)
    times.times = {key: replace(time, seconds=0.0) if not time.op else time for key, time in times.times.items()}
    times.save()
    # No operator of its types was measured, so that the fit is over all.
    estimate = library.predict(random_networks(1, seed=0, kind="cnn"), threads=1, measure=False, progress=None)
    assert (estimate.latency_s > 0).all()


def test_errors_are_of_the_network_and_of_operators_that_others_share() -> None:
    def checked(latency_s: float, operators: dict[str, tuple[int, float]]) -> CheckedNetwork:
        return CheckedNetwork("", "", "", latency_s, False, 1e-5, operators)

    one = checked(1.1e-3, {"a": (2, 3e-4), "b": (1, 3.9e-4)})
    other = checked(2e-3, {"a": (1, 4.5e-4), "c": (2, 7.7e-4)})
    alone = checked(5e-3, {"d": (1, 5e-3)})
    checks, errors = Checks.of([one, other, alone])
    assert errors == pytest.approx(np.log([1.1e-3 / 1e-3, 1.0, 5e-3 / 5.01e-3]))
    assert checks.elsewhere == pytest.approx([np.log(1.5), np.log(1.5)])
    assert checks.range_s == (1.1e-3, 5e-3)


def test_candidates_are_of_every_kind_and_always_the_same() -> None:
    graphs = _random_networks(0)
    assert {graph.kind for graph in graphs} >= {"mlp", "cnn", *ARCHITECTURES}
    assert [graph.id for graph in graphs] == [graph.id for graph in _random_networks(0)]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"minutes": 0.01}, "minutes"),
        ({"minutes": float("nan")}, "minutes"),
        ({"networks": MLPS[:2]}, "networks"),
        # A capture of it would first import Keras.
        ({"networks": "held.csv"}, "networks"),
        ({"threads": 100_000}, "threads"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_measured(arguments, argument: str, cache: Path) -> None:
    with pytest.raises(ArgumentError) as raised:
        library.calibrate(**arguments)
    assert raised.value.argument == argument
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"cannot be written .*set SLOTOOL_CACHE_DIR"):
        library.calibrate(MLPS)


def test_a_prediction_outlives_a_cache_that_cannot_be_written(tmp_path: Path, slotool, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path / "file"))
    write_graphs(tmp_path / "own.jsonl", MLPS[:2])
    finished = slotool("predict", "--graph", tmp_path / "own.jsonl", "--threads", 1, "--sweep", "batch=1:2", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert len(finished.document["points"]) == 4
    assert "SLOTOOL_CACHE_DIR" in finished.stderr


def test_the_cache_is_where_the_xdg_specification_has_it() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/var/caches"}) == Path("/var/caches/slotool")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "slotool"
    assert cache_folder({"SLOTOOL_CACHE_DIR": "/here", "XDG_CACHE_HOME": "/var/caches"}) == Path("/here")
