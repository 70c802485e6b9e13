"""A network and its tables laid out in a few flat arrays for the compiled calls of ``single``.

Few, because each argument costs about 50 ns a call; flat, because nothing is allocated per query. Numba keeps the
interpreter lock during a call, so one model's workspaces are never in use twice.

Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.activator import Activator
from slotool.elastic.slo_nn.confidence import ConfidenceTables
from slotool.elastic.slo_nn.kernels import layout as k
from slotool.elastic.slo_nn.kernels import single
from slotool.elastic.slo_nn.kernels.int8 import ROWS
from slotool.elastic.slo_nn.mlp import MLP, Int8Weights
from slotool.elastic.slo_nn.rankers.clusters import Clusters
from slotool.elastic.slo_nn.rankers.freehash import FreeHash
from slotool.elastic.slo_nn.rankers.mongoose import Mongoose
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder, Ranker
from slotool.errors import InputError

NO_MEANS = ConfidenceTables(np.zeros((1, 0), dtype=np.float32))


class Compiled:
    """``mlp`` with ``activators``, for queries at the k grid ``shares``, or with k chosen by ``confidence``.

    ``int8``: by layer, rows to gather in place of the float32 ones at all k but 100 %. ``in_full``: whether k = 100 %
    is used at all; if not, an activated output layer needs no second copy of its weights.
    ``state``: numbers float32, ints int64, ids uint32, bytes int8, as ``layout`` describes them.
    """

    def __init__(
        self,
        mlp: MLP,
        activators: Mapping[int, Activator],
        shares: Sequence[float],
        confidence: ConfidenceTables = NO_MEANS,
        int8: Mapping[int, Int8Weights] | None = None,
        in_full: bool = True,
    ):
        for at, activator in activators.items():
            activator.check(mlp.layers[at])
        self.mlp, self.shares, self._in_full = mlp, shares, in_full
        self._first = min(activators, default=0)
        self._numbers, self._bytes = _Tape(np.float32), _Tape(np.int8)
        self._ids, self._ints = _Tape(np.uint32), _Tape(np.int64)
        header, rows = np.zeros((), dtype=k.HEADER), np.zeros(len(mlp.layers), dtype=k.LAYER)
        # Entries at known places for calls.
        self._ints.reserve(k.HEADER_SIZE + k.LAYER_SIZE * len(rows))
        for at in range(len(mlp.layers)):
            self._lay_out_layer(rows, at, at in activators)
            if at in activators:
                self._lay_out_activator(rows[at], at, activators[at])
            if int8 and at in int8:
                self._lay_out_int8(rows[at], int8[at], mlp.layers[at].bias, behind_relu=at > 0)
        header["layers"], header["shares"] = len(mlp.layers), len(shares)
        header["means_at"] = self._numbers.add(confidence.means)
        self._lay_out_workspace(header, rows)
        self.state = tuple(tape.joined() for tape in (self._numbers, self._ints, self._ids, self._bytes))
        self.state[1][: k.HEADER_SIZE].view(k.HEADER)[0] = header
        self.state[1][k.HEADER_SIZE :][: k.LAYER_SIZE * len(rows)].view(k.LAYER)[:] = rows

    def _lay_out_workspace(self, header: np.ndarray, rows: np.ndarray) -> None:
        # Sums are made of so many rows at a time.
        width = max(max(layer.inputs, layer.units) for layer in self.mlp.layers) + ROWS
        for field in ("input_at", "values_at", "all_at", "output_at"):
            header[field] = self._numbers.add(np.zeros(width))
        header["best_at"] = self._numbers.add(np.zeros(k.MAX_ANSWERS))
        for field in ("active_at", "chosen_at"):
            header[field] = self._ints.add(np.zeros(width))
        header["starts_at"] = self._ints.add(np.zeros(max(1, int(rows["tables"].max()))))
        header["query_at"] = self._bytes.add(np.zeros(_lines(width) * k.LINE_BYTES))
        centroids = max(int(rows["coarse"].max()), int(rows["fine"].max()))
        header["query_scale_at"] = self._numbers.add(np.zeros(k.SUMS + centroids + ROWS))
        # The last of the bytes: what follows its beginning is cleared now and then.
        header["stamps_at"] = self._bytes.add(np.zeros(width))
        header["best_nodes_at"] = self._ints.add(np.zeros(k.MAX_ANSWERS))

    def handle(self, labels: np.ndarray, scores: np.ndarray, point: int) -> np.ndarray:
        """Return a ``HANDLE``, int64 [HANDLE_SIZE], for ``single.top_*``, valid while this object and both arrays live.

        Raises ``ValueError`` for arrays that cannot hold an answer, and an unknown point.
        """
        k.require_results(labels, scores)
        if not k.BY_CONFIDENCE <= point <= len(self.shares):
            raise ValueError(f"point {point} of {len(self.shares)} shares")
        handle = np.zeros(1, dtype=k.HANDLE)
        for name, array in zip(("numbers", "ints", "ids", "bytes"), self.state, strict=True):
            handle[f"{name}_at"], handle[f"{name}_length"] = array.ctypes.data, array.size
        handle["labels_at"], handle["scores_at"] = labels.ctypes.data, scores.ctypes.data
        handle["answers"], handle["point"] = len(labels), point
        return handle.view(np.int64)

    def columns(self, at: int) -> np.ndarray:
        """Return weights of layer ``at``, dense and computed in full, by columns: a view, float32 [inputs, units]."""
        row = self.state[1][k.HEADER_SIZE + at * k.LAYER_SIZE :][: k.LAYER_SIZE].view(k.LAYER)[0]
        start, shape = int(row["columns_at"]), (int(row["inputs"]), int(row["units"]))
        return self.state[0][start : start + shape[0] * shape[1]].reshape(shape)

    def logits(self, x: Any, out: np.ndarray, point: int) -> int:
        """Fill ``out`` float32 [n, classes] for ``x`` [n, inputs], an array or CSR; see ``single.logits``."""
        try:
            return single.logits(*single.batch(x), out, point, *self.state)
        except ValueError as error:
            if isinstance(x, np.ndarray):
                raise
            raise InputError(f"no valid CSR matrix: {error}") from error

    def estimate(self, inputs: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` with ĉ(k, x), from ``inputs`` [1, inputs] of the first activated layer, an array or CSR."""
        dense = inputs if isinstance(inputs, np.ndarray) else inputs.toarray()
        single.estimate(np.ascontiguousarray(dense[0], dtype=np.float32), out, self._first, *self.state)

    def _lay_out_layer(self, rows: np.ndarray, at: int, activated: bool) -> None:
        """Lay out columns for layers computed in full, as inputs may be mostly zeros, and rows for all others."""
        layer, row, last = self.mlp.layers[at], rows[at], at == len(rows) - 1
        row["inputs"], row["units"] = layer.inputs, layer.units
        columns = self._in_full or not (activated and last)
        row["columns_at"] = self._numbers.add(layer.weights.T) if columns else -1
        row["rows_at"] = self._numbers.add(layer.weights) if activated or not columns or layer.inputs <= 4096 else -1
        row["bias_at"] = self._numbers.add(layer.bias)
        row["int8_at"] = row["int8_sums_at"] = -1

    def _lay_out_int8(self, row: np.void, weights: Int8Weights, bias: np.ndarray, behind_relu: bool) -> None:
        """Lay out rows in whole lines, scale and bias side by side, and row sums only if an input may be negative."""
        row["int8_at"] = self._bytes.add(_in_lines(weights.rows))
        row["int8_scales_at"] = self._numbers.add(np.column_stack([weights.scale, bias]))
        row["int8_sums_at"] = -1 if behind_relu else self._numbers.add(weights.scale * weights.sums)

    def _lay_out_activator(self, row: np.void, at: int, activator: Activator) -> None:
        layer, ranker, lists = self.mlp.layers[at], activator.ranker, activator.lists
        row["tables"], row["buckets"] = ranker.tables, ranker.buckets
        self._lay_out_ranker(row, ranker)
        row["slots_at"], row["lists_at"] = self._ids.add(lists.slots), self._ids.add(lists.lists)
        row["length"], row["overall_at"] = lists.lists.shape[1], self._ids.add(lists.overall)
        hashed = ranker.computed_nodes
        row["hashed"], row["hashed_at"] = len(hashed), self._ids.add(hashed)
        counts = [activator.count(layer, share) for share in self.shares]
        row["counts_at"] = self._ints.add(np.asarray(counts))

    def _lay_out_ranker(self, row: np.void, ranker: Ranker) -> None:
        if isinstance(ranker, Clusters):
            self._lay_out_clusters(row, ranker)
        elif isinstance(ranker, FreeHash):
            row["kind"], row["bits"] = k.HASH, ranker.nodes.shape[1]
            row["positions_at"] = self._ids.add(ranker.positions)
            row["thresholds_at"] = self._numbers.add(ranker.thresholds)
        elif isinstance(ranker, Mongoose):
            row["kind"], row["bits"] = k.PROJECTED, ranker.thresholds.shape[1]
            row["projections_at"] = self._bytes.add(ranker.projections)
            row["thresholds_at"] = self._numbers.add(ranker.thresholds)
        elif isinstance(ranker, RandomOrder):
            row["kind"] = k.HASH  # a key of no bits
        else:
            raise InputError(f"ranker {ranker.name!r} is of no class that the compiled kernels look up")

    def _lay_out_clusters(self, row: np.void, ranker: Clusters) -> None:
        row["kind"] = k.CLUSTERS
        row["coarse"], row["fine"] = ranker.fine.shape[:2]
        row["coarse_at"] = self._bytes.add(_in_lines(ranker.coarse))
        row["fine_at"] = self._bytes.add(_in_lines(ranker.fine))
        for field, rows, scale, offset in (
            ("coarse_scales_at", ranker.coarse, ranker.coarse_scale, ranker.coarse_offset),
            ("fine_scales_at", ranker.fine, ranker.fine_scale, ranker.fine_offset),
        ):
            row[field] = self._numbers.add(np.stack([scale, offset, rows.sum(axis=-1, dtype=np.float32)], axis=-2))


def _lines(width: int) -> int:
    return -(-width // k.LINE_BYTES)


def _in_lines(rows: np.ndarray) -> np.ndarray:
    """Return int8 [..., inputs] with zeros up to the end of each row's last cache line."""
    width = rows.shape[-1]
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, _lines(width) * k.LINE_BYTES - width)])


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
        """Append ``array`` and return its begin."""
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
