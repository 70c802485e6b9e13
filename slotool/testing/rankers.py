"""The conformance suite of rankers: what everything that sorts a layer's inputs into buckets keeps to.

A new ranker needs one line in a test file::

    class TestMine(RankerConformance): ranker = Mine

Plain asserts, and no pytest import here.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.activator import NodeLists, NodeScores
from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker, bucket_entropy
from slotool.errors import InputError

UNITS, INPUTS, GROUPS, BITS = 64, 24, 8, 4


class RankerConformance:
    """Tests of ``ranker``, fitted to inputs of eight groups, each of which wakes nodes of its own."""

    ranker: type[Ranker]

    def layer(self) -> DenseLayer:
        rng = np.random.default_rng(0)
        return DenseLayer("layer", rng.normal(size=(UNITS, INPUTS)).astype(np.float32), np.zeros(UNITS, np.float32))

    def inputs(self, n: int, seed: int = 1) -> np.ndarray:
        """Return float32 [n, INPUTS]: around eight centres, as ReLU leaves them."""
        centres = np.random.default_rng(7).normal(size=(GROUPS, INPUTS)) * 2
        rng = np.random.default_rng(seed)
        values = centres[rng.integers(GROUPS, size=n)] + rng.normal(size=(n, INPUTS)) * 0.2
        return np.maximum(values, 0).astype(np.float32)

    def fitted(self, seed: int = 0) -> Ranker:
        layer, inputs = self.layer(), self.inputs(1_000)
        activations = np.maximum(layer.pre_activations(inputs), 0)
        return self.ranker.fit(layer, inputs, activations, tables=1, bits=BITS, rng=np.random.default_rng(seed))

    def lists(self, ranker: Ranker, seed: int = 0) -> NodeLists:
        """Return the lists that ``ranker`` makes of a thousand inputs."""
        layer, inputs = self.layer(), self.inputs(1_000)
        scores, keys = NodeScores(ranker.tables, ranker.buckets, UNITS), ranker.keys(layer, inputs)
        activations = np.maximum(layer.pre_activations(inputs), 0)
        scores.add(keys, ranker.considered(layer, keys, activations, np.random.default_rng(seed)))
        return NodeLists.rank(scores, UNITS)

    def test_sparse_and_dense_activations_give_the_same_lists(self) -> None:
        ranker, layer, inputs = self.fitted(), self.layer(), self.inputs(200)
        keys, activations = ranker.keys(layer, inputs), np.maximum(layer.pre_activations(inputs), 0)
        for values in (activations, csr_matrix(activations)):
            considered = ranker.considered(layer, keys, values, np.random.default_rng(0))
            assert considered.shape == values.shape
            part = considered if isinstance(considered, np.ndarray) else considered.toarray()
            assert not ranker.informed or (np.isclose(part, activations) | (part == 0)).all()

    def test_keys_are_buckets(self) -> None:
        ranker = self.fitted()
        for n in (0, 1, 300):
            keys = ranker.keys(self.layer(), self.inputs(n))
            assert keys.shape == (n, ranker.tables)
            assert n == 0 or (keys.min() >= 0 and keys.max() < ranker.buckets)

    def test_a_key_hangs_on_its_own_input_alone(self) -> None:
        ranker, inputs = self.fitted(), self.inputs(50)
        together = ranker.keys(self.layer(), inputs)
        alone = np.concatenate([ranker.keys(self.layer(), inputs[i : i + 1]) for i in range(len(inputs))])
        np.testing.assert_array_equal(together, alone)

    def test_sparse_inputs_give_the_same_lists(self) -> None:
        ranker, inputs = self.fitted(), self.inputs(100)
        np.testing.assert_array_equal(ranker.keys(self.layer(), csr_matrix(inputs)), ranker.keys(self.layer(), inputs))

    def test_it_tells_groups_of_inputs_apart(self) -> None:
        ranker = self.fitted()
        entropy = bucket_entropy(ranker.keys(self.layer(), self.inputs(1_000, 2)), ranker.buckets)
        assert entropy > 1.0 if ranker.informed else entropy == 0.0

    def test_its_lists_name_more_of_the_nodes_awake_than_one_list_for_all(self) -> None:
        ranker, layer = self.fitted(), self.layer()
        lists, unseen = self.lists(ranker), self.inputs(300, 2)
        values, keys = np.maximum(layer.pre_activations(unseen), 0), ranker.keys(layer, unseen)
        nothing = np.empty(0, dtype=np.int64)
        popular = np.tile(np.argsort(-values.sum(axis=0))[: UNITS // 4], (len(values), 1))
        individual_sum, popular_sum = (
            np.take_along_axis(values, chosen, axis=1).sum()
            for chosen in (lists.ranked(keys, UNITS // 4, nothing), popular)
        )
        assert individual_sum > 1.05 * popular_sum if ranker.informed else individual_sum < popular_sum

    def test_same_generator_same_ranker(self) -> None:
        first, again = self.fitted(3).tensors(), self.fitted(3).tensors()
        for name, array in first.items():
            np.testing.assert_array_equal(array, again[name])

    def test_it_is_all_in_its_tensors(self) -> None:
        ranker, inputs = self.fitted(), self.inputs(200)
        again = self.ranker.from_tensors(ranker.tensors())
        np.testing.assert_array_equal(again.keys(self.layer(), inputs), ranker.keys(self.layer(), inputs))
        np.testing.assert_array_equal(again.computed_nodes, ranker.computed_nodes)
        assert bool(ranker.nbytes) == ranker.informed
        assert ranker.nbytes <= 1.2 * self.ranker.bytes_needed(self.layer(), ranker.tables, BITS) + 64

    def test_computed_nodes_are_nodes_of_the_layer_each_once(self) -> None:
        nodes = self.fitted().computed_nodes
        assert nodes.tolist() == sorted(set(nodes.tolist()))
        assert all(0 <= node < UNITS for node in nodes)

    def test_more_lists_than_can_be_numbered_are_refused(self) -> None:
        inputs = self.inputs(100)
        if not self.ranker.informed:
            return  # one list, whatever is asked for
        error_message = ""
        try:
            self.ranker.fit(self.layer(), inputs, inputs, tables=1, bits=17, rng=np.random.default_rng(0))
        except InputError as error:
            error_message = str(error)
        assert "65,535 lists" in error_message
