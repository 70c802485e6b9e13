"""A Node Activator: a ranker and its ranked lists on one layer; and the forward pass that obeys them, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slotool.elastic.activators.freehash import FreeHash
from slotool.elastic.activators.importance import NodeLists
from slotool.elastic.activators.mlp import MLP


@dataclass(frozen=True)
class Activator:
    """Chooses which nodes of one layer are computed for one input."""

    ranker: FreeHash
    lists: NodeLists

    def computed(self, pre_activations: np.ndarray, count: int) -> np.ndarray:
        """bool [n, units]: the ``count`` nodes computed per input, among them those that the hash needs anyway.

        ``pre_activations``: float32 [n, units]. More than ``count`` only when the hash itself needs more.
        """
        order = self.lists.order(self.ranker.keys(pre_activations))
        order[:, self.ranker.computed_nodes] = -1
        count = max(count, len(self.ranker.computed_nodes))
        return order <= np.partition(order, count - 1, axis=1)[:, count - 1 : count]

    def buckets(self, pre_activations: np.ndarray) -> np.ndarray:
        """int64 [n, tables]: rows of the layer's lists, from float32 [n, units]; row 0 where a bucket is thin."""
        return self.lists.buckets_of(self.ranker.keys(pre_activations))

    @property
    def nbytes(self) -> int:
        return self.ranker.nbytes + self.lists.nbytes


Activators = Mapping[int, Activator]


def node_count(units: int, share: float) -> int:
    """How many of ``units`` nodes a share k is: rounded, at least 1."""
    return max(1, round(units * share))


def layer_input(mlp: MLP, activators: Activators, x: np.ndarray, share: float, layer: int) -> np.ndarray:
    """What layer ``layer`` receives when every activated layer before it computes the share k of its nodes.

    float32 [n, inputs of the layer] from ``x``: float32 [n, inputs]; a dropped node's output is 0.
    """
    for at in range(layer):
        x = np.maximum(_thinned(mlp, activators, x, share, at), 0.0)
    return x


def logits(mlp: MLP, activators: Activators, x: np.ndarray, share: float) -> np.ndarray:
    """The SLO-aware forward pass (slo-aware-neural-networks, §3.3): float32 [n, classes]; a dropped class is −inf."""
    last = len(mlp.layers) - 1
    return _thinned(mlp, activators, layer_input(mlp, activators, x, share, last), share, last)


def _thinned(mlp: MLP, activators: Activators, x: np.ndarray, share: float, layer: int) -> np.ndarray:
    values = mlp.layers[layer].pre_activations(x)
    if share >= 1.0 or layer not in activators:
        return values
    kept = activators[layer].computed(values, node_count(mlp.layers[layer].units, share))
    return np.where(kept, values, np.float32(-np.inf))
