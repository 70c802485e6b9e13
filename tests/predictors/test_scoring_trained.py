"""Scores, intervals, training bounds, labels: what is the same for every predictor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slotool.artifacts import create_artifact, open_artifact
from slotool.errors import ArtifactError, InputError, TableError
from slotool.graphs.store import read_graphs
from slotool.machine import machine_id
from slotool.predictors.labels import join_labels
from slotool.predictors.scoring import PredictionsTable, score
from slotool.predictors.solo.linear import LinearPredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.residuals import Residuals
from slotool.predictors.training.evaluation import rows_to_pick
from slotool.predictors.training.one_setting import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, strange_network, synthetic_latency_s

GRAPHS = random_networks(200, seed=5)


def rows_of(graphs, seed: int = 0, **columns: object) -> list[dict[str, object]]:
    noise = np.random.default_rng(seed).lognormal(0, 0.1, (len(graphs), 3))
    samples = synthetic_latency_s(graphs)[:, None] * noise
    return [{"subject": g.id, "samples_s": s, **columns} for g, s in zip(graphs, samples, strict=True)]


@pytest.fixture(scope="module")
def run():
    labelled = join_labels(LatencyTable.of(rows_of(GRAPHS, machine=machine_id())), GRAPHS)
    return train_and_score([LinearPredictor()], labelled, paper_split(labelled.kinds, 0))


def test_scores_by_hand() -> None:
    measured, predicted = np.array([1.0, 2.0, 4.0, 5.0]), np.array([1.04, 2.2, 3.0, 5.0])
    scores = score(measured, predicted, predicted * 0.95, predicted * 1.05)
    assert scores["mae_s"] == pytest.approx((0.04 + 0.2 + 1.0) / 4)
    assert (scores["label_mean_s"], scores["label_std_s"]) == (3.0, pytest.approx(np.std(measured)))
    assert scores["mae_over_mean"] == pytest.approx(0.31 / 3)
    assert scores["mape"] == pytest.approx((0.04 + 0.1 + 0.25) / 4)
    assert (scores["within_5_percent"], scores["within_10_percent"]) == (0.5, 0.5)
    assert scores["interval_coverage"] == 0.5
    assert scores["spearman"] == 1.0


def test_rank_correlation_of_a_constant_is_none_not_nan() -> None:
    same = np.ones(3)
    assert score(np.arange(1.0, 4.0), same, same, same)["spearman"] is None


def test_predictions_table_keeps_its_columns_and_refuses_a_latency_of_zero(tmp_path: Path) -> None:
    row = {"graph_id": "a", "kind": "mlp", "measured_s": 1.0, "predicted_s": 2.0, "low_s": 1.5, "high_s": 3.0}
    row |= {"noise_s": 0.1, "solo_s": 0.5}
    PredictionsTable.of([row], {"predictor": "linear"}).save(tmp_path / "p.parquet")
    again = PredictionsTable.load(tmp_path / "p.parquet")
    assert again.rows.iloc[0].to_dict() == row
    assert again.provenance == {"predictor": "linear"}
    with pytest.raises(TableError, match="row 1, column predicted_s"):
        PredictionsTable.of([{**row, "predicted_s": 0.0}])


@pytest.mark.parametrize("labels", [40, 399, 900])
def test_interval_covers_new_labels_as_often_as_it_says(labels: int) -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(1500):
        # Skewed, as latencies are: late far more often than early.
        noise = np.exp(rng.exponential(0.4, labels + 20) - 0.3)
        low, high = np.exp(Residuals.of(noise[:labels], np.ones(labels)).interval(0.9))
        covered.append(np.mean((noise[labels:] <= high) & (noise[labels:] >= low)))
    assert 0.89 <= np.mean(covered) <= 0.915


@pytest.mark.parametrize("labels", [200, 900])
def test_probability_of_staying_below_a_limit_is_the_true_one(labels: int) -> None:
    rng = np.random.default_rng(1)
    limits = np.array([0.8, 1.0, 1.3, 2.0])
    said = [
        Residuals.of(np.exp(rng.exponential(0.4, labels) - 0.3), np.ones(labels)).probability_below(np.log(limits))
        for _ in range(400)
    ]
    truth = 1 - np.exp(-(np.log(limits) + 0.3) / 0.4)
    np.testing.assert_allclose(np.mean(said, axis=0), truth, atol=0.008)


def test_probability_agrees_with_the_interval_and_is_never_certain() -> None:
    for labels in (20, 500):
        residuals = Residuals.of(np.random.default_rng(2).lognormal(0, 0.3, labels), np.ones(labels))
        low, high = residuals.interval(0.9)
        inside = float(
            residuals.probability_below(np.array([high]))[0] - residuals.probability_below(np.array([low]))[0]
        )
        assert 0.9 <= inside <= 0.96
        chances = residuals.probability_below(np.linspace(-9, 9, 50))
        assert np.all(np.diff(chances) >= 0)
        assert 0 < chances[0] < 0.05
        assert 0.95 < chances[-1] < 1
        again = Residuals.from_document(json.loads(json.dumps(residuals.document())))
        assert again.interval(0.9) == (low, high)


def test_interval_of_a_trained_predictor_covers_held_out_labels() -> None:
    labelled = join_labels(LatencyTable.of(rows_of(GRAPHS)), GRAPHS)
    covered = []
    for seed in range(40):
        split = paper_split(labelled.kinds, seed)
        trained = TrainedPredictor.train(LinearPredictor(), labelled, split, seed=0)
        covered.append(trained.held_out(labelled, split.test).scores()["interval_coverage"])
    assert 0.85 <= np.mean(covered) <= 0.97


class Peeking(LinearPredictor):
    """Knows by heart every label it was shown, as a network chosen among many nearly does."""

    def fit(self, train, dev, **options) -> None:
        super().fit(train, dev, **options)
        self.shown = {graph.id: seconds for graph, seconds in zip(*dev, strict=True)}

    def predict(self, graphs):
        guessed = super().predict(graphs)
        return np.array([self.shown.get(g.id, seconds) for g, seconds in zip(graphs, guessed, strict=True)])


def test_interval_is_not_taken_from_labels_the_predictor_chose_by(run) -> None:
    peeked = TrainedPredictor.train(Peeking(), run.labelled, run.split, seed=0)
    assert peeked.residuals.interval(0.9) == run.trained["linear"].residuals.interval(0.9)
    assert peeked.residuals.interval(0.9)[1] > 0.01


def test_interval_needs_nine_labels() -> None:
    assert np.exp(Residuals.of(np.full(9, 2.0), np.ones(9)).interval(0.9)) == pytest.approx((0.5, 2.0))
    with pytest.raises(InputError, match="8 dev labels are too few for a 90% interval"):
        Residuals.of(np.ones(8), np.ones(8)).interval(0.9)


def test_artifact_predicts_bit_identically(run, tmp_path: Path) -> None:
    run.save(tmp_path / "p", config={}, seed=0)
    trained, again = run.trained["linear"], TrainedPredictor.load(str(tmp_path / "p"))
    new = random_networks(20, seed=9)
    for before, after in zip(vars(trained.predict(new)).values(), vars(again.predict(new)).values(), strict=True):
        assert np.array_equal(before, after)
    assert again.domain.document() == trained.domain.document()
    assert again.setting == trained.setting


def test_artifact_holds_scores_that_its_predictions_give(run, tmp_path: Path) -> None:
    run.save(tmp_path / "p", config={}, seed=0)
    artifact = open_artifact(tmp_path / "p", "predictor")
    table = PredictionsTable.load(artifact.file("predictions.parquet"))
    scores = artifact.json("scores.json")
    assert len(table) == scores["rows"]["test"] == 20
    assert table.scores().items() <= scores["predictors"]["linear"].items()
    assert sum(scores["rows"].values()) == len(GRAPHS)


def test_artifact_of_a_newer_version_or_unknown_predictor_is_refused(run, tmp_path: Path) -> None:
    for name, change, sentence in (
        ("newer", {"version": 5}, "predictor version 5, but this slotool reads version 4"),
        ("older", {"version": 3}, "train it again with train-predictor"),
        ("unknown", {"name": "oracle"}, r"'oracle' is no predictor of this slotool.*install the package that has it"),
    ):
        run.save(tmp_path / "p", config={}, seed=0, force=True)
        old = open_artifact(tmp_path / "p")
        with create_artifact(tmp_path / name, "predictor", config={}) as writer:
            writer.write_json("predictor.json", {**old.json("predictor.json"), **change})
            writer.write_tensors("predictor.safetensors", old.tensors("predictor.safetensors"))
        with pytest.raises(ArtifactError, match=sentence):
            TrainedPredictor.load(str(tmp_path / name))


def test_graphs_outside_the_training_range_are_distinct_names(run) -> None:
    trained = run.trained["linear"]
    training, _ = run.labelled.take(run.split.train)
    middle = sorted(training, key=lambda graph: graph.weights)[len(training) // 2]
    assert trained.predict([middle]).outside == [None]
    strange = trained.predict([strange_network()])
    assert "are of types never measured (NeverSeen)" in str(strange.outside[0])
    assert strange.distances[0].unseen > 0.2


def test_predicted_rows_are_marked_and_never_become_labels(run) -> None:
    trained = run.trained["linear"]
    table = trained.latency_table(GRAPHS, trained.predict(GRAPHS))
    assert table.rows["predicted"].all()
    assert (table.rows["low_s"] < table.rows["high_s"]).all()
    assert set(table.rows["machine"]) == {machine_id()}
    with pytest.raises(InputError, match="no measured row"):
        join_labels(table, GRAPHS)


def test_labels_are_medians_of_every_solo_row_of_a_graph() -> None:
    one, other = GRAPHS[:2]
    rows = [
        {"subject": one.id, "samples_s": [1.0, 2.0]},
        {"subject": one.id, "samples_s": [9.0]},
        {"subject": one.id, "samples_s": [50.0], "co_runners": other.id},
        {"subject": one.id, "samples_s": [50.0], "replicas": 2},
        {"subject": one.id, "samples_s": [50.0], "point": "k=0.5"},
        {"subject": other.id, "samples_s": [], "status": "failed"},
        {"subject": "a trained model", "samples_s": [1.0], "backend": "elastic"},
    ]
    labelled = join_labels(LatencyTable.of(rows), [one, other, one])
    assert labelled.latency_s.tolist() == [2.0]
    assert (labelled.graphs_without_label, labelled.labels_without_graph) == (1, 1)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("machine", ("a", "b")),
        ("device", ("cpu", "cuda:0")),
        ("backend", ("keras", "torch")),
        ("threads", (1, 2)),
        ("batch_size", (1, 8)),
    ],
)
def test_several_settings_are_refused_until_one_is_picked(column: str, values: tuple[object, object]) -> None:
    table = LatencyTable.of([row for value in values for row in rows_of(GRAPHS, **{column: value})])
    option = column.replace("_", "-")
    with pytest.raises(InputError, match=f"{values[0]}, {values[1]}: .* pick it with --{option}"):
        join_labels(table, GRAPHS)
    for value in values:
        assert getattr(join_labels(table, GRAPHS, {column: value}).setting, column) == value
    with pytest.raises(InputError, match=f"no measured row .*{column} 77"):
        join_labels(table, GRAPHS, {column: 77})


def test_rows_of_another_machine_than_the_setting_are_not_picked() -> None:
    here, mixed = (
        LatencyTable.of([row for machine in machines for row in rows_of(GRAPHS, machine=machine)])
        for machines in ((machine_id(), "a"), ("a", "b"))
    )
    setting = join_labels(here, GRAPHS, {"machine": machine_id()}).setting
    with pytest.raises(InputError, match=r"no measured row \(.*, machine [0-9a-f]{12}\)"):
        join_labels(mixed, GRAPHS, rows_to_pick(mixed, setting))


def test_a_label_without_end_is_refused() -> None:
    with pytest.raises(TableError, match=f"{GRAPHS[0].id} is not a finite number"):
        join_labels(LatencyTable.of([{"subject": GRAPHS[0].id, "samples_s": [np.inf]}]), GRAPHS)


def test_documents_are_plain_json(run) -> None:
    assert json.loads(json.dumps(run.scores(), allow_nan=False)) == run.scores()


SHIPPED, DATASETS = Path(__file__).parents[2] / "models", Path(__file__).parents[2] / "datasets"


def test_intervals_hold_for_networks_that_chose_nothing() -> None:
    """Architectures measured on a machine of the same kind, none of which the predictor learnt."""
    rows = LatencyTable.load(DATASETS / "random-architectures-backends-latency.parquet").rows
    rows = rows[(rows["backend"] == "torch") & (rows["status"] == "ok")]
    measured = {
        subject: np.median(samples) for subject, samples in zip(rows["subject"], rows["samples_s"], strict=True)
    }
    graphs = [graph for graph in read_graphs(DATASETS / "random-architectures.parquet") if graph.id in measured]
    found = TrainedPredictor.load(str(SHIPPED / "predictor-torch")).predict(graphs)
    latency_s = np.array([measured[graph.id] for graph in graphs])
    given = np.isfinite(found.low_s)
    assert given.sum() > 100
    assert 0.85 <= np.mean((found.low_s <= latency_s)[given] & (latency_s <= found.high_s)[given]) <= 0.95


def test_no_interval_for_a_network_whose_inputs_were_never_measured() -> None:
    (mlp,) = random_networks(1, seed=4)
    trained = TrainedPredictor.load(str(SHIPPED / "predictor-architectures"))
    assert trained.domain is not None
    assert trained.domain.inputs == ("images", "token ids")
    found = trained.predict([mlp])
    assert np.isnan(found.low_s).all()
    assert "takes vectors" in (found.no_interval[0] or "")


def test_likeness_to_the_training_networks_makes_no_interval_narrower() -> None:
    trained = TrainedPredictor.load(str(SHIPPED / "predictor-torch"))
    assert trained.calibration is not None
    graphs = list(read_graphs(DATASETS / "random-networks-mlps.parquet"))[:20]
    found = trained.predict(graphs)
    assert None in found.outside
    low, high = trained.calibration.residuals.interval(0.9)
    widths = trained.calibration.widths(found.distances)
    assert np.log(found.high_s / found.low_s) == pytest.approx((high - low) * widths)
