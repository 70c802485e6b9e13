"""Node Activators: Algorithm 1, FreeHash, the forward pass in NumPy and compiled, and ACLO."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.activator import MIN_IN_BUCKET, NodeLists, NodeScores, node_count
from slotool.elastic.slo_nn.assessment import PointPredictions, by_point
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.calibration import ThresholdCalibration, min_share
from slotool.elastic.slo_nn.confidence import ConfidenceTables, closeness
from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.freehash import CentredFreeHash, FreeHash
from slotool.elastic.slo_nn.rankers.ranker import bucket_entropy
from slotool.errors import InputError
from slotool.tables import FULL, OperatingPoint
from tests.elastic import numpy_slo_nn
from tests.elastic.activator_subjects import SHARES, digits, digits_model, mlp_of, random_model, trained
from tests.elastic.elastic_conformance import ElasticModelConformance


class TestDigitsModel(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> SloNN:
        return digits_model()

    def plain(self, model: SloNN, x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return trained().module(torch.from_numpy(x)).numpy()

    def inputs(self, model: SloNN, n: int) -> np.ndarray:
        return digits().test.x[:n]


class TestRandomModel(ElasticModelConformance):
    @pytest.fixture
    def model(self) -> SloNN:
        return random_model()

    def plain(self, model: SloNN, x: np.ndarray) -> np.ndarray:
        return model.mlp.logits(x.reshape(len(x), -1))


class TestManyClasses(TestRandomModel):
    """From 256 classes on the output layer has an activator too, and node numbers need 16 bits."""

    @pytest.fixture
    def model(self) -> SloNN:
        return random_model((32,), 300, 2, 4)

    def test_dropped_classes_score_minus_infinity(self, model: SloNN) -> None:
        x = self.inputs(model, 3)
        for share in SHARES:
            computed = np.isfinite(model.forward(x, OperatingPoint.of(k=share))).sum(axis=1)
            assert (computed == node_count(300, share)).all()
        assert np.isfinite(model.forward(x, FULL)).all()


# --- Algorithm 1 ---------------------------------------------------------------------------------------------------


def test_algorithm_1_on_a_case_worked_by_hand() -> None:
    """One table, two buckets: activations add up per bucket, nodes are ranked by the sums."""
    scores = NodeScores(tables=1, buckets=2, units=3)
    keys = np.array([[0], [0], [1]] * MIN_IN_BUCKET)
    activations = np.array([[1.0, 0.0, 5.0], [4.0, 2.0, 1.0], [0.0, 9.0, 2.0]] * MIN_IN_BUCKET)
    scores.add(keys, activations)
    np.testing.assert_array_equal(scores.sums[0] / MIN_IN_BUCKET, [[5, 2, 6], [0, 9, 2]])
    lists = NodeLists.rank(scores, length=3)
    assert lists.lists[lists.buckets_of(np.array([[0]]))[0, 0]].tolist() == [2, 0, 1]
    assert lists.lists[lists.buckets_of(np.array([[1]]))[0, 0]].tolist() == [1, 2, 0]
    assert lists.overall.tolist() == [1, 2, 0]  # sums over both: 5, 11, 8


def test_a_thin_bucket_backs_off_to_the_overall_ranking() -> None:
    scores = NodeScores(tables=1, buckets=2, units=3)
    many = MIN_IN_BUCKET
    scores.add(np.zeros((many, 1), dtype=int), np.tile([1.0, 2.0, 3.0], (many, 1)))
    scores.add(np.ones((many - 1, 1), dtype=int), np.tile([9.0, 0.0, 0.0], (many - 1, 1)))
    lists = NodeLists.rank(scores, length=2)
    assert lists.buckets_of(np.array([[0], [1]])).tolist() == [[1], [0]]
    assert lists.lists[0].tolist() == lists.overall[:2].tolist() == [0, 2]


def test_two_lists_are_interleaved_and_then_the_overall_ranking_follows() -> None:
    lists = NodeLists(
        slots=np.array([[1], [2]], dtype=np.uint16),
        lists=np.array([[0, 1], [3, 1], [3, 2]], dtype=np.uint8),
        overall=np.array([0, 1, 2, 3, 4], dtype=np.uint8),
    )
    nothing = np.empty(0, dtype=np.int64)
    assert lists.ranked(np.array([[0, 0]]), 5, nothing).tolist() == [[3, 1, 2, 0, 4]]  # 3 (3) 1 2, then 0 1 2 3 4
    assert lists.ranked(np.array([[0, 0]]), 3, np.array([4])).tolist() == [[4, 3, 1]]


@given(seed=st.integers(0, 10_000), units=st.integers(2, 300), tables=st.integers(1, 4), length=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_lists_hold_each_node_once_and_orders_are_total(seed: int, units: int, tables: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 4, size=(60, tables))
    scores = NodeScores(tables, 4, units)
    scores.add(keys, rng.random((60, units)))
    lists = NodeLists.rank(scores, length)
    assert all(len(set(row)) == len(row) == min(length, units) for row in lists.lists.tolist())
    assert sorted(lists.overall.tolist()) == list(range(units))
    before = rng.choice(units, size=min(3, units), replace=False)
    ranked = lists.ranked(keys, units, before)
    assert all(sorted(row) == list(range(units)) for row in ranked.tolist())
    assert (ranked[:, : len(before)] == before).all()
    assert (lists.ranked(keys, (units + len(before)) // 2, before) == ranked[:, : (units + len(before)) // 2]).all()


def identity(units: int) -> DenseLayer:
    """A layer whose nodes' values are its inputs."""
    return DenseLayer("identity", np.eye(units, dtype=np.float32), np.zeros(units, dtype=np.float32))


# --- FreeHash ------------------------------------------------------------------------------------------------------


def test_freehash_is_the_sign_of_the_nodes_own_pre_activation() -> None:
    ranker = FreeHash(np.array([[2, 0], [1, 2]]), np.zeros((2, 2)))
    inputs = np.array([[1.0, -1.0, 3.0], [-1.0, 2.0, -0.5], [0.5, 0.5, -3.0]], dtype=np.float32)
    keys = ranker.keys(identity(3), inputs)
    assert keys.tolist() == [[0b11, 0b10], [0b00, 0b01], [0b10, 0b01]]
    assert ranker.computed_nodes.tolist() == [0, 1, 2]


def test_freehash_draws_nodes_by_the_variance_of_their_activations() -> None:
    rng = np.random.default_rng(0)
    spread = np.array([0.0, 0.1, 3.0, 0.1, 3.0, 0.0], dtype=np.float32)
    activations = rng.normal(size=(500, 6)).astype(np.float32) * spread
    drawn = [
        FreeHash.fit(identity(6), activations, scores, tables=1, bits=1, rng=np.random.default_rng(i))
        for scores in (activations, csr_matrix(activations))
        for i in range(30)
    ]
    nodes = np.concatenate([ranker.nodes.ravel() for ranker in drawn])
    assert np.isin(nodes, [2, 4]).mean() > 0.9
    assert not np.isin(nodes, [0, 5]).any(), "a node that never varies tells nothing"


def test_centring_gives_a_biased_layer_its_entropy_back() -> None:
    rng = np.random.default_rng(0)
    biased = (rng.normal(size=(2_000, 8)) + 10.0).astype(np.float32)
    entropy = {}
    for kind in (FreeHash, CentredFreeHash):
        ranker = kind.fit(identity(8), biased, biased, tables=2, bits=3, rng=np.random.default_rng(1))
        entropy[kind.name] = bucket_entropy(ranker.keys(identity(8), biased), ranker.buckets)
    assert entropy["freehash"] == 0.0
    assert entropy["centred-freehash"] > 2.9


def test_more_bits_than_varying_nodes_are_refused() -> None:
    activations = np.zeros((100, 4), dtype=np.float32)
    activations[:, 1] = np.arange(100)
    with pytest.raises(InputError, match="2 bits, but only 1 of the layer's 4 nodes"):
        FreeHash.fit(identity(4), activations, activations, tables=1, bits=2, rng=np.random.default_rng(0))


# --- One answer, two implementations -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranker", ["freehash", "centred-freehash", "clusters"])
def test_compiled_and_numpy_agree_at_every_point(ranker: str) -> None:
    model, x = digits_model(ranker), digits().test.x
    for point in model.points:
        np.testing.assert_allclose(model.forward(x, point), numpy_slo_nn.forward(model, x, point), rtol=1e-4, atol=1e-4)


@given(seed=st.integers(0, 10_000), zeros=st.sampled_from([0.0, 0.5, 0.95, 1.0]), n=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_compiled_and_numpy_agree_on_any_input(seed: int, zeros: float, n: int) -> None:
    """Mostly zero inputs take the way by columns, dense ones the way by rows."""
    rng = np.random.default_rng(seed)
    for model in (random_model(), random_model((32,), 300, 2, 4), random_model((6,), 3, 4, 2)):
        x = rng.normal(size=(n, *model.input_shape)).astype(np.float32)
        x[rng.random(x.shape) < zeros] = 0.0
        for point in model.points:
            np.testing.assert_allclose(
                model.forward(x, point), numpy_slo_nn.forward(model, x, point), rtol=1e-3, atol=1e-3
            )


def test_confidences_agree_between_compiled_and_numpy() -> None:
    model, x = digits_model(), digits().test.x[:100]
    compiled = np.stack([model.confidences(x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_allclose(compiled, model.estimates(x), rtol=1e-5, atol=1e-6)


def test_a_point_computes_the_nodes_it_says() -> None:
    model = digits_model()
    activator, layer = model.activators[0], model.mlp.layers[0]
    x, hashed = digits().test.x.reshape(-1, 64), activator.ranker.computed_nodes
    for share in SHARES:
        nodes = activator.computed(layer, x, node_count(layer.units, share))
        assert nodes.shape == (len(x), max(node_count(layer.units, share), len(hashed)))
        assert all(len(set(row)) == len(row) for row in nodes.tolist())
        assert (nodes[:, : len(hashed)] == hashed).all(), "what the hash computed is reused"


# --- Worth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranker", ["freehash", "centred-freehash", "clusters"])
def test_most_nodes_keep_most_of_the_accuracy(ranker: str) -> None:
    model, test = digits_model(ranker), digits().test
    accuracy = [float((model.forward(test.x, point).argmax(axis=1) == test.y).mean()) for point in model.points]
    assert accuracy[-1] > 0.94
    assert accuracy[-2] > accuracy[-1] - 0.08, "three quarters of the nodes"
    assert accuracy[0] < accuracy[1] < accuracy[2] < accuracy[3]
    assert 0 < model.table_bytes <= 0.10 * model.mlp.nbytes


def test_lists_per_bucket_beat_one_static_list() -> None:
    model = digits_model()
    rows = by_point(model, PointPredictions.of(model, digits().test), [1.0] * len(model.points))
    for row in rows[1:4]:
        assert row["accuracy"] > row["static_accuracy"] + 0.05, row["point"]
    assert rows[-1]["static_accuracy"] == rows[-1]["accuracy"]
    assert [row["nodes"] for row in rows] == [22, 68, 112, 168, 224]


def test_same_seed_same_tables_and_another_seed_others() -> None:
    network = mlp_of(trained())
    nodes = [
        build("m", TableSubject(network, digits()), "freehash", TableSettings((0.5,), seed=seed))
        .activators[0]
        .ranker.tensors()["nodes"]
        .tolist()
        for seed in (3, 3, 4)
    ]
    assert nodes[0] == nodes[1] != nodes[2]


# --- Choosing k ----------------------------------------------------------------------------------------------------


def test_closeness_is_minus_the_cross_entropy_and_best_for_the_full_answer() -> None:
    full = np.array([[2.0, 0.0, 0.0]])
    p = np.exp(full[0]) / np.exp(full[0]).sum()
    assert closeness(full, full)[0] == pytest.approx((p * np.log(p)).sum())
    assert closeness(full, np.array([[0.0, 2.0, 0.0]]))[0] < closeness(full, full)[0]
    assert np.isfinite(closeness(full, np.array([[2.0, -np.inf, -np.inf]]))).all()


def test_confidence_tables_hold_means_per_bucket() -> None:
    buckets = np.array([[1, 2], [1, 3], [2, 3]])
    confidences = np.array([[-1.0], [-3.0], [-5.0]])
    tables = ConfidenceTables.learn(buckets, rows=4, confidences=confidences, prior=0.0)
    np.testing.assert_allclose(tables.means[:, 0], [-3.0, -2.0, -3.0, -4.0])
    np.testing.assert_allclose(tables.estimate(buckets[:1])[:, 0], [-2.5])
    shrunk = ConfidenceTables.learn(buckets, rows=4, confidences=confidences, prior=2.0)
    np.testing.assert_allclose(shrunk.means[:, 0], [-3.0, -2.5, -3.0, -3.5])
    np.testing.assert_allclose(ConfidenceTables.learn(buckets, 4, confidences, np.inf).means, -3.0)


def test_calibration_never_promises_more_for_a_lower_threshold() -> None:
    rng = np.random.default_rng(0)
    estimates = np.sort(rng.normal(size=(300, 3)), axis=1)
    correct = rng.random((300, 4)) < (0.5 + 0.12 * np.arange(4))
    calibration = ThresholdCalibration.measure(estimates, correct)
    assert (np.diff(calibration.accuracy) >= 0).all()
    assert calibration.accuracy[-1] == pytest.approx(correct[:, -1].mean())
    for threshold, accuracy in zip(calibration.thresholds, calibration.accuracy, strict=True):
        reached = correct[np.arange(300), min_share(estimates, threshold)].mean()
        assert reached >= accuracy - 1e-12


def test_aclo_gives_the_least_k_that_is_promised_to_do() -> None:
    model = digits_model()
    promised, shares = model.calibration.promised(), len(model.shares)
    for x in digits().test.x[:40, None]:
        assert list(model.expected_accuracy(x)) == list(model.points)
        for target in (0.0, 0.5, 0.8, 0.9, 0.95, promised[-1], 0.9999):
            levels = np.flatnonzero(promised >= target)
            if not len(levels):
                assert model.cheapest(x, target)[0] == -1
                continue
            enough = np.flatnonzero(model.confidences(x) >= model.calibration.thresholds[levels[0]])
            assert model.cheapest(x, target)[0] == (enough[0] if len(enough) else shares)


def test_aclo_keeps_its_promise_on_the_data_it_was_calibrated_with() -> None:
    model, held_out = digits_model(), digits().validation
    answers = np.stack([model.forward(held_out.x, point).argmax(axis=1) for point in model.points])
    for target in (0.7, 0.85, 0.93):
        chosen = model.cheapest(held_out.x, target)
        assert (answers[chosen, np.arange(len(held_out))] == held_out.y).mean() >= target - 1e-9
        assert np.mean(chosen) < len(model.points) - 1, "not merely the full network"


def test_accuracy_above_the_full_network_cannot_be_met() -> None:
    model = digits_model()
    assert model.cheapest(digits().test.x[:1], float(model.calibration.by_point[-1]) + 1e-6)[0] == -1
    with pytest.raises(InputError, match="accuracy target is not a number"):
        model.cheapest(digits().test.x[:1], float("nan"))
