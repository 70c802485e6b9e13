"""A network and its tables laid out in a few flat arrays for the compiled calls of ``single``.

Few, because each argument costs a call about 50 ns; flat, because nothing may be allocated per query. Numba keeps the
interpreter lock during a call, so one model's workspaces are never in use twice.

Import this module only where a query is to be answered: it brings in Numba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.confidence import ConfidenceTables
from slotool.elastic.activators.convolution import ConvLayer
from slotool.elastic.activators.kernels import grid, single
from slotool.elastic.activators.kernels import layout as k
from slotool.elastic.activators.kernels.integer_dots import ROWS
from slotool.elastic.activators.mlp import MLP
from slotool.elastic.activators.quantisation import Int8Rows
from slotool.elastic.activators.rankers.clusters import Clusters
from slotool.elastic.activators.rankers.freehash import FreeHash
from slotool.elastic.activators.rankers.mongoose import Mongoose
from slotool.elastic.activators.rankers.random_order import RandomOrder
from slotool.errors import InputError

NO_MEANS = ConfidenceTables(np.zeros((1, 0), dtype=np.float32))


class Compiled:
    """``mlp`` with ``activators``, answering at the k grid ``shares`` or as ``confidence`` tells.

    ``int8``: by layer, rows to gather in place of the float32 ones at all k but 100 %. ``in_full``: whether all nodes
    are ever asked for, so that an activated output layer is worth a second copy of its weights.
    ``state``: numbers float32, ints int64, ids uint32, bytes int8, as ``layout`` describes them.
    """

    def __init__(
        self,
        mlp: MLP,
        activators: Mapping[int, Activator],
        shares: Sequence[float],
        confidence: ConfidenceTables = NO_MEANS,
        int8: Mapping[int, Int8Rows] | None = None,
        in_full: bool = True,
    ):
        for at, activator in activators.items():
            activator.check(mlp.layers[at])
        self.mlp, self.shares, self._in_full = mlp, shares, in_full
        self._first = min(activators, default=0)
        self._numbers, self._bytes = _Tape(np.float32), _Tape(np.int8)
        self._ids, self._ints = _Tape(np.uint32), _Tape(np.int64)
        header = np.zeros(k.HEADER, dtype=np.int64)
        rows = np.zeros((len(mlp.layers), k.FIELDS), dtype=np.int64)
        # What the calls find at a known place.
        self._ints.reserve(k.HEADER + rows.size)
        for at in range(len(mlp.layers)):
            self._lay_out_layer(rows, at, at in activators)
            if at in activators:
                self._lay_out_activator(rows[at], at, activators[at])
            if int8 and at in int8:
                rows[at, k.BYTES_AT] = self._bytes.add(_in_lines(int8[at].rows))
                rows[at, k.STEPS_AT] = self._numbers.add(np.column_stack([int8[at].scale, mlp.layers[at].bias]))
        header[k.LAYERS], header[k.SHARES] = len(mlp.layers), len(shares)
        header[k.QUERY_INPUTS] = mlp.layers[0].inputs
        header[k.MEANS_AT] = self._numbers.add(confidence.means)
        self._lay_out_workspace(header, rows)
        self.state = tuple(tape.joined() for tape in (self._numbers, self._ints, self._ids, self._bytes))
        self.state[1][: k.HEADER] = header
        self.state[1][k.HEADER : k.HEADER + rows.size] = rows.ravel()

    def _lay_out_workspace(self, header: np.ndarray, rows: np.ndarray) -> None:
        # Sums are made of so many rows at a time.
        width = max(max(layer.inputs, layer.units, layer.outputs) for layer in self.mlp.layers) + ROWS
        pairs = 2 * int((rows[:, k.HIGH] * rows[:, k.PADDED_WIDE]).max())
        header[k.CONVOLVED_AT] = self._numbers.add(np.zeros(pairs))
        for field in (k.INPUT_AT, k.VALUES_AT, k.ALL_AT, k.OUTPUT_AT):
            header[field] = self._numbers.add(np.zeros(width))
        header[k.BEST_AT] = self._numbers.add(np.zeros(k.MAX_ANSWERS))
        for field in (k.ACTIVE_AT, k.CHOSEN_AT):
            header[field] = self._ints.add(np.zeros(width))
        header[k.STARTS_AT] = self._ints.add(np.zeros(max(1, int(rows[:, k.TABLES].max()))))
        header[k.QUERY_AT] = self._bytes.add(np.zeros(_lines(width) * k.LINE_BYTES))
        header[k.QUERY_STEPS_AT] = self._numbers.add(np.zeros(k.SUMS + int(rows[:, [k.COARSE, k.FINE]].max()) + ROWS))
        # The last of the bytes: what follows its beginning is cleared now and then.
        header[k.STAMPS_AT] = self._bytes.add(np.zeros(width))
        header[k.BEST_NODES_AT] = self._ints.add(np.zeros(k.MAX_ANSWERS))

    def handle(self, labels: np.ndarray, scores: np.ndarray, point: int) -> np.ndarray:
        """int64 [HANDLE] for ``single.top_*``, good for as long as this object and both arrays live.

        Raises ``ValueError`` for arrays that no answer fits into, and a point that there is not.
        """
        k.require_results(labels, scores)
        if not k.BY_CONFIDENCE <= point <= len(self.shares):
            raise ValueError(f"point {point} of {len(self.shares)} shares")
        handle = np.zeros(k.HANDLE, dtype=np.int64)
        for i, array in enumerate(self.state):
            handle[2 * i : 2 * i + 2] = array.ctypes.data, array.size
        handle[k.LABELS_AT], handle[k.SCORES_AT] = labels.ctypes.data, scores.ctypes.data
        handle[k.ANSWERS], handle[k.POINT] = len(labels), point
        return handle

    def logits(self, x: Any, out: np.ndarray, point: int) -> int:
        """Fill ``out`` float32 [n, classes] for ``x`` [n, inputs], an array or CSR; see ``single.logits_dense``."""
        if isinstance(x, np.ndarray):
            return single.logits_dense(x, out, point, *self.state)
        try:
            return single.logits_sparse(x.indptr.astype(np.int64), x.indices, x.data, out, point, *self.state)
        except ValueError as error:
            raise InputError(f"a CSR matrix that is none: {error}") from error

    def estimate(self, inputs: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` with ĉ(k, x), from ``inputs`` [1, inputs] of the first activated layer, an array or CSR."""
        dense = inputs if isinstance(inputs, np.ndarray) else inputs.toarray()
        dense = self.mlp.layers[self._first].seen(dense)
        grid.estimate(np.ascontiguousarray(dense[0], dtype=np.float32), out, *self.state)

    def _lay_out_layer(self, rows: np.ndarray, at: int, activated: bool) -> None:
        """Columns for what is computed in full, as inputs may be mostly zeros; rows for what else is read."""
        layer, row, last = self.mlp.layers[at], rows[at], at == len(rows) - 1
        if isinstance(layer, ConvLayer):
            self._lay_out_convolution(row, layer, activated)
            return
        row[[k.INPUTS, k.UNITS]] = layer.inputs, layer.units
        columns = self._in_full or not (activated and last)
        row[k.COLUMNS_AT] = self._numbers.add(layer.weights.T) if columns else -1
        row[k.ROWS_AT] = self._numbers.add(layer.weights) if activated or not columns or layer.inputs <= 4096 else -1
        row[k.BIAS_AT] = self._numbers.add(layer.bias)
        row[k.BYTES_AT] = -1

    def _lay_out_convolution(self, row: np.ndarray, layer: ConvLayer, activated: bool) -> None:
        """Kernels, a padded place for its pictures, and its view's rows for a hash to read."""
        (channels, high, wide), (top, bottom, left, right) = layer.shape, layer.padding
        padded = (high + top + bottom, wide + left + right)
        row[[k.INPUTS, k.UNITS, k.COLUMNS_AT, k.BYTES_AT]] = layer.view.inputs, layer.units, -1, -1
        row[k.ROWS_AT] = self._numbers.add(layer.view.weights) if activated else -1
        row[k.BIAS_AT], row[k.KERNELS_AT] = self._numbers.add(layer.bias), self._numbers.add(layer.weights)
        row[[k.KERNEL_HIGH, k.KERNEL_WIDE]], row[[k.DOWN, k.ACROSS]] = layer.weights.shape[2:], layer.stride
        row[[k.CHANNELS, k.PICTURE_HIGH, k.PICTURE_WIDE]], row[[k.PADDED_HIGH, k.PADDED_WIDE]] = layer.shape, padded
        row[[k.TOP, k.LEFT, k.POOL, k.GRID]] = top, left, layer.pool, layer.grid
        row[[k.HIGH, k.WIDE]], row[[k.POOLED_HIGH, k.POOLED_WIDE]] = layer.convolved, layer.pooled
        row[k.MAPS_AT] = self._numbers.add(np.zeros(channels * padded[0] * padded[1]))

    def _lay_out_activator(self, row: np.ndarray, at: int, activator: Activator) -> None:
        layer, ranker, lists = self.mlp.layers[at], activator.ranker, activator.lists
        row[k.TABLES], row[k.BUCKETS] = ranker.tables, ranker.buckets
        _LAYOUTS[_base(ranker)](self, row, ranker)
        row[k.SLOTS_AT], row[k.LISTS_AT] = self._ids.add(lists.slots), self._ids.add(lists.lists)
        row[k.LENGTH], row[k.OVERALL_AT] = lists.lists.shape[1], self._ids.add(lists.overall)
        hashed = ranker.computed_nodes
        row[k.HASHED], row[k.HASHED_AT] = len(hashed), self._ids.add(hashed)
        counts = [activator.count(layer, share) for share in self.shares]
        row[k.COUNTS_AT] = self._ints.add(np.asarray(counts))

    def _lay_out_hash(self, row: np.ndarray, ranker: FreeHash) -> None:
        row[k.KIND], row[k.BITS] = k.HASH, ranker.nodes.shape[1]
        row[k.POSITIONS_AT] = self._ids.add(ranker.positions)
        row[k.THRESHOLDS_AT] = self._numbers.add(ranker.thresholds)

    def _lay_out_clusters(self, row: np.ndarray, ranker: Clusters) -> None:
        row[k.KIND] = k.CLUSTERS
        row[k.COARSE], row[k.FINE] = ranker.fine.shape[:2]
        row[k.COARSE_AT] = self._bytes.add(_in_lines(ranker.coarse))
        row[k.FINE_AT] = self._bytes.add(_in_lines(ranker.fine))
        for field, rows, scale, offset in (
            (k.COARSE_STEPS_AT, ranker.coarse, ranker.coarse_scale, ranker.coarse_offset),
            (k.FINE_STEPS_AT, ranker.fine, ranker.fine_scale, ranker.fine_offset),
        ):
            row[field] = self._numbers.add(np.stack([scale, offset, rows.sum(axis=-1, dtype=np.float32)], axis=-2))

    def _lay_out_projections(self, row: np.ndarray, ranker: Mongoose) -> None:
        row[k.KIND], row[k.BITS] = k.PROJECTED, ranker.thresholds.shape[1]
        row[k.PROJECTIONS_AT] = self._bytes.add(ranker.projections)
        row[k.THRESHOLDS_AT] = self._numbers.add(ranker.thresholds)

    def _lay_out_nothing(self, row: np.ndarray, ranker: RandomOrder) -> None:
        # A key of no bits.
        row[k.KIND] = k.HASH


def _lines(width: int) -> int:
    return -(-width // k.LINE_BYTES)


def _in_lines(rows: np.ndarray) -> np.ndarray:
    """int8 [..., inputs] with zeros up to the end of each row's last cache line."""
    width = rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, _lines(width) * k.LINE_BYTES - width)])


def _base(ranker: Any) -> type:
    return next(kind for kind in _LAYOUTS if isinstance(ranker, kind))


_LAYOUTS: dict[type, Any] = {
    FreeHash: Compiled._lay_out_hash,
    Clusters: Compiled._lay_out_clusters,
    Mongoose: Compiled._lay_out_projections,
    RandomOrder: Compiled._lay_out_nothing,
}


class _Tape:
    """Arrays put end to end, each at the beginning of a cache line."""

    def __init__(self, dtype: Any):
        self.dtype = np.dtype(dtype)
        self.pieces: list[tuple[int, np.ndarray]] = []
        self._length = 0

    def reserve(self, size: int) -> None:
        step = k.LINE_BYTES // self.dtype.itemsize
        self._length += -(-size // step) * step

    def add(self, array: np.ndarray) -> int:
        """Where ``array`` begins."""
        start = self._length
        self.pieces.append((start, array))
        self.reserve(array.size)
        return start

    def joined(self) -> np.ndarray:
        spare = k.LINE_BYTES // self.dtype.itemsize
        whole = np.zeros(self._length + spare, dtype=self.dtype)
        ahead = (-whole.ctypes.data % k.LINE_BYTES) // self.dtype.itemsize
        tape = whole[ahead : ahead + self._length]
        for start, array in self.pieces:
            tape[start : start + array.size] = array.ravel()
        self.pieces.clear()
        return tape
