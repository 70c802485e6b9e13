"""Node Importance tables (slo-aware-neural-networks, Algorithm 1): per bucket, the layer's nodes ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

# A bucket with fewer training examples ranks nodes by chance; it backs off to the layer's overall ranking.
LEAST_IN_BUCKET = 8


class NodeScores:
    """Algorithm 1, lines 4–10: sums of full activations per table and bucket, fed in pieces.

    ``sums``: float64 [tables, buckets, units]; ``counts``: int64 [tables, buckets].
    """

    def __init__(self, tables: int, buckets: int, units: int):
        self.sums = np.zeros((tables, buckets, units))
        self.counts = np.zeros((tables, buckets), dtype=np.int64)

    def add(self, keys: np.ndarray, scores: np.ndarray) -> None:
        """``keys``: int [n, tables]; ``scores``: float [n, units], the full activations of those inputs."""
        for table, column in enumerate(keys.T):
            self.sums[table] += sum_by_key(column, scores, self.counts.shape[1])
            self.counts[table] += np.bincount(column, minlength=self.counts.shape[1])

    @property
    def overall(self) -> np.ndarray:
        """float64 [units]: the sums over all inputs."""
        return self.sums[0].sum(axis=0)


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
        """Algorithm 1, lines 11–15, cut after ``length`` nodes; equal scores keep the order of node numbers."""
        units = scores.sums.shape[2]
        packed = np.min_scalar_type(units - 1)
        overall = _descending(scores.overall)
        thick = np.argwhere(scores.counts >= LEAST_IN_BUCKET)
        slots = np.zeros(scores.counts.shape, dtype=np.uint16)
        slots[tuple(thick.T)] = np.arange(1, len(thick) + 1)
        ranked = _descending(scores.sums[tuple(thick.T)])
        lists = np.concatenate([overall[None], ranked])[:, :length]
        return cls(slots, np.ascontiguousarray(lists.astype(packed)), overall.astype(packed))

    def cut(self, length: int) -> NodeLists:
        """The same with shorter lists."""
        return NodeLists(self.slots, np.ascontiguousarray(self.lists[:, :length]), self.overall)

    @property
    def rows(self) -> int:
        return len(self.lists)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())

    def buckets_of(self, keys: np.ndarray) -> np.ndarray:
        """int64 [n, tables]: rows of ``lists`` for keys [n, tables]."""
        return self.slots[np.arange(len(self.slots)), keys].astype(np.int64)

    def order(self, keys: np.ndarray) -> np.ndarray:
        """int32 [n, units]: smaller means computed earlier, all different within a row.

        The tables' lists are interleaved (first of each table, second of each, …), a node counts where it comes
        first, and nodes on no list follow in overall order.
        """
        tables = keys.shape[1]
        rows = self.buckets_of(keys)
        first = self._places[rows[:, 0]] * tables
        for table in range(1, tables):
            np.minimum(first, self._places[rows[:, table]] * tables + table, out=first)
        return np.minimum(first, self._overall_places + self.lists.shape[1] * tables)

    def tensors(self) -> dict[str, np.ndarray]:
        return {"slots": self.slots, "lists": self.lists, "overall": self.overall}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> NodeLists:
        return cls(tensors["slots"], tensors["lists"], tensors["overall"])

    @cached_property
    def _places(self) -> np.ndarray:
        """int32 [rows, units]: where a node stands on each list; behind the overall ranking when it is not on it."""
        rows, length = self.lists.shape
        places = np.full((rows, len(self.overall)), length + len(self.overall), dtype=np.int32)
        np.put_along_axis(places, self.lists.astype(np.int64), np.arange(length, dtype=np.int32)[None], axis=1)
        return places

    @cached_property
    def _overall_places(self) -> np.ndarray:
        return np.argsort(self.overall).astype(np.int32)


def sum_by_key(keys: np.ndarray, values: np.ndarray, buckets: int) -> np.ndarray:
    """float64 [buckets, width]: rows of ``values`` [n, width] added up per key [n]."""
    n = len(keys)
    member = sparse.csr_matrix((np.ones(n), (keys, np.arange(n))), shape=(buckets, n))
    return member @ values.astype(np.float64)


def _descending(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=-1, kind="stable")
