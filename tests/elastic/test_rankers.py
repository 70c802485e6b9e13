"""Every ranker against the conformance suite, and what is particular to one."""

from __future__ import annotations

import numpy as np

from slotool.elastic.slo_nn.rankers.clusters import Clusters
from slotool.elastic.slo_nn.rankers.freehash import CentredFreeHash, FreeHash
from slotool.elastic.slo_nn.rankers.mongoose import DRAWN_SHARE, Mongoose
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder
from slotool.elastic.slo_nn.rankers.registry import RANKERS
from slotool.testing.rankers import RankerConformance


class TestFreeHash(RankerConformance):
    ranker = FreeHash


class TestCentredFreeHash(RankerConformance):
    ranker = CentredFreeHash


class TestClusters(RankerConformance):
    ranker = Clusters

    def test_every_input_of_a_group_far_from_the_others_gets_the_same_coarse_cluster(self) -> None:
        ranker, inputs = self.fitted(), self.inputs(400)
        assert isinstance(ranker, Clusters)
        coarse = ranker.keys(self.layer(), inputs)[:, 0] // ranker.fine.shape[1]
        nearest = ((inputs[:, None] - ranker.coarse * ranker.coarse_scale[:, None]) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(coarse, nearest)

    def test_a_place_without_a_centroid_is_never_the_nearest(self) -> None:
        few = self.inputs(100)
        ranker = Clusters.fit(self.layer(), few, few, tables=1, bits=8, rng=np.random.default_rng(0))
        assert (ranker.sizes < ranker.fine.shape[1]).all()
        keys = ranker.keys(self.layer(), self.inputs(500, 5))[:, 0]
        assert (keys % ranker.fine.shape[1] < ranker.sizes[keys // ranker.fine.shape[1]]).all()


class TestRandomOrder(RankerConformance):
    ranker = RandomOrder

    def test_another_seed_another_order_of_all_nodes(self) -> None:
        orders = [self.lists(self.fitted(), seed).overall.tolist() for seed in (0, 0, 1)]
        assert orders[0] == orders[1] != orders[2]
        assert sorted(orders[0]) == list(range(len(orders[0])))


class TestMongoose(RankerConformance):
    ranker = Mongoose

    def test_lists_are_learnt_from_a_part_of_the_activations(self) -> None:
        ranker, layer, inputs = self.fitted(), self.layer(), self.inputs(1_000)
        assert isinstance(ranker, Mongoose)
        keys, everything = ranker.keys(layer, inputs), np.ones((1_000, layer.units), dtype=np.float32)
        seen = ranker.considered(layer, keys, everything, np.random.default_rng(0)) > 0
        shared = (keys[:, None] == ranker.node_keys(layer)).any(axis=2)
        assert seen[shared].all(), "nodes whose weights share a bucket with the input are computed"
        assert 0.5 * DRAWN_SHARE < seen[~shared].mean() < 2 * DRAWN_SHARE

    def test_learning_brings_inputs_and_the_nodes_they_wake_together(self) -> None:
        """The nodes that share a bucket with an input answer it more than the others do."""
        ranker, layer, inputs = self.fitted(), self.layer(), self.inputs(500, 4)
        assert isinstance(ranker, Mongoose)
        shared = (ranker.keys(layer, inputs)[:, None] == ranker.node_keys(layer)).any(axis=2)
        values = layer.pre_activations(inputs)
        assert values[shared].mean() > values[~shared].mean() + 0.5 * values.std()


def test_every_ranker_is_tested() -> None:
    assert set(RANKERS.values()) == {kind.ranker for kind in RankerConformance.__subclasses__()}
