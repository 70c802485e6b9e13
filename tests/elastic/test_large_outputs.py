"""Sparse inputs, very many labels: best labels without all logits, as in plain NumPy; int8 weights; k per query."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random_array

from slotool.artifacts import open_artifact
from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit
from slotool.elastic import load_model
from slotool.elastic.slo_nn.activator import Activator, NodeLists
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.confidence import MEASURES, MIN_PROBABILITY, closeness
from slotool.elastic.slo_nn.grid_evaluation import FullOutputs, evaluate_grid
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer, Int8Weights
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.registry import RANKERS
from slotool.errors import InputError
from slotool.tables import FULL, OperatingPoint
from tests.elastic import numpy_slo_nn

FEATURES, HIDDEN, LABELS, TOPICS = 900, 32, 1_500, 12


@lru_cache(maxsize=1)
def network() -> MLP:
    """Features and labels belong to topics, each of which has a few hidden units of its own."""
    rng = np.random.default_rng(0)
    topics = rng.normal(size=(TOPICS, HIDDEN)) * (rng.random((TOPICS, HIDDEN)) < 0.3)
    features = topics[rng.integers(TOPICS, size=FEATURES)] + 0.3 * rng.normal(size=(FEATURES, HIDDEN))
    labels = 2.0 * topics[rng.integers(TOPICS, size=LABELS)] + rng.normal(size=(LABELS, HIDDEN))
    return MLP(
        (FEATURES,),
        (
            DenseLayer("hidden", features.T.astype(np.float32).copy(), rng.normal(size=HIDDEN).astype(np.float32) / 4),
            DenseLayer("labels", labels.astype(np.float32), rng.normal(size=LABELS).astype(np.float32)),
        ),
    )


def examples(n: int, seed: int) -> csr_matrix:
    x = random_array((n, FEATURES), density=0.01, format="csr", rng=np.random.default_rng(seed), dtype=np.float32)
    return csr_matrix(x)


@lru_cache(maxsize=1)
def data() -> MultiLabelDataset:
    """The labels of an example are the network's own best two; a third of the examples has wrong ones."""
    splits = []
    for n, seed in ((4_000, 1), (500, 2), (400, 3)):
        x = examples(n, seed)
        best = np.sort(np.argsort(-network().logits(x), axis=1)[:, :2], axis=1)
        best[::3] = (best[::3] + 1) % LABELS
        best = np.sort(best, axis=1)
        splits.append(MultiLabelSplit(x, LabelSets(np.arange(n + 1) * 2, best.ravel().astype(np.int32))))
    return MultiLabelDataset("topics", *splits, classes=LABELS, source="topics")


# One of either kind of key; the others are held to NumPy by tests/hostile and the conformance suite.
KINDS = ("clusters", "centred-freehash")


@lru_cache(maxsize=len(RANKERS))
def model(ranker: str = "clusters") -> SloNN:
    return build("topics", TableSubject(network(), data()), ranker, TableSettings())


def pairs(x: csr_matrix) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (x.indices[start:stop], x.data[start:stop]) for start, stop in zip(x.indptr[:-1], x.indptr[1:], strict=True)
    ]


def test_only_the_output_layer_is_activated_and_k_is_geometric() -> None:
    built = model()
    assert list(built.activators) == [1]
    counts = np.round(np.array(built.shares) * LABELS)
    assert counts[0] == 8
    assert counts[-1] <= 0.12 * LABELS
    assert (counts[1:] / counts[:-1]).max() < 1.6
    assert built.table_bytes <= 0.10 * built.mlp.nbytes
    assert built.sparse


@pytest.mark.parametrize("ranker", KINDS)
@pytest.mark.parametrize("int8", [False, True])
def test_best_labels_equal_those_of_all_logits(ranker: str, int8: bool) -> None:
    built, x = model(ranker).at_int8(int8), data().test.x[:60]
    for point in (*built.points[::4], FULL):
        for p in (1, 5):
            labels, scores = built.top(x, p, point=point)
            expected, expected_scores = numpy_slo_nn.top(built, x, p, point=point)
            np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-4)
            clear = np.abs(np.diff(expected_scores, axis=1, append=-np.inf)) > 1e-3
            np.testing.assert_array_equal(labels[clear], expected[clear])


@pytest.mark.parametrize("ranker", KINDS)
def test_k_is_chosen_per_query_as_numpy_chooses_it(ranker: str) -> None:
    built, x = model(ranker), data().test.x[:80]
    best = float(built.calibration.by_point[-1])
    for accuracy in (0.2, best - 0.05, best - 0.01, best):
        labels, scores = built.top(x, 2, accuracy=accuracy)
        _, expected_scores = numpy_slo_nn.top(built, x, 2, accuracy=accuracy)
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-4)
        session, chosen = built.compiled_session(2, accuracy=accuracy), built.cheapest(x, accuracy)
        for row, (indices, values) in enumerate(pairs(x)):
            np.testing.assert_array_equal(session.sparse(indices, values), labels[row])
            assert session.taken == built.points[chosen[row]]
    with pytest.raises(InputError, match="cannot be met; the full network has"):
        built.top(x, accuracy=best + 1e-6)


def test_sparse_and_dense_inputs_get_the_same_answers() -> None:
    built, x = model(), data().test.x[:20]
    dense = x.toarray()
    for point in (built.points[0], built.points[-2], FULL):
        for sparse_answer, dense_answer in zip(
            (built.forward(x, point), *built.top(x, 3, point=point)),
            (built.forward(dense, point), *built.top(dense, 3, point=point)),
            strict=True,
        ):
            np.testing.assert_allclose(sparse_answer, dense_answer, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_logits_agree_between_compiled_and_numpy(int8: bool) -> None:
    built, x = model().at_int8(int8), data().test.x[:20]
    for point in (built.points[0], built.points[5], FULL):
        np.testing.assert_allclose(built.forward(x, point), numpy_slo_nn.forward(built, x, point), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ranker", KINDS)
def test_more_queries_than_there_are_stamps_choose_the_nodes_that_numpy_chooses(ranker: str) -> None:
    whole, x = model(ranker), data().test.x[:300]
    # Half of each list is left out, so that the overall ranking goes on and may not name a node again.
    lists = whole.activators[1].lists
    cut = replace(lists, lists=np.ascontiguousarray(lists.lists[:, : lists.lists.shape[1] // 2]))
    activators = {1: Activator(whole.activators[1].ranker, cut)}
    built = SloNN(
        "cut", whole.mlp, whole.shares, activators, whole.confidence, whole.calibration, {1: 1.0}, sparse=True
    )
    last = built.points[-2]
    computed = np.isfinite(built.forward(x, last))
    assert (computed.sum(axis=1) == computed[0].sum()).all()
    np.testing.assert_array_equal(computed, np.isfinite(numpy_slo_nn.forward(built, x, last)))


def test_the_full_point_is_exactly_the_network_even_with_int8_rows() -> None:
    x = data().test.x[:50]
    for built in (model(), model().at_int8()):
        np.testing.assert_allclose(built.forward(x, FULL), network().logits(x), rtol=1e-4, atol=1e-4)
        assert (built.top(x)[0][:, 0] == network().logits(x).argmax(axis=1)).all()


def test_int8_rows_are_the_nearest_steps_and_the_best_labels_keep_their_float_scores() -> None:
    layer = network().layers[1]
    quantized = Int8Weights.of(layer)
    weights = quantized.rows * quantized.scale[:, None]
    assert np.abs(weights - layer.weights).max() <= quantized.scale.max() / 2 + 1e-6
    zero = DenseLayer("zero", np.zeros((2, 3), np.float32), np.zeros(2, np.float32))
    assert not Int8Weights.of(zero).rows.any()
    x, point = data().test.x[:50], model().points[-2]
    labels, scores = model().at_int8().top(x, 3, point=point)
    exact = np.take_along_axis(network().logits(x), labels.astype(np.int64), axis=1)
    np.testing.assert_allclose(scores, exact, rtol=1e-4, atol=1e-4)


def test_one_climb_tries_every_k() -> None:
    """The compiled climb over the nested lists says what each k alone would, and how close it comes."""
    for ranker in KINDS:
        built, x = model(ranker), data().test.x[:60]
        results = evaluate_grid(built.mlp, built.activators, built.shares, x)
        full = network().logits(x)
        assert (results.labels[:, -1] == full.argmax(axis=1)).all()
        for at, point in enumerate(built.points[:-1]):
            logits = numpy_slo_nn.forward(built, x, point)
            assert (results.labels[:, at] == logits.argmax(axis=1)).mean() > 0.98
            # Labels below the least probability count as that much in one and as they are in the other.
            np.testing.assert_allclose(results.closeness[:, at], closeness(full, logits), atol=500 * MIN_PROBABILITY)


def test_what_the_full_network_answers_is_kept_for_its_likeliest_labels() -> None:
    hidden = np.maximum(network().layers[0].pre_activations(data().test.x), 0)
    calls: list[None] = []
    full = FullOutputs.of(network().layers[1], hidden, lambda: calls.append(None))
    logits = network().logits(data().test.x)
    np.testing.assert_allclose(full.log_partition, np.log(np.exp(logits.astype(float)).sum(axis=1)), rtol=1e-5)
    assert (full.first == logits.argmax(axis=1)).all()
    for sharpness in (1.0, 2.0):
        scores = full.scores(sharpness)
        np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)
        assert (scores.argmax(axis=1).ravel() == full.first).all()
    probabilities = np.exp(logits - full.log_partition[:, None])
    kept = full.probabilities.toarray()
    np.testing.assert_allclose(kept[kept > 0], probabilities[kept > 0], rtol=1e-3)
    assert calls


def one_list(activator: Activator) -> Activator:
    """The overall ranking in every bucket; nodes that a hash reads are still computed."""
    lists = activator.lists
    return Activator(activator.ranker, NodeLists(np.zeros_like(lists.slots), lists.lists[:1], lists.overall))


def test_lists_per_bucket_beat_one_static_list_and_clusters_beat_hashes() -> None:
    accuracy = {}
    for ranker in (*KINDS, "random"):
        built = model(ranker)
        own, static = (
            data().test.y.contain(evaluate_grid(built.mlp, lists, built.shares, data().test.x).labels).mean(axis=0)
            for lists in (built.activators, {1: one_list(built.activators[1])})
        )
        if RANKERS[ranker].informed:
            assert own[:8].mean() > static[:8].mean(), ranker
        accuracy[ranker] = own[:-1].mean()
    assert max(accuracy, key=lambda name: accuracy[name]) == "clusters"
    assert min(accuracy, key=lambda name: accuracy[name]) == "random"


def test_choosing_per_query_is_never_worse_than_a_fixed_k_where_it_was_calibrated() -> None:
    built = model()
    assert set(built.mean_k) == {measure.name for measure in MEASURES}
    assert {"cross-entropy", "none"} <= set(built.mean_k)
    assert built.mean_k[built.measure] == min(built.mean_k.values())


def test_saved_and_loaded_it_answers_alike(tmp_path: Path) -> None:
    built, x = model().at_int8(), data().test.x[:30]
    built.save(tmp_path / "model", config={}, seed=0)
    again = load_model(open_artifact(tmp_path / "model"))
    assert isinstance(again, SloNN)
    assert (again.int8, again.sparse, again.measure) == (True, True, built.measure)
    for mine, theirs in zip(built.top(x, 2, accuracy=0.3), again.top(x, 2, accuracy=0.3), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_cannot_be_answered_is_refused_and_leaves_nothing_behind() -> None:
    built = model()
    session = built.compiled_session(3, point=built.points[4])
    good = session.sparse(np.array([3, 5], np.int32), np.ones(2, np.float32)).copy()
    for indices, values, sentence in (
        ([3, FEATURES], [1.0, 1.0], "has features 0 to 899"),
        ([3, -1], [1.0, 1.0], "has features 0 to 899"),
        ([3, 5], [1.0, np.nan], "NaN or infinite"),
        ([3, 5], [1.0, np.inf], "NaN or infinite"),
    ):
        with pytest.raises(InputError, match=sentence):
            session.sparse(np.array(indices, np.int32), np.array(values, np.float32))
        assert (session.sparse(np.array([3, 5], np.int32), np.ones(2, np.float32)) == good).all()
    nothing = session.sparse(np.empty(0, np.int32), np.empty(0, np.float32))
    assert (nothing == built.top(csr_matrix((1, FEATURES), dtype=np.float32), 3, point=built.points[4])[0]).all()
    with pytest.raises(InputError, match="the best 200 labels cannot be given, only 1 to 128"):
        built.compiled_session(200)
    with pytest.raises(InputError, match="by a point or by an accuracy, not by both"):
        built.compiled_session(1, point=FULL, accuracy=0.3)
    with pytest.raises(InputError, match=r"takes inputs \[batch, 900\], not \[2, 5\]"):
        built.top(csr_matrix((2, 5), dtype=np.float32))


def test_fewer_nodes_than_labels_asked_for_leave_places_empty() -> None:
    built = build("tiny", TableSubject(network(), data()), "clusters", TableSettings((2 / LABELS, 0.01)))
    labels, scores = built.top(data().test.x[:5], 4, point=OperatingPoint.of(k=2 / LABELS))
    assert (labels[:, :2] >= 0).all()
    assert (labels[:, 2:] == -1).all()
    assert np.isneginf(scores[:, 2:]).all()
