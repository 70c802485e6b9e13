"""Protocols hold out what they say, and the noise floor is what a perfect predictor scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.predictor_study import ALL, PROTOCOLS, fewer, mean_score, plan_tasks, run_study, splits_of
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.journal import Journal
from slotool.predictors.labels import LabelledSet, join_labels, label_noise_s
from slotool.predictors.scoring import floor, score
from slotool.predictors.solo.additive import AdditivePredictor
from slotool.predictors.solo.linear import LinearPredictor
from slotool.predictors.splits import MIN_DEV_ROWS, RowSplit, paper_split
from slotool.predictors.training.one_setting import train_and_score
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, synthetic_latency_s

MLPS, CNNS = random_networks(240, seed=3), random_networks(140, seed=3, kind="cnn")
GRAPHS = MLPS + CNNS


def depth(graph: OperatorGraph) -> int:
    return sum(operator.weights > 0 for operator in graph.operators)  # chains


def width(graph: OperatorGraph) -> int:
    return max(operator.shape[0] for operator in graph.operators if operator.weights)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_row_is_in_two_sets_and_the_seed_decides(protocol: str) -> None:
    for name, split in splits_of(protocol, GRAPHS, 0).items():
        parts = [split.train, split.dev, split.test]
        assert sum(map(len, parts)) == len(set(np.concatenate(parts).tolist()))
        assert min(map(len, parts)) >= MIN_DEV_ROWS, name
        again, other = (splits_of(protocol, GRAPHS, seed)[name] for seed in (0, 1))
        assert again.dev.tolist() == split.dev.tolist() != other.dev.tolist()


def test_random_is_each_kind_alone_and_all() -> None:
    splits = splits_of("random", GRAPHS, 0)
    assert list(splits) == ["mlp", "cnn", ALL]
    for kind in ("mlp", "cnn"):
        rows = np.concatenate([splits[kind].train, splits[kind].dev, splits[kind].test])
        assert sorted(rows) == [i for i, graph in enumerate(GRAPHS) if graph.kind == kind]
    assert list(splits_of("random", CNNS, 0)) == ["cnn"]


@pytest.mark.parametrize(("protocol", "size"), [("depth", depth), ("width", width)])
def test_extrapolation_tests_on_nothing_as_small_as_what_was_learnt_from(protocol: str, size) -> None:
    split = splits_of(protocol, GRAPHS, 0)[ALL]
    seen, unseen = np.concatenate([split.train, split.dev]), split.test
    for kind in ("mlp", "cnn"):
        learnt, tested = ([size(GRAPHS[i]) for i in rows if GRAPHS[i].kind == kind] for rows in (seen, unseen))
        assert max(learnt) < min(tested)
        assert 0.1 <= len(tested) / (len(learnt) + len(tested)) <= 0.35
    assert sorted([*seen, *unseen]) == list(range(len(GRAPHS)))


def test_family_never_learns_from_the_kind_it_tests_on() -> None:
    splits = splits_of("family", GRAPHS, 0)
    assert list(splits) == ["cnn unseen", "mlp unseen"]
    for name, split in splits.items():
        unseen = name.split()[0]
        assert {GRAPHS[i].kind for i in split.test} == {unseen}
        assert unseen not in {GRAPHS[i].kind for i in [*split.train, *split.dev]}


@pytest.mark.parametrize(
    ("protocol", "graphs", "sentence"),
    [
        ("family", MLPS, "leaves one kind of network out, but all 240 are mlp"),
        ("depth", [graph for graph in MLPS if depth(graph) == 3], "networks of one kind but different depth"),
        ("width", [graph for graph in MLPS if width(graph) == 255], "networks of one kind but different width"),
        ("depth", MLPS[:30], "too few labelled graphs to learn from"),
        ("by colour", MLPS, "is no protocol; there are random, depth"),
    ],
)
def test_protocols_that_are_impossible_are_sentences(protocol: str, graphs, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        splits_of(protocol, graphs, 0)


@given(st.integers(2 * MIN_DEV_ROWS, 300), st.integers(0, 3))
def test_fewer_labels_are_among_more_and_the_test_set_stays(labels: int, seed: int) -> None:
    whole = RowSplit(np.arange(260), np.arange(260, 300), np.arange(300, 340))
    few, more = fewer(whole, labels, seed), fewer(whole, 300, seed)
    assert len(few.train) + len(few.dev) == labels
    assert len(few.dev) >= MIN_DEV_ROWS
    assert set(few.train) <= set(more.train) == set(whole.train)
    assert set(few.dev) <= set(whole.dev)
    assert few.test is whole.test
    for wrong in (35, 301):
        with pytest.raises(InputError, match=f"a point at {wrong} networks"):
            fewer(whole, wrong, seed)


def noisy_labels(n: int, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True latencies, labels (medians of all samples) and their noise, when each round errs as a whole by some 5 %."""
    rng = np.random.default_rng(0)
    truth = rng.lognormal(-7, 1, n)
    round_factor = np.repeat(rng.normal(1, 0.05, (n, rounds)), 20, axis=1)
    samples = truth[:, None] * round_factor * rng.normal(1, 0.002, round_factor.shape)
    return truth, np.median(samples, axis=1), np.array([label_noise_s(row) for row in samples])


@pytest.mark.parametrize("rounds", [2, 4])
def test_the_floor_is_what_a_predictor_of_the_truth_scores(rounds: int) -> None:
    truth, label, noise = noisy_labels(4000, rounds)
    scores = score(label, truth, truth, truth, noise)
    found = scores["floor"]
    for figure in ("mae_s", "mae_over_mean", "mape"):
        assert found[figure] == pytest.approx(scores[figure], rel=0.12), figure
    for figure in ("within_5_percent", "within_10_percent"):
        assert found[figure] == pytest.approx(scores[figure], abs=0.04), figure


def test_the_noise_of_one_sample_is_unknown_and_its_floor_is_none() -> None:
    assert np.isnan(label_noise_s(np.array([1.0])))
    assert label_noise_s(np.array([1.0, 2.0, 9.0, 3.0])) == pytest.approx(2.25)
    assert set(floor(np.ones(2), np.full(2, np.nan)).values()) == {None}
    half_known = floor(np.array([1.0, 9.0]), np.array([0.2, np.nan]))
    assert half_known["mape"] == pytest.approx(0.2)
    assert floor(np.ones(3), np.array([0.2, np.nan, np.nan]))["mape"] is None
    assert half_known["within_10_percent"] == 0.0


def test_scores_of_seeds_are_averaged_floor_and_all() -> None:
    truth, label, noise = noisy_labels(50, 2)
    first, second = (score(label, truth * k, truth, truth, noise) for k in (1.0, 1.5))
    mean = mean_score([first, second])
    assert mean["mape"] == pytest.approx((first["mape"] + second["mape"]) / 2)
    assert mean["floor"] == pytest.approx(first["floor"])
    assert (mean["n"], type(mean["n"])) == (50, int)
    assert mean_score([first, {**second, "spearman": None}])["spearman"] is None


def test_labels_may_go_by_the_networks_name() -> None:
    named = [
        OperatorGraph.from_document({**graph.document(), "name": f"net-{i}"}) for i, graph in enumerate(GRAPHS[:3])
    ]
    seconds = synthetic_latency_s(named)
    rows = [{"subject": f"net-{i}", "samples_s": [seconds[i], seconds[i] * 1.2]} for i in range(3)]
    labelled = join_labels(LatencyTable.of([*rows, {"subject": named[0].id, "samples_s": [9.0]}]), named)
    assert labelled.latency_s[1:] == pytest.approx(seconds[1:] * 1.1)
    assert labelled.latency_s[0] == pytest.approx(seconds[0] * 1.2), "a row under its id counts with those of its name"
    assert labelled.noise_s[1:] == pytest.approx(seconds[1:] * 0.1)
    twins = [named[0], OperatorGraph.from_document({**GRAPHS[5].document(), "name": "net-0"})]
    with pytest.raises(InputError, match="2 different graphs are named net-0"):
        join_labels(LatencyTable.of(rows), twins)


def test_equal_networks_of_several_names_share_their_labels() -> None:
    twins = [OperatorGraph.from_document({**GRAPHS[0].document(), "name": name}) for name in ("a", "b")]
    rows = [{"subject": "a", "samples_s": [1.0]}, {"subject": "b", "samples_s": [2.0]}]
    labelled = join_labels(LatencyTable.of(rows), twins)
    assert labelled.latency_s.tolist() == [1.5]
    assert (labelled.graphs_without_label, labelled.labels_without_graph) == (0, 0)
    assert Counter(labelled.kinds) == {"mlp": 1}


MAKERS = {"linear": LinearPredictor, "additive": AdditivePredictor}


@pytest.fixture(scope="module")
def labelled() -> LabelledSet[OperatorGraph]:
    latency = synthetic_latency_s(GRAPHS)[:, None] * np.random.default_rng(0).lognormal(0, 0.03, (len(GRAPHS), 6))
    rows = zip(GRAPHS, latency, strict=True)
    return join_labels(LatencyTable.of({"subject": g.name or g.id, "samples_s": s} for g, s in rows), GRAPHS)


def test_an_interrupted_study_goes_on_where_it_was(labelled: LabelledSet[OperatorGraph], tmp_path: Path) -> None:
    tasks = plan_tasks(labelled, ["random", "family"], [0], [60])
    journal = tmp_path / "s.journal"
    told: list[str] = []

    def interrupt(what: str) -> None:
        told.append(what)
        if len(told) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Journal(journal, {}) as first:
        run_study(labelled, tasks, MAKERS, first, progress=interrupt)
    with Journal(journal, {}) as second:
        assert len(second.rows) == 4
        told.clear()
        resumed = run_study(labelled, tasks, MAKERS, second, progress=told.append)
    assert len(told) == len(tasks) * len(MAKERS) - 4
    with Journal(tmp_path / "t.journal", {}) as fresh:
        whole = run_study(labelled, tasks, MAKERS, fresh)
    assert whole.table.rows.equals(resumed.table.rows)
    assert whole.refused == resumed.refused


def test_a_predictor_is_scored_alike_alone_and_in_a_study(labelled: LabelledSet[OperatorGraph], tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", {}) as journal:
        study = run_study(labelled, plan_tasks(labelled, ["random"], [0]), MAKERS, journal)
    alone = train_and_score([LinearPredictor()], labelled, paper_split(labelled.kinds, 0)).held_out["linear"].scores()
    (among,) = (s for s in study.table.scores() if (s["split"], s["predictor"]) == ("all", "linear"))
    # A study holds no kinds out, so intervals are given to fewer networks in it.
    assert {(name, str(v)) for name, v in alone.items() if not name.startswith("interval_")} <= {
        (name, str(v)) for name, v in among.items()
    }
