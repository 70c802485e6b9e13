"""A latency predictor that remembers the networks it was trained on."""

import numpy as np
from scipy.spatial import KDTree

from slotool.graphs import OperatorGraph
from slotool.predictors.base import NO_EXAMPLES, Predictor

NEIGHBOURS = 3


class NearestPredictor(Predictor[OperatorGraph]):
    """The latencies of the three nearest training networks, by FLOPs, weights and number of operators.

    Distances and means are of logarithms; a neighbour counts by the inverse of its distance.
    """

    name = "nearest"

    def fit(self, train, dev=NO_EXAMPLES, *, seed=0, progress=None):
        train.require("training")
        self._features, self._log_s = features(train.items), np.log(train.latency_s)
        if progress:
            progress("networks remembered")

    def predict(self, graphs):
        if not len(graphs):
            return np.empty(0)
        neighbours = range(1, 1 + min(NEIGHBOURS, len(self._log_s)))
        distance, nearest = KDTree(self._features).query(features(graphs), neighbours)
        weight = 1 / (distance + 1e-3)
        return np.exp((weight * self._log_s[nearest]).sum(axis=1) / weight.sum(axis=1))

    def state(self):
        return {"features": self._features, "log_s": self._log_s}, {}

    @classmethod
    def from_state(cls, tensors, document):
        restored = cls()
        restored._features, restored._log_s = tensors["features"], tensors["log_s"]
        return restored


def features(graphs):
    """float64 [n, 3]: logarithms of what makes a network slow."""
    return np.log1p([[graph.flops, graph.weights, len(graph.operators)] for graph in graphs])
