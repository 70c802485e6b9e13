"""Every ranker against the conformance suite, and what is particular to one."""

from __future__ import annotations

import numpy as np

from slotool.elastic.activators.clusters import Clusters
from slotool.elastic.activators.freehash import CentredFreeHash, FreeHash
from slotool.elastic.activators.registry import RANKERS
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


def test_every_ranker_is_tested() -> None:
    assert set(RANKERS.values()) == {kind.ranker for kind in RankerConformance.__subclasses__()}
