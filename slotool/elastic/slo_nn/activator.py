"""A Node Activator: a ranker and its ranked lists on one layer; and the forward pass that obeys them, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.importance import NodeLists
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker


@dataclass(frozen=True)
class Activator:
    """Chooses which nodes of one layer are computed for one input."""

    ranker: Ranker
    lists: NodeLists

    def check(self, layer: DenseLayer) -> None:
        """Raises ``InputError`` where ranker and lists are not of ``layer``."""
        self.ranker.check(layer)
        self.lists.check(self.ranker.tables, self.ranker.buckets, layer.units)

    def computed(self, layer: DenseLayer, inputs: Any, count: int) -> np.ndarray:
        """int64 [n, count or more]: the nodes computed per input, first those that the hash needs anyway.

        ``inputs``: float32 [n, inputs of the layer]. More than ``count`` only when the hash itself needs more.
        """
        needed = self.ranker.computed_nodes
        return self.lists.ranked(self.ranker.keys(layer, inputs), max(count, len(needed)), needed)

    def buckets(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        """int64 [n, tables]: rows of the layer's lists, for ``inputs`` [n, inputs]; row 0 where a bucket is thin."""
        return self.lists.buckets_of(self.ranker.keys(layer, inputs))

    def count(self, layer: DenseLayer, share: float) -> int:
        """Nodes computed at the share k."""
        return max(node_count(layer.units, share), len(self.ranker.computed_nodes))

    @property
    def nbytes(self) -> int:
        return self.ranker.nbytes + self.lists.nbytes


Activators = Mapping[int, Activator]

# Outputs of a layer held at a time on the way to a later one.
CHUNK_VALUES = 32 << 20


def node_count(units: int, share: float) -> int:
    """How many of ``units`` nodes a share k is: rounded, at least 1."""
    return max(1, round(units * share))


def layer_input(mlp: MLP, activators: Activators, x: Any, share: float, layer: int) -> Any:
    """What layer ``layer`` receives when every activated layer before it computes the share k of its nodes.

    float32 [n, inputs of the layer] from ``x``: float32 [n, inputs], an array or CSR; a dropped node's output is 0.
    """
    if not layer:
        return x
    return np.concatenate([_layer_input(mlp, activators, part, share, layer) for part in _parts(mlp, x)])


def logits(mlp: MLP, activators: Activators, x: Any, share: float) -> np.ndarray:
    """The SLO-aware forward pass (slo-aware-neural-networks, §3.3): float32 [n, classes]; a dropped class is −inf."""
    last = len(mlp.layers) - 1
    return _thinned(mlp, activators, layer_input(mlp, activators, x, share, last), share, last)


def _parts(mlp: MLP, x: Any) -> list[Any]:
    size = max(1, CHUNK_VALUES // mlp.widest)
    return [x] if x.shape[0] <= size else [x[at : at + size] for at in range(0, x.shape[0], size)]


def _layer_input(mlp: MLP, activators: Activators, x: Any, share: float, layer: int) -> Any:
    for at in range(layer):
        x = mlp.layers[at].activated(_thinned(mlp, activators, x, share, at))
    return x


def _thinned(mlp: MLP, activators: Activators, x: Any, share: float, layer: int) -> np.ndarray:
    values = mlp.layers[layer].pre_activations(x)
    if share >= 1.0 or layer not in activators:
        return values
    nodes = activators[layer].computed(mlp.layers[layer], x, node_count(mlp.layers[layer].units, share))
    dropped = np.ones(values.shape[:2], dtype=bool)
    np.put_along_axis(dropped, nodes, False, axis=1)
    values[dropped] = -np.inf
    return values
