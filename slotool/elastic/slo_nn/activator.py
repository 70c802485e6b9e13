"""Node Activator: a ranker and its lists of important nodes on one layer, and the forward pass by them, in NumPy.

Source: slo-aware-neural-networks, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker, require_indices
from slotool.errors import InputError


@dataclass(frozen=True)
class Activator:
    """Chooses which nodes of one layer are computed for one input."""

    ranker: Ranker
    lists: NodeLists

    def check(self, layer: DenseLayer) -> None:
        """Raise ``InputError`` where ranker and lists are not of ``layer``."""
        self.ranker.check(layer)
        self.lists.check(self.ranker.tables, self.ranker.buckets, layer.units)

    def computed(self, layer: DenseLayer, inputs: Any, count: int) -> np.ndarray:
        """Return int64 [n, count or more]: the nodes computed per input, first those that the hash needs anyway.

        ``inputs``: float32 [n, inputs of the layer]. More than ``count`` only when the hash itself needs more.
        """
        needed = self.ranker.computed_nodes
        return self.lists.ranked(self.ranker.keys(layer, inputs), max(count, len(needed)), needed)

    def buckets(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        """Return rows of the layer's lists for ``inputs`` [n, inputs], int64 [n, tables]; 0 for a thin bucket."""
        return self.lists.buckets_of(self.ranker.keys(layer, inputs))

    def count(self, layer: DenseLayer, share: float) -> int:
        """Return the nodes computed at the share k."""
        return max(node_count(layer.units, share), len(self.ranker.computed_nodes))

    @property
    def nbytes(self) -> int:
        return self.ranker.nbytes + self.lists.nbytes


Activators = Mapping[int, Activator]

# Outputs of a layer held at a time on the way to a later one.
CHUNK_VALUES = 32 << 20


def node_count(units: int, share: float) -> int:
    """Return the number of nodes at a share k of ``units``: rounded, at least 1."""
    return max(1, round(units * share))


def layer_input(mlp: MLP, activators: Activators, x: Any, share: float, layer: int) -> Any:
    """Return the input of ``layer`` when activated layers before it compute the share k, float32 [n, inputs].

    ``x``: float32 [n, inputs], an array or CSR; a dropped node's output is 0.
    """
    if not layer:
        return x
    return np.concatenate([_layer_input(mlp, activators, part, share, layer) for part in _parts(mlp, x)])


def logits(mlp: MLP, activators: Activators, x: Any, share: float) -> np.ndarray:
    """Return the SLO-aware forward pass (slo-aware-neural-networks, §3.3): float32 [n, classes]; dropped is −inf."""
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


# A bucket with fewer training examples ranks nodes by chance; it backs off to the layer's overall ranking.
MIN_IN_BUCKET = 8
# Share of an average example in every bucket, which ranks nodes without a score.
PRIOR_EXAMPLES = 0.01


class NodeScores:
    """Algorithm 1, lines 4–10: sums of full activations per table and bucket, fed in pieces.

    ``sums``: per table [buckets, units], an array, or CSR where the scores were; ``counts``: int64 [tables, buckets].
    ``elsewhere``: float [units], or 0: what nodes have scored in no bucket in particular.
    """

    def __init__(self, tables: int, buckets: int, units: int):
        self.units = units
        self.counts = np.zeros((tables, buckets), dtype=np.int64)
        self.sums: list[Any] = [None] * tables
        self.elsewhere: Any = 0.0

    def add(self, keys: np.ndarray, scores: Any) -> None:
        """Add activations ``scores`` float [n, units], an array or CSR, by bucket ``keys`` int [n, tables]."""
        buckets = self.counts.shape[1]
        for table, column in enumerate(keys.T):
            more = sum_by_key(column, scores, buckets)
            self.sums[table] = more if self.sums[table] is None else self.sums[table] + more
            self.counts[table] += np.bincount(column, minlength=buckets)

    @property
    def overall(self) -> np.ndarray:
        """Sums over all inputs, float64 [units]."""
        return np.asarray(self.sums[0].sum(axis=0)).ravel() + self.elsewhere


@dataclass(frozen=True)
class NodeLists:
    """The ranked lists, packed; a query that needs more nodes than a list holds goes on in the overall ranking.

    ``slots``: uint16 [tables, buckets], the row of each bucket's list; row 0 serves all buckets that are too thin.
    ``lists``: uint8/16/32 [rows, length], node numbers, most important first; row 0 is the overall ranking's head.
    ``overall``: the same type, [units], every node once.
    """

    slots: np.ndarray
    lists: np.ndarray
    overall: np.ndarray

    @classmethod
    def rank(cls, scores: NodeScores, length: int) -> NodeLists:
        """Algorithm 1, lines 11–15, cut after ``length`` nodes; equal scores keep the overall order."""
        packed = np.min_scalar_type(scores.units - 1)
        totals = scores.overall
        overall = np.argsort(-totals, kind="stable")
        prior = totals * (PRIOR_EXAMPLES / max(1, scores.counts[0].sum()))
        thick = np.argwhere(scores.counts >= MIN_IN_BUCKET)
        slots = np.zeros(scores.counts.shape, dtype=np.uint16)
        slots[tuple(thick.T)] = np.arange(1, len(thick) + 1)
        lists = np.empty((len(thick) + 1, min(length, scores.units)), dtype=packed)
        lists[0] = overall[: lists.shape[1]]
        for row, (table, bucket) in enumerate(thick, start=1):
            lists[row] = _leading(_row(scores.sums[table], bucket) + prior, lists.shape[1])
        return cls(slots, lists, overall.astype(packed))

    def check(self, tables: int, buckets: int, units: int) -> None:
        """Raise ``InputError`` where these are not the lists of so many: compiled code goes where they point."""
        if self.slots.shape != (tables, buckets):
            raise InputError(f"slots {self.slots.shape} for {tables} tables of {buckets} buckets")
        if self.lists.ndim != 2 or not self.lists.size or self.lists.shape[1] > units:
            raise InputError(f"lists {self.lists.shape} of a layer of {units} nodes")
        require_indices("slots", self.slots, len(self.lists))
        require_indices("ranked lists", self.lists, units)
        require_indices("overall ranking", self.overall, units)
        if self.overall.shape != (units,) or np.bincount(self.overall, minlength=units).max() > 1:
            raise InputError(f"an overall ranking that does not name each of {units} nodes once")
        ordered = np.sort(self.lists, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            raise InputError("a ranked list that names a node twice")

    def cut(self, length: int) -> NodeLists:
        """Return the same with shorter lists."""
        return NodeLists(self.slots, np.ascontiguousarray(self.lists[:, :length]), self.overall)

    @property
    def rows(self) -> int:
        return len(self.lists)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())

    def buckets_of(self, keys: np.ndarray) -> np.ndarray:
        """Return int64 [n, tables]: rows of ``lists`` for keys [n, tables]."""
        return self.slots[np.arange(len(self.slots)), keys].astype(np.int64)

    def ranked(self, keys: np.ndarray, count: int, before: np.ndarray) -> np.ndarray:
        """Return int64 [n, count]: the nodes of each input in the order in which they are computed, each once.

        First ``before``, then the tables' lists interleaved (first of each table, second of each, …), then the
        overall ranking. ``count`` at least ``len(before)``, at most the layer's units.
        """
        rows = self.buckets_of(keys)
        heads = self.lists[:, :count]
        interleaved = heads[rows].transpose(0, 2, 1).reshape(len(rows), len(self.slots) * heads.shape[1])
        first, rest = (np.broadcast_to(part, (len(rows), len(part))) for part in (before, self.overall[:count]))
        return _first_distinct(np.concatenate([first, interleaved, rest], axis=1).astype(np.int64), count)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"slots": self.slots, "lists": self.lists, "overall": self.overall}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> NodeLists:
        return cls(tensors["slots"], tensors["lists"], tensors["overall"])


def sum_by_key(keys: np.ndarray, values: Any, buckets: int) -> Any:
    """Return float64 [buckets, width]: rows of ``values`` [n, width] added up per key [n]; CSR when ``values`` are."""
    n = len(keys)
    member = sparse.csr_matrix((np.ones(n), (keys, np.arange(n))), shape=(buckets, n))
    return member @ values.astype(np.float64)


def _row(sums: Any, bucket: int) -> np.ndarray:
    return sums[bucket] if isinstance(sums, np.ndarray) else sums[bucket].toarray().ravel()


def _leading(scores: np.ndarray, length: int) -> np.ndarray:
    """Return the ``length`` nodes of the largest scores, largest first."""
    if 4 * length < len(scores):
        least = np.partition(scores, len(scores) - length)[len(scores) - length]
        above = np.flatnonzero(scores > least)
        nodes = np.sort(np.concatenate([above, np.flatnonzero(scores == least)[: length - len(above)]]))
    else:
        nodes = np.arange(len(scores))
    return nodes[np.argsort(-scores[nodes], kind="stable")][:length]


def _first_distinct(nodes: np.ndarray, count: int) -> np.ndarray:
    """Return int64 [n, count]: the first ``count`` different numbers of each row, in their order."""
    order = np.argsort(nodes, axis=1, kind="stable")
    ordered = np.take_along_axis(nodes, order, axis=1)
    new = np.ones(nodes.shape, dtype=bool)
    np.put_along_axis(new, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
    first = new & (np.cumsum(new, axis=1) <= count)
    return nodes[first].reshape(len(nodes), count)
