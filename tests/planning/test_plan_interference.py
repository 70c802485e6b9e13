"""``slotool plan --interference``: workers that share a machine take longer while others compute."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.commands.planning.plan_interference import graphs_of
from slotool.elastic.family import Family, Version
from slotool.errors import ArgumentError, InputError, SlotoolWarning
from slotool.graphs import OperatorGraph
from slotool.planning.interference import Interference
from slotool.predictors.colocated.artifact import PredictorArtifact, SoloLatency
from slotool.predictors.colocated.labels import join_colocated
from slotool.predictors.colocated.ridge import RidgePredictor
from slotool.predictors.colocated.splits import random_colocated_split
from slotool.predictors.labels import Setting
from slotool.predictors.training.selection import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks
from slotool.workloads import ArrivalTable, Poisson
from tests.conftest import Slotool
from tests.elastic.tiny_slo_nns import network
from tests.machines import UNKNOWN, run_as

ALONE_S, LONGER = 5e-3, 1.6
# That ratios are extrapolated is said; one test looks for it.
pytestmark = pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")


def _table(co_runners: int = 0, longer: float = LONGER, **other: Any) -> LatencyTable:
    """One version, alone and next to up to so many copies."""
    rows = [
        {
            "subject": "net",
            "point": "full",
            "batch_size": size,
            "samples_s": ALONE_S * (0.3 + 0.7 * size) * (1 + (longer - 1) * copies) * np.linspace(0.95, 1.05, 40),
            "co_runners": "+".join(["net"] * copies),
            **other,
        }
        for size in (1, 2)
        for copies in range(co_runners + 1)
    ]
    return LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=0.9))


@pytest.fixture
def traffic() -> ArrivalTable:
    return ArrivalTable(pd.DataFrame({"arrival_s": Poisson(320.0).times(8.0, seed=2)}))


def _plan(traffic: ArrivalTable, **other: Any) -> Any:
    settings = {"deadline_ms": 40, "attainment": 0.95, "policies": "maxacc", "reserve_ms": 0, "progress": None, **other}
    return api.plan(_table(), arrivals=traffic, **settings)


def test_workers_that_share_a_machine_are_more_than_workers_that_do_not(traffic: ArrivalTable) -> None:
    alone = _plan(traffic)
    shared = _plan(traffic, interference=_table(1), machine_cores=8)
    apart = _plan(traffic, interference=_table(1), machine_cores=1)
    assert shared.holds
    assert shared.rows[0]["replicas"] > alone.rows[0]["replicas"]
    assert apart.rows[0]["attainment"] == alone.rows[0]["attainment"]
    assert apart.rows[0]["replicas"] == alone.rows[0]["replicas"]
    # Two to a machine disturb each other less than all on one.
    pairs = _plan(traffic, interference=_table(1), machine_cores=2)
    assert alone.rows[0]["replicas"] <= pairs.rows[0]["replicas"] <= shared.rows[0]["replicas"]


def test_a_small_fleet_that_holds_is_found_where_larger_ones_do_worse() -> None:
    """Steps of 1, 2, 4 … lead past it, to sizes at which no call ends in time."""
    busy = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(400.0).times(3.0, seed=2)}))
    given = {"interference": _table(1, 1.3), "machine_cores": 32, "deadline_ms": 16, "attainment": 0.9}
    found = _plan(busy, **given)
    assert found.holds
    assert found.rows[0]["replicas"] < 16
    assert not _plan(busy, max_workers=found.rows[0]["replicas"] - 1, **given).holds
    none = _plan(busy, **{**given, "deadline_ms": 12})
    assert not none.holds
    assert none.rows[0]["replicas"] < 16
    assert "more workers would not" not in none.explanation


@pytest.mark.parametrize(
    ("colocated", "says"),
    [
        (lambda rows: rows["batch_size"] == 1, "next to 1 co-runner is known at batch size 1, not at 2: the nearest"),
        (lambda rows: rows["point"] == "other", "known of full next to 1 co-runner: the mean of other stands in"),
        (lambda rows: rows["point"] == "full", "2 of 2 ratios of interference are below 1 (the least 0.7, of full"),
    ],
)
def test_what_stands_in_for_ratios_that_are_not_known_is_said(
    traffic: ArrivalTable, colocated: Callable[[pd.DataFrame], pd.Series], says: str
) -> None:
    own = _table(1, 0.7 if "below" in says else LONGER).rows
    rows = pd.concat([own, own.assign(point="other")])
    kept = rows[(rows["co_runners"] == "") | colocated(rows)]
    with pytest.warns(SlotoolWarning, match=re.escape(says)):
        _plan(traffic, interference=LatencyTable(kept.reset_index(drop=True)), machine_cores=4)


def test_one_ratio_is_the_table_of_that_ratio(traffic: ArrivalTable) -> None:
    by_table, by_ratio = (_plan(traffic, interference=given, machine_cores=4) for given in (_table(1), LONGER))
    assert by_table.rows[0]["replicas"] == by_ratio.rows[0]["replicas"]
    assert by_table.rows[0]["p99_us"] == pytest.approx(by_ratio.rows[0]["p99_us"])


def test_a_co_runner_that_is_seldom_busy_makes_few_calls_longer() -> None:
    """Two workers of a machine are at work at once for a share of the time, so the mean latency lies between both."""
    rare = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(110.0).times(20.0, seed=2)}))
    given = {"arrivals": rare, "deadline_ms": 9, "attainment": 0.9, "policies": "maxacc", "reserve_ms": 0}
    found = api.plan(_table(), interference=_table(1), machine_cores=2, progress=None, **given)
    (row,) = [row for row in found.rows if row["holds"]]
    assert row["replicas"] > 1
    busy_us = row["utilisation"] * row["replicas"] * 20e6 / row["calls"]
    assert 1.01 * ALONE_S * 1e6 < busy_us < 0.9 * LONGER * ALONE_S * 1e6


def test_the_service_file_plans_with_the_raised_latencies(
    slotool: Slotool, tmp_path: Path, traffic: ArrivalTable
) -> None:
    (tmp_path / "artifact").mkdir()
    for name, table in (("latency", _table()), ("colocated", _table(1, placement="split")), ("arrivals", traffic)):
        table.save(tmp_path / f"{name}.parquet")
    done = slotool(
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 40,
        "--attainment", 0.95, "--policies", "maxacc", "--interference", tmp_path / "colocated.parquet",
        "--machine-cores", 2, "--artifact", tmp_path / "artifact", "-o", tmp_path / "service.toml", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    (model,) = tomllib.loads((tmp_path / "service.toml").read_text())["models"]
    raised, alone = LatencyTable.load(tmp_path / model["latency"]).rows, _table().rows
    ratios = [
        np.median(own) / np.median(before) for own, before in zip(raised["samples_s"], alone["samples_s"], strict=True)
    ]
    assert ratios == pytest.approx([LONGER] * len(alone))


def test_a_front_end_takes_its_part_of_cores_that_are_all_workers() -> None:
    busy = ArrivalTable(pd.DataFrame({"arrival_s": Poisson(300.0).times(20.0, seed=2)}))
    given = {"interference": 1.0, "max_workers": 2, "attainment": 0.9}
    free = _plan(busy, machine_cores=2, **given)
    taken = _plan(busy, machine_cores=2, front_end_ms=1.0, **given)
    left_a_core = _plan(busy, machine_cores=3, front_end_ms=1.0, **given)
    assert free.rows[0]["replicas"] == taken.rows[0]["replicas"] == 2
    assert taken.rows[0]["p99_us"] > 1.05 * free.rows[0]["p99_us"]
    assert left_a_core.rows[0]["p99_us"] == free.rows[0]["p99_us"]


def test_workers_of_which_nothing_is_known_are_said_to_be_planned_as_if_alone(
    slotool: Slotool, tmp_path: Path, traffic: ArrivalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_as(UNKNOWN, monkeypatch, cores_given=8)
    for name, table in (("latency", _table()), ("colocated", _table(1)), ("arrivals", traffic)):
        table.save(tmp_path / f"{name}.parquet")
    command = (
        "plan", tmp_path / "latency.parquet", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 40,
        "--policies", "maxacc",
    )  # fmt: skip
    assert "planned with the latency of one alone" in slotool(*command).stderr
    known = slotool(*command, "--interference", tmp_path / "colocated.parquet").stderr
    assert "planned with the latency of one alone" not in known
    assert "next to 1 at most" in known
    shared = slotool(*command, "--interference", tmp_path / "colocated.parquet", "--machine-cores", 2)
    assert "the workers take all 2 cores of a machine" in " ".join(shared.stderr.split())
    of_each = ("--interference", tmp_path / "colocated.parquet", "--machine-cores", 2, "--front-end-ms", 0.2)
    assert "the workers take all" not in slotool(*command, *of_each).stderr


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"interference": 0.5}, ArgumentError, "a ratio of 0.5 is not 1 or more"),
        ({"machine_cores": 4}, ArgumentError, "no effect without interference"),
        ({"front_end_ms": 0.2}, ArgumentError, "front_end_ms: it has no effect without interference"),
        ({"interference": 1.3, "front_end_ms": -1.0}, ArgumentError, "front_end_ms: -1 is not 0 or more"),
        ({"interference": _table(0)}, InputError, "--co-runners 0,1 --placement split"),
        ({"interference": _table(1, placement="shared")}, InputError, "had the same cores"),
    ],
)
def test_what_says_nothing_of_workers_is_refused(
    traffic: ArrivalTable, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        _plan(traffic, **given)


class _Predictor:
    """Stands for a trained one: next to β copies every network takes 1 + 0.6 β times as long."""

    path = "predictor"

    def __init__(self, placement: str):
        self.setting = Setting("here", "cpu", "onnx", 1, 1, placement=placement)

    def require_colocated(self) -> _Predictor:
        return self

    def predict_colocated(self, subjects: list[OperatorGraph], co_runners: list[OperatorGraph]) -> Any:
        solo_s = np.array([1e-8 * graph.flops for graph in subjects])
        found = SimpleNamespace(latency_s=solo_s * (1 + (LONGER - 1) * len(co_runners)))
        return [SoloLatency(float(each)) for each in solo_s], [], found


@pytest.mark.parametrize("placement", ["split", "shared"])
def test_a_predictor_says_what_versions_do_to_each_other(
    tmp_path: Path, traffic: ArrivalTable, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    monkeypatch.setattr(PredictorArtifact, "load", lambda path: _Predictor(placement))
    predictor = tmp_path / "predictor"
    predictor.mkdir()
    versions = [Version.of_mlp(name, network(20, width, 3)) for name, width in (("small", 20), ("large", 40))]
    Family("net", versions).save(tmp_path / "family", config={}, seed=0)
    rows = [
        {"subject": "net", "point": f"version={name}", "batch_size": 1, "samples_s": [taken_s] * 3}
        for name, taken_s in (("small", 2e-3), ("large", ALONE_S))
    ]
    latency = LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=[0.8, 0.9]))
    given: dict[str, Any] = {
        "arrivals": traffic, "deadline_ms": 40, "attainment": 0.95, "policies": "fixed", "min_accuracy": 0.85,
        "machine_cores": 2, "progress": None,
    }  # fmt: skip
    if placement == "shared":
        with pytest.raises(InputError, match="learnt from co-runners on the same cores"):
            api.plan(latency, interference=predictor, artifact=tmp_path / "family", **given)
        return
    by_ratio = api.plan(latency, interference=LONGER, **given)
    predicted = api.plan(latency, interference=predictor, artifact=tmp_path / "family", **given)
    assert predicted.rows[0]["replicas"] == by_ratio.rows[0]["replicas"]
    assert predicted.rows[0]["utilisation"] == pytest.approx(by_ratio.rows[0]["utilisation"])
    with pytest.raises(ArgumentError, match="give its artifact too"):
        api.plan(latency, interference=predictor, **given)


def _trained(folder: Path, artifact: Path) -> None:
    """A predictor learnt from the family's networks and others, each next to one and two networks.

    The more weights its co-runners read, the longer a network takes: 1.6 times next to one copy of the large version.
    """
    own = list(graphs_of(artifact).values())
    most = max(graph.weights for graph in own)
    graphs = {graph.id: graph for graph in [*own, *random_networks(6, seed=3), *random_networks(6, seed=3, kind="cnn")]}
    solo_s = dict(zip(graphs, 1e-3 + 1e-8 * np.array([graph.flops for graph in graphs.values()]), strict=True))
    sizes = {name: min(graph.weights / most, 1.0) for name, graph in graphs.items()}
    groups = [[a, *others] for a in graphs for b in graphs for others in ([b], [b, a])]
    rng = np.random.default_rng(0)
    rows = [
        {
            "subject": name, "co_runners": "+".join(sorted(others)), "solo_s": solo_s[name] * rng.lognormal(0, 0.01, 5),
            "samples_s": solo_s[name] * (1 + (LONGER - 1) * sum(sizes[o] for o in others)) * rng.lognormal(0, 0.01, 5),
            "placement": "split", "affinity": "0,1,2", "threads": 1, "batch_size": 1,
        }
        for name, *others in groups
    ]  # fmt: skip
    labelled = join_colocated(LatencyTable(pd.DataFrame(rows)), graphs.values())
    run = train_and_score([RidgePredictor()], labelled, random_colocated_split(labelled.items, 0))
    run.save(folder, None, config={}, seed=0)


def test_a_predictor_that_was_trained_is_asked_for_each_version(tmp_path: Path, traffic: ArrivalTable) -> None:
    versions = [Version.of_mlp(name, network(20, width, 3)) for name, width in (("small", 20), ("large", 400))]
    Family("net", versions).save(tmp_path / "family", config={}, seed=0)
    _trained(tmp_path / "predictor", tmp_path / "family")
    artifact = PredictorArtifact.load(str(tmp_path / "predictor"))
    graphs = graphs_of(tmp_path / "family")
    small, large = sorted(graphs, key=lambda point: graphs[point].weights)
    found = Interference.of_predictor(artifact, graphs)
    for count in (1, 2):
        assert found.ratio(large, 1, count) == pytest.approx(1 + (LONGER - 1) * count, rel=0.15)
        assert (found.ratio(small, 1, count) < found.ratio(large, 1, count)).all()
    rows = [
        {"subject": "net", "point": point.key, "batch_size": 1, "samples_s": [taken_s] * 3}
        for point, taken_s in ((small, 2e-3), (large, ALONE_S))
    ]
    latency = LatencyTable(LatencyTable.of(rows).rows.assign(accuracy=[0.8, 0.9]))
    given: dict[str, Any] = {
        "arrivals": traffic, "deadline_ms": 40, "attainment": 0.95, "policies": "fixed", "min_accuracy": 0.85,
        "machine_cores": 2, "progress": None,
    }  # fmt: skip
    predicted = api.plan(latency, interference=tmp_path / "predictor", artifact=tmp_path / "family", **given)
    by_ratio = api.plan(latency, interference=float(found.ratio(large, 1, 1)[0]), **given)
    assert predicted.rows[0]["replicas"] == by_ratio.rows[0]["replicas"]
    assert predicted.rows[0]["utilisation"] == pytest.approx(by_ratio.rows[0]["utilisation"], rel=1e-6)
    alone = api.plan(latency, **{**given, "machine_cores": None}).rows[0]
    busy = predicted.rows[0]["utilisation"] * predicted.rows[0]["replicas"]
    assert busy > 1.1 * alone["utilisation"] * alone["replicas"]
