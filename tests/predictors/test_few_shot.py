"""Few-shot transfer: a predictor adapted to another setting by a handful of labels, and which ones to measure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slotool.artifacts import create_artifact, open_artifact
from slotool.commands.predictors.adapt_predictor import Adaptation
from slotool.errors import ArtifactError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.predictors.base import Examples
from slotool.predictors.features.type_costs import operator_type
from slotool.predictors.labels import join_labels
from slotool.predictors.registry import predictor_class
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.splits import paper_split
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.adaptation import ADAPTED, AS_IS, FACTOR, THREE_TERM, adapt, adapt_and_score
from slotool.predictors.transfer.adapted import AdaptedPredictor, held_out_residuals, propose
from slotool.predictors.transfer.few_labels import FewLabels, covariance_before
from slotool.predictors.transfer.odd_labels import doubtful_label, odd_labels, suspects
from slotool.tables import LatencyTable
from slotool.testing.predictors import PredictorConformance, random_networks, synthetic_latency_s

GRAPHS = random_networks(60, seed=5) + random_networks(60, seed=5, kind="cnn")
HERE_S = synthetic_latency_s(GRAPHS)


def there_s(graphs: list[OperatorGraph]) -> np.ndarray:
    """Another device: everything twice as slow, convolutions six times."""
    return synthetic_latency_s(graphs) * np.array([6.0 if graph.kind == "cnn" else 2.0 for graph in graphs])


def fitted_base() -> AdditivePredictor:
    base = AdditivePredictor()
    base.fit(Examples(GRAPHS, HERE_S), Examples(GRAPHS[:1], HERE_S[:1]), seed=0)
    return base


BASE = fitted_base()


def adapted_to(rows: np.ndarray, latency_s: np.ndarray) -> AdaptedPredictor:
    predictor = AdaptedPredictor(BASE)
    predictor.fit(Examples([GRAPHS[i] for i in rows], latency_s[rows]))
    return predictor


def mape(predicted: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted / truth - 1)))


class TestAdapted(PredictorConformance):
    make = staticmethod(lambda: AdaptedPredictor(BASE))

    def test_it_is_registered_under_its_name(self) -> None:
        assert predictor_class("adapted") is AdaptedPredictor


def test_ten_labels_find_what_one_factor_cannot() -> None:
    truth, errors, scaled = there_s(GRAPHS), [], []
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(len(GRAPHS))[:10]
        rest = np.setdiff1d(np.arange(len(GRAPHS)), rows)
        asked = [GRAPHS[i] for i in rest]
        errors.append(mape(adapted_to(rows, truth).predict(asked), truth[rest]))
        factor = np.median(truth[rows] / BASE.predict([GRAPHS[i] for i in rows]))
        scaled.append(mape(BASE.predict(asked) * factor, truth[rest]))
    assert np.mean(errors) < 0.15
    assert np.mean(errors) < 0.3 * np.mean(scaled)


def test_a_prediction_is_the_middle_of_its_spread() -> None:
    adapted = adapted_to(np.arange(55, 65), there_s(GRAPHS))
    many = GRAPHS * 6  # more than are looked at at once
    predicted_s, spread = adapted.predict_and_spread(many)
    assert adapted.predict(many) == pytest.approx(predicted_s, rel=1e-9)
    assert spread.reshape(6, -1) == pytest.approx(np.tile(spread[: len(GRAPHS)], (6, 1)), rel=1e-9)


def test_where_a_factor_is_all_nothing_else_is_corrected() -> None:
    truth = 3 * BASE.predict(GRAPHS)
    for rows in (np.arange(3), np.arange(55, 65)):
        assert mape(adapted_to(rows, truth).predict(GRAPHS), truth) < 0.04


@pytest.mark.parametrize("worth", ["base", "nothing"])
def test_a_base_that_is_worth_nothing_hardly_counts(worth: str) -> None:
    """The mean of the mixture goes by what the labels show, whatever the base is."""
    rng = np.random.default_rng(3)
    times = rng.lognormal(0, 2.0, len(GRAPHS)) if worth == "nothing" else np.ones(len(GRAPHS))
    by_id = {graph.id: seconds for graph, seconds in zip(GRAPHS, BASE.predict(GRAPHS) * times, strict=True)}

    class Known(AdditivePredictor):
        def predict(self, graphs):
            return np.array([by_id[graph.id] for graph in graphs])

    rows = np.arange(52, 68)
    predictor = AdaptedPredictor(Known())
    predictor.fit(Examples([GRAPHS[i] for i in rows], there_s(GRAPHS)[rows]))
    assert predictor.labels.shares.sum() == pytest.approx(1.0)
    assert (predictor.labels.shares[0] < 0.5) == (worth == "nothing")
    assert mape(predictor.predict(GRAPHS), there_s(GRAPHS)) < 0.6


def test_labels_left_out_are_predicted_by_the_others() -> None:
    predictor, truth = adapted_to(np.arange(55, 65), there_s(GRAPHS)), np.log(there_s(GRAPHS))
    labels = predictor.labels
    mean, variance = labels.left_out([np.array([3]), np.array([0, 7])])
    without = FewLabels(labels.networks.take(np.delete(np.arange(10), 3)), np.delete(truth[55:65], 3))
    expected = without.answer(labels.networks.take([3]))
    assert (mean[3], variance[3]) == pytest.approx((expected[0][0], expected[1][0]))


def test_the_interval_is_wider_where_the_stated_spread_is_too_small() -> None:
    errors = np.array([0.1, -0.2, 0.15, 0.1, -0.1])
    narrow, wide = (held_out_residuals(errors, np.full(5, own)).interval(0.9)[1] for own in (0.5, 0.05))
    assert narrow == pytest.approx(2.13, abs=0.05)  # Student's t of four degrees of freedom
    assert wide == pytest.approx(narrow * 0.1 / 0.05 / 0.6745, rel=1e-6)
    # One label that no other is like does not widen the interval of the rest.
    unlike = held_out_residuals(np.array([0.1, -0.2, 0.15, 3.0, -0.1]), np.full(5, 0.05)).interval(0.9)[1]
    assert unlike < 1.6 * wide


def test_a_type_no_label_shows_is_less_sure() -> None:
    mlps = np.arange(10)
    predictor = adapted_to(mlps, there_s(GRAPHS))
    _, spread = predictor.predict_and_spread(GRAPHS)
    assert np.median(spread[60:]) > 3 * np.median(spread[10:60])


def test_convolutions_of_different_make_are_different_types() -> None:
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=[8, 4, 4])
    for more in ({"kernel": 3}, {"kernel": 1}, {"kernel": 3, "groups": 8}):
        last = builder.add("Conv2D", last, filters=8, padding="same", activation="relu", **more)
    builder.add("Activation", last, activation="relu")
    types = [operator_type(operator) for operator in builder.graph().operators]
    assert types == ["InputLayer", "Conv2D", "Conv2D 1×1", "Conv2D of groups", "relu()"]


@pytest.mark.parametrize("n", [1, 4])
def test_the_sampler_takes_most_variance_each_time(n: int) -> None:
    """Against the definition: the trace of the covariance given the labels, for every choice of the last one."""
    graphs = GRAPHS[40:80]
    covariance, noise = covariance_before(AdaptedPredictor(BASE).networks(graphs))

    def left(rows: list[int]) -> float:
        known = covariance[np.ix_(rows, rows)] + noise * np.eye(len(rows))
        return float(np.trace(covariance - covariance[:, rows] @ np.linalg.solve(known, covariance[rows])))

    chosen = propose(BASE, graphs, n)
    best = min(left([*chosen[:-1], i]) for i in range(len(graphs)) if i not in chosen[:-1])
    assert left(chosen) == pytest.approx(best, rel=1e-6)


def test_the_sampler_is_repeatable_prefers_what_is_unknown_and_minds_the_time() -> None:
    assert propose(BASE, GRAPHS, 6, seed=3) == propose(BASE, GRAPHS, 6, seed=3)
    assert {GRAPHS[i].kind for i in propose(BASE, GRAPHS, 6)} == {"mlp", "cnn"}
    knows_mlps = adapted_to(np.arange(12), there_s(GRAPHS))
    assert GRAPHS[propose(knows_mlps, GRAPHS, 1)[0]].kind == "cnn"
    for wrong in (0, len(GRAPHS) + 1):
        with pytest.raises(InputError, match="networks to choose, but there are"):
            propose(BASE, GRAPHS, wrong)


def test_too_few_and_too_many_labels_are_refused() -> None:
    many = random_networks(201, seed=9)
    for graphs in (GRAPHS[:2], many):
        with pytest.raises(InputError, match=f"3 to 200 labelled networks, not by {len(graphs)}"):
            AdaptedPredictor(BASE).fit(Examples(graphs, synthetic_latency_s(graphs)))
    with pytest.raises(InputError, match="no predictor to adapt"):
        AdaptedPredictor().fit(Examples(GRAPHS[:5], HERE_S[:5]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A base trained here, graphs, and a latency table from there."""
    folder = tmp_path_factory.mktemp("few")
    write_graphs(folder / "graphs.parquet", GRAPHS)
    rng = np.random.default_rng(1)
    for name, latency_s, backend in (("here", HERE_S, "torch"), ("there", there_s(GRAPHS), "keras")):
        samples = latency_s[:, None] * rng.lognormal(0, 0.02, (len(GRAPHS), 5))
        rows = [
            {"subject": graph.id, "samples_s": seconds, "backend": backend}
            for graph, seconds in zip(GRAPHS, samples, strict=True)
        ]
        LatencyTable.of(rows).save(folder / f"{name}.parquet")
    labelled = join_labels(LatencyTable.load(folder / "here.parquet"), GRAPHS)
    trained = TrainedPredictor.train(AdditivePredictor(), labelled, paper_split(["graph"] * len(labelled), 0), seed=0)
    with create_artifact(folder / "base", "predictor", config={}) as writer:
        trained.write(writer)
    return folder


def test_the_command_shows_baselines_and_writes_what_predicts(slotool, folder: Path, tmp_path) -> None:
    inputs = [folder / "base", folder / "there.parquet", "-g", folder / "graphs.parquet"]
    done = slotool("adapt-predictor", *inputs, "--samples", 10, "-o", tmp_path / "a", "--json")
    assert done.exit_code == 0, done.stderr
    others = {name: each["others_mape"] for name, each in done.document["predictors"].items()}
    assert set(others) == {AS_IS, FACTOR, THREE_TERM, ADAPTED}
    assert others[ADAPTED] < 0.5 * others[FACTOR] < others[AS_IS]
    assert (len(done.document["adapted_to"]), done.document["scored"]) == (10, len(GRAPHS) - 10)
    assert done.document["setting"]["backend"] == "keras"

    # The scores are those of what was written, and the library's.
    trained, rest = TrainedPredictor.load(str(tmp_path / "a")), {*done.document["adapted_to"]}
    labelled = join_labels(LatencyTable.load(folder / "there.parquet"), read_graphs(folder / "graphs.parquet"))
    rows = np.array([i for i, graph in enumerate(labelled.items) if graph.id not in rest])
    graphs, measured_s = labelled.take(rows)
    chosen = others[done.document["chosen"]]
    assert mape(trained.predict(graphs).latency_s, measured_s) == pytest.approx(chosen)
    run = adapt_and_score(TrainedPredictor.load(str(folder / "base")), labelled, 10)
    assert run.scores()["predictors"] == open_artifact(tmp_path / "a").json("scores.json")["predictors"]

    scored = slotool("evaluate-predictor", tmp_path / "a", "--latency", inputs[1], *inputs[2:])
    assert f"10 of {len(GRAPHS)} networks are predicted from their own labels" in " ".join(scored.stderr.split())
    table = LatencyTable.load(inputs[1])
    LatencyTable(table.rows.assign(samples_s=[1e3 * np.array(each) for each in table.rows["samples_s"]])).save(
        tmp_path / "ms.parquet"
    )
    scored = slotool("evaluate-predictor", tmp_path / "a", "--latency", tmp_path / "ms.parquet", *inputs[2:])
    assert "in seconds?" in scored.stderr
    elsewhere = slotool("evaluate-predictor", tmp_path / "a", "--latency", inputs[1], *inputs[2:], "--backend", "onnx")
    assert (elsewhere.exit_code, "keras" in elsewhere.stderr) == (2, True)
    shown = slotool("predict", tmp_path / "a", "--graph", folder / "graphs.parquet")
    assert "for unknown, keras, 1 thread" in shown.stdout
    again = slotool("adapt-predictor", *inputs, "-o", tmp_path / "a")
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_labels_of_unstable_rows_are_counted() -> None:
    rows = [
        {"subject": graph.id, "samples_s": [1e-3], "backend": "torch", "stable": stable}
        for graph, stable in zip(GRAPHS[:3], (True, False, False), strict=True)
    ]
    assert join_labels(LatencyTable(pd.DataFrame(rows)), GRAPHS[:3]).unstable == 2
    told_nothing = [{key: value for key, value in row.items() if key != "stable"} for row in rows]
    assert join_labels(LatencyTable.of(told_nothing), GRAPHS[:3]).unstable == 0


def test_all_labels_are_learnt_from_and_some_left_out_in_turn_for_the_score(slotool, folder: Path, tmp_path) -> None:
    write_graphs(tmp_path / "some.parquet", GRAPHS[43:77])
    inputs = [folder / "base", folder / "there.parquet", "-g", tmp_path / "some.parquet"]
    done = slotool("adapt-predictor", *inputs, "-o", tmp_path / "a")
    assert done.exit_code == 0, done.stderr
    assert "Learnt from 34 labels" in done.stdout
    assert "from unknown, torch" in done.stdout


def test_noisy_labels_leave_little_more_than_one_factor() -> None:
    """Where one factor is all there is to know."""
    rng = np.random.default_rng(4)
    errors, scaled_errors = [], []
    for _ in range(3):
        truth = 3 * BASE.predict(GRAPHS) * rng.lognormal(0, 0.3, len(GRAPHS))
        known, asked = np.split(rng.permutation(len(GRAPHS)), [8])
        others = [GRAPHS[i] for i in asked]
        factor = np.median(truth[known] / BASE.predict([GRAPHS[i] for i in known]))
        errors.append(mape(adapted_to(known, truth).predict(others), truth[asked]))
        scaled_errors.append(mape(factor * BASE.predict(others), truth[asked]))
    assert np.mean(errors) < 1.3 * np.mean(scaled_errors)


@pytest.mark.parametrize("name", ["ensemble", "composition", "adapted"])
def test_one_adapted_in_an_earlier_way_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    old = open_artifact(folder / "base")
    with create_artifact(tmp_path / "old", "predictor", config={}) as writer:
        writer.write_tensors("predictor.safetensors", old.weights("predictor.safetensors"))
        state = {"base": {"name": "additive"}, "prices": {}, "columns": []}
        writer.write_json("predictor.json", {**old.json("predictor.json"), "name": name, "state": state})
    with pytest.raises(ArtifactError):
        TrainedPredictor.load(str(tmp_path / "old"))


def test_few_labels_give_a_wide_interval_that_covers_and_more_a_narrower(folder: Path) -> None:
    base, rng = TrainedPredictor.load(str(folder / "base")), np.random.default_rng(0)
    labelled = join_labels(LatencyTable.load(folder / "there.parquet"), GRAPHS)
    covered, widths = [], {4: [], 12: [], 32: []}
    for labels, found in widths.items():
        for _ in range(2):
            rows = rng.permutation(len(labelled))
            trained, _ = adapt(base, labelled.only(rows[:labels]))
            scores = trained.held_out(labelled, rows[labels:]).scores()
            covered.append(scores["interval_coverage"])
            found.append(scores["interval_width"])
    assert np.mean(covered) > 0.85
    assert np.mean(widths[32]) < np.mean(widths[12]) < np.mean(widths[4])


def test_an_adapted_predictor_keeps_its_interval_and_domain_in_the_artifact(folder: Path, tmp_path: Path) -> None:
    labelled = join_labels(LatencyTable.load(folder / "there.parquet"), GRAPHS[50:62])
    trained, _ = adapt(TrainedPredictor.load(str(folder / "base")), labelled)
    with create_artifact(tmp_path / "a", "predictor", config={}) as writer:
        trained.write(writer)
    again = TrainedPredictor.load(str(tmp_path / "a"))
    widths, others = trained.predict(GRAPHS), again.predict(GRAPHS)
    for name in ("latency_s", "low_s", "high_s", "spread"):
        assert np.array_equal(getattr(widths, name), getattr(others, name), equal_nan=True)
    assert widths.no_interval == others.no_interval
    assert np.ptp(widths.high_s / widths.low_s) > 0.001
    assert again.domain.document() == trained.domain.document()


@pytest.mark.parametrize(
    ("base", "arguments", "sentence"),
    [
        ("base", ["--samples", "200"], "200 samples of 120 labelled networks leave none to score by"),
        ("base", ["--samples", "2"], "--samples"),
        ("nowhere", [], "no such artifact folder"),
        ("newer", [], "predictor version 99"),
        ("base", ["--threads", "64"], "no measured row"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    slotool, folder: Path, tmp_path: Path, monkeypatch, base: str, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    if base == "newer" and not Path("newer").exists():
        old = open_artifact(folder / "base")
        with create_artifact(Path("newer"), "predictor", config={}) as writer:
            writer.write_json("predictor.json", {**old.json("predictor.json"), "version": 99})
    inputs = [base, "there.parquet", "-g", "graphs.parquet"]
    done = slotool("adapt-predictor", *inputs, *arguments, "-o", tmp_path / "a")
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not any(tmp_path.iterdir())


def test_fewer_than_three_labels_are_refused(slotool, folder: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "two.jsonl", GRAPHS[:2])
    inputs = [folder / "base", folder / "there.parquet", "-g", tmp_path / "two.jsonl", "-o", tmp_path / "a"]
    done = slotool("adapt-predictor", *inputs)
    assert (done.exit_code, "2 labelled networks are too few" in done.stderr, done.stderr.count(";")) == (2, True, 1)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("row", "times"), [(60, 100.0), (60, 0.01), (60, 3.0), (50, 1 / 3)])
def test_a_label_that_cannot_be_right_is_named_and_set_aside(
    slotool, folder: Path, tmp_path, row: int, times: float
) -> None:
    rows = [*range(50, 55), *range(60, 65)]
    table = LatencyTable.load(folder / "there.parquet")
    frame = table.rows[table.rows["subject"].isin([GRAPHS[i].id for i in rows])].copy()
    wrong = frame["subject"] == GRAPHS[row].id
    frame.loc[wrong, "samples_s"] = frame.loc[wrong, "samples_s"].map(lambda samples: np.asarray(samples) * times)
    LatencyTable(frame.reset_index(drop=True), table.provenance).save(tmp_path / "few.parquet")
    inputs = [folder / "base", tmp_path / "few.parquet", "-g", folder / "graphs.parquet"]
    done = slotool("adapt-predictor", *inputs, "-o", tmp_path / "a", "--json")
    assert done.exit_code == 0, done.stderr
    (aside,) = done.document["set_aside"]
    assert aside["graph_id"] == GRAPHS[row].id
    assert abs(np.log(aside["times"] / times)) < np.log(4)
    assert GRAPHS[row].id not in done.document["adapted_to"]
    assert "it is set aside; measure that network again" in done.stderr
    asked = [i for i in range(len(GRAPHS)) if i not in rows]
    predictions = TrainedPredictor.load(str(tmp_path / "a")).predict([GRAPHS[i] for i in asked])
    truth, given = there_s(GRAPHS)[asked], np.isfinite(predictions.low_s)
    inside = (predictions.low_s <= truth) & (truth <= predictions.high_s)
    assert np.mean(inside[given]) > 0.7


@pytest.mark.parametrize(
    ("order", "times", "sentence"),
    [(1, 1000.0, "are they in seconds?"), (-1, 1.0, "these labels tell nothing of one another"), (1, 1.0, None)],
)
def test_labels_in_other_units_or_of_other_networks_are_doubted(
    folder: Path, order: int, times: float, sentence
) -> None:
    rows = [50, 52, 54, 60, 62, 64]
    graphs = sorted((GRAPHS[i] for i in rows), key=lambda graph: graph.flops)
    measured = join_labels(LatencyTable.load(folder / "there.parquet"), graphs)
    labelled = replace(measured, latency_s=times * measured.latency_s[::order])
    run = adapt_and_score(TrainedPredictor.load(str(folder / "base")), labelled)
    assert run.doubt is None if sentence is None else sentence in (run.doubt or "")
    # Harm has no sentence beside it.
    assert sentence is None or len(Adaptation(run).warnings) == 1


@pytest.mark.parametrize(("times_better", "is_odd"), [(1.0, False), (2.0, True)])
def test_a_label_is_set_aside_only_where_the_others_agree_better_without_it(times_better: float, is_odd: bool) -> None:
    with_it = np.array([0.1, -0.1] * 4 + [-np.log(3), 0.1])
    label = doubtful_label(8, with_it, np.delete(with_it, 8) / times_better)
    assert suspects(with_it) == [8]
    assert (label and (label.row, round(label.times, 6))) == ((8, 3.0) if is_odd else None)
    assert doubtful_label(8, with_it, 6 * np.delete(with_it, 8)) is None


def test_labels_that_differ_as_networks_do_are_all_kept() -> None:
    for rows in (range(10), range(55, 65), range(50, 80)):
        graphs = [GRAPHS[i] for i in rows]
        assert odd_labels(BASE.predict(graphs), graphs, there_s(graphs)) == []


def test_rows_of_one_network_that_disagree_and_labels_all_the_same_are_one_sentence_each(
    slotool, folder: Path, tmp_path: Path
) -> None:
    table = LatencyTable.load(folder / "there.parquet")
    frame = table.rows[table.rows["subject"].isin([graph.id for graph in GRAPHS[50:56]])].reset_index(drop=True)
    twice = frame[frame["subject"] == GRAPHS[50].id].copy()
    twice["samples_s"] = twice["samples_s"].map(lambda samples: 3.0 * np.asarray(samples))
    rest = ("-g", folder / "graphs.parquet", "-o")
    LatencyTable(pd.concat([frame, twice], ignore_index=True), table.provenance).save(tmp_path / "twice.parquet")
    done = slotool("adapt-predictor", folder / "base", tmp_path / "twice.parquet", *rest, tmp_path / "a")
    assert done.exit_code == 0, done.stderr
    assert re.search(rf"2 rows of {GRAPHS[50].id} disagree, .* \(3 times\): the median of all", done.stderr)
    same = frame.assign(samples_s=[np.array([1e-3])] * len(frame))
    LatencyTable(same, table.provenance).save(tmp_path / "same.parquet")
    done = slotool("adapt-predictor", folder / "base", tmp_path / "same.parquet", *rest, tmp_path / "b")
    assert done.stderr.count("all 6 labels are 1 ms, whatever the network") == 1
    assert done.stderr.count("warning:") == 2  # and that graphs have no label
