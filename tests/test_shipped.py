"""What lies in models/ and datasets/ is whole and works straight after cloning."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest

import slotool
from slotool.artifacts import open_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.errors import ArgumentError
from slotool.graphs.store import read_graphs
from slotool.predictors.labels import join_labels
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.tables import LatencyTable, OutcomeTable
from tests.machines import UNKNOWN, run_as, run_where_measured

ROOT = Path(__file__).parent.parent
MODELS = ["mlp", "family", "slo-nn", "supernet"]
PREDICTORS = ["predictor", "predictor-torch", "predictor-devices", "predictor-architectures"]


@pytest.mark.parametrize("name", [*MODELS, *PREDICTORS])
def test_every_model_is_whole_and_told_of(name: str) -> None:
    open_artifact(ROOT / "models" / name)
    assert f"`{name}/`" in (ROOT / "models" / "README.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_model_knows_digits(name: str) -> None:
    model, test = load_model(str(ROOT / "models" / name)), load_dataset("digits").test
    answers = model.forward(test.x, model.full).argmax(axis=1)
    assert (answers == test.y).mean() > 0.95


def test_the_shipped_predictor_predicts(slotool, tmp_path: Path, monkeypatch) -> None:
    assert slotool("generate", "mlp", "-o", tmp_path / "new.parquet", "--count", 3, "--seed", 99).exit_code == 0
    shipped = ROOT / "models" / "predictor-torch"
    for machine in (UNKNOWN, "predictor-torch"):
        run_as(machine, monkeypatch)
        here = slotool("predict", shipped, "--graph", tmp_path / "new.parquet", "--json").document
        assert not here["this_machine"]["same"]
        assert here["this_machine"]["similar"] == (machine != UNKNOWN)
        assert bool(here["this_machine"]["differences"]) == (machine == UNKNOWN)
        assert all("another machine" in row["no_interval"] for row in here["predictions"])
        assert all(row["low_s"] is None and row["latency_s"] > 0 for row in here["predictions"])
    run_where_measured("predictor-torch", monkeypatch)
    there = slotool("predict", shipped, "--graph", tmp_path / "new.parquet", "--json").document
    assert there["this_machine"] == {"same": True, "similar": False, "differences": [], "speed": None}
    for prediction in there["predictions"]:
        assert 0 < prediction["low_s"] < prediction["latency_s"] < prediction["high_s"]
    # Random networks are what it learnt from; intervals, from kinds held out, widen with the distance from these.
    far = slotool("predict", shipped, "--graph", ROOT / "datasets" / "keras-applications-graphs.parquet", "--json")
    alike, unlike = (
        [row["high_s"] / row["low_s"] for row in rows if row["no_interval"] is None]
        for rows in (there["predictions"], far.document["predictions"])
    )
    assert len(unlike) > 30
    assert max(alike) < min(unlike)


def test_the_shipped_predictor_of_devices_answers_without_them() -> None:
    networks = list(read_graphs(ROOT / "datasets" / "keras-applications-graphs.parquet"))
    of = {graph.name: graph for graph in networks}
    asked = [of["MobileNetV2"], of["ResNet50"], of["VGG19"]]
    fast = slotool.predict(asked, device="RTX4090", precision="amp")
    slow = slotool.predict(asked, device="rtx3090", precision="amp")
    # A 4090 computes batches 1.3 to 3 times as fast, and networks keep their order.
    times = slow.latency_s / fast.latency_s
    assert np.all((times > 1.2) & (times < 3.5))
    assert fast.latency_s[0] < fast.latency_s[1] < fast.latency_s[2]
    assert np.isfinite(fast.interval_s).any()
    assert np.all(slotool.predict(asked, device="rtx5090").latency_s < fast.latency_s)
    with pytest.raises(ArgumentError, match=r"device tpu9\b.* i9-10940x, .*rtx5090"):
        slotool.predict(asked, device="tpu9")


def test_intervals_of_real_networks_hold_though_only_random_ones_calibrated_them() -> None:
    """Two fifths were covered, ± 8 % each, before kinds of networks were held out (40 Keras applications in torch)."""
    trained = TrainedPredictor.load(str(ROOT / "models" / "predictor-torch"))
    datasets = ROOT / "datasets"
    table = LatencyTable.load(datasets / "keras-applications-torch-latency.parquet")
    labelled = join_labels(table, read_graphs(datasets / "keras-applications-graphs.parquet"))
    predictions = trained.predict(labelled.items)
    scores = trained.held_out(labelled, np.arange(len(labelled))).scores()
    assert scores["n"] == 40
    assert scores["interval_coverage"] >= 0.85
    assert scores["interval_given"] >= 0.85
    for distance, why in zip(predictions.distances, predictions.no_interval, strict=True):
        assert (why is None) == (distance.too_far() is None)
    # They are outside by different shares, not all alike.
    assert np.ptp([distance.unlike for distance in predictions.distances]) > 0.1


def test_the_keras_predictor_knows_applications_solo_and_co_located(slotool) -> None:
    graphs = ROOT / "datasets" / "keras-applications-graphs.parquet"
    alone = slotool("predict", ROOT / "models" / "predictor", "--graph", graphs, "--slo", "50ms", "--json")
    assert alone.exit_code == 0, alone.stderr
    assert alone.document["setting"]["backend"] == "keras"
    measured = LatencyTable.load(ROOT / "datasets" / "keras-applications-latency.parquet").rows.set_index("subject")
    errors = [
        abs(prediction["latency_s"] / np.median(measured.loc[prediction["name"], "samples_s"]) - 1)
        for prediction in alone.document["predictions"]
    ]
    assert len(errors) == 40
    assert np.mean(errors) < 0.08, "it has seen them"
    colocated = slotool("predict", "--graph", graphs, "--co-runners", "VGG16", "--json")
    assert colocated.exit_code == 0, colocated.stderr
    ratios = {row["name"]: row["degradation_ratio"] for row in colocated.document["predictions"]}
    assert 1.2 < ratios["MobileNetV2"] < 2.5


def test_the_shipped_tables_belong_together() -> None:
    folder = ROOT / "datasets"
    latency = LatencyTable.load(folder / "random-networks-latency.parquet")
    graphs = [g for kind in ("mlps", "cnns") for g in read_graphs(folder / f"random-networks-{kind}.parquet")]
    assert set(latency.rows["subject"]) == {graph.id for graph in graphs}
    assert (latency.rows["samples_s"].map(len) >= 20).all()
    assert sum(graph.kind == "mlp" for graph in graphs) >= 4000
    assert sum(graph.kind == "cnn" for graph in graphs) >= 2500
    assert OutcomeTable.load(folder / "digits-family-outcomes.parquet").versions == ["small", "medium", "large"]


@pytest.mark.parametrize(
    ("table", "graphs"),
    [
        ("random-networks-blocks-latency", "random-networks-blocks"),
        ("keras-applications-torch-latency", "keras-applications-graphs"),
        ("keras-applications-h100-eager-launches-first", "keras-applications-graphs"),
        ("keras-applications-h100-eager-launches-second", "keras-applications-graphs"),
    ],
)
def test_every_shipped_graph_was_measured(table: str, graphs: str) -> None:
    rows = LatencyTable.load(ROOT / "datasets" / f"{table}.parquet").rows
    assert set(rows["subject"]) == {graph.id for graph in read_graphs(ROOT / "datasets" / f"{graphs}.parquet")}
    assert (rows["status"] == "ok").all()
    assert (rows["samples_s"].map(len) >= 20).all()


def test_the_shipped_co_locations_are_complete() -> None:
    table = LatencyTable.load(ROOT / "datasets" / "keras-applications-colocated.parquet")
    rows = table.rows[table.rows["status"] == "ok"]
    colocations = {
        frozenset([subject, *co_runners.split("+")])
        for subject, co_runners in zip(rows["subject"], rows["co_runners"], strict=True)
    }
    pairs, trios = ({names for names in colocations if len(names) == size} for size in (2, 3))
    often = sorted(name for name in set().union(*pairs) if sum(name in pair for pair in pairs) >= 13)
    assert len(often) >= 14
    assert {frozenset(pair) for pair in combinations(often, 2)} <= pairs
    assert len(trios) >= 150
    # Two threads each on the same two cores: no network gets faster co-located.
    assert rows["degradation_ratio"].median() > 1.2
    alone = LatencyTable.load(ROOT / "datasets" / "keras-applications-latency.parquet").rows
    assert set(rows["subject"]) <= set(alone.loc[alone["status"] == "ok", "subject"])


@pytest.mark.parametrize("name", ["digits", "fashion-mnist"])
def test_a_supernets_tables_are_of_the_same_points(name: str) -> None:
    outcomes = OutcomeTable.load(ROOT / "datasets" / f"{name}-supernet-outcomes.parquet")
    latency = LatencyTable.load(ROOT / "datasets" / f"{name}-supernet-latency.parquet").rows
    assert set(zip(latency["point"], latency["batch_size"], strict=True)) == set(
        product(outcomes.versions, (1, 2, 4, 8, 16))
    )
    assert (latency["status"] == "ok").all()


def test_the_shipped_supernet_has_the_points_of_its_tables() -> None:
    model = load_model(str(ROOT / "models" / "supernet"))
    table = OutcomeTable.load(ROOT / "datasets" / "digits-supernet-outcomes.parquet")
    assert table.versions == [point.key for point in model.points]


def test_the_shipped_tables_are_small_enough_to_clone() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "datasets").rglob("*")) <= 25_000_000
