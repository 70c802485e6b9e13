"""Where the time of a query goes: reading it, hashing it and choosing k, listing nodes, computing them.

Source: slo-aware-neural-networks, Figure 3. Queries are broken off after a stage: what each stage takes is the
difference to the one before. The stages are those of ``kernels.single``, by the same pieces. They are here once more,
because a kernel that asks after each stage whether to stop is slower than one that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.compilation import internal_njit, njit
from slotool.elastic.slo_nn.kernels import layout, single
from slotool.elastic.slo_nn.kernels.int8 import FAST, insert
from slotool.elastic.slo_nn.kernels.intrinsics import Layer, header_of, layer_of
from slotool.elastic.slo_nn.kernels.layer import (
    columns_of,
    compute_all,
    confidence,
    find_buckets,
    gather,
    hash_nodes,
    pick,
    reads_columns,
    rectify,
)
from slotool.elastic.slo_nn.kernels.layout import MIN_RESCORED, NONE
from slotool.elastic.slo_nn.kernels.single import load_dense, load_sparse, require, score_again, unload_sparse
from slotool.elastic.slo_nn.model import SloNN
from slotool.tables import OperatingPoint
from slotool.timing.turns import in_turns

# Queries that are broken off in one compiled call, each of which is a sample of about so many seconds.
QUERIES, CALL_S, CALLS = 2_000, 0.002, 60
# Of a query: its values are read; then of each layer: columns of its inputs are added up, where that is less to read
# than rows; keys are hashed, their buckets found and k chosen; nodes are listed; what is left of them is computed.
COLUMNS, HASH, LIST, COMPUTE = range(4)
STAGES = 4
UNFINISHED = -1


@dataclass(frozen=True)
class StageTimes:
    """µs of one query within compiled code, caches warm: medians of calls of many queries.

    ``read_us``: its values are brought in. ``hash_us``: keys, their buckets, and k where it is chosen per input.
    ``list_us``: the nodes to compute are taken from the lists. ``compute_us``: products, and the best of them.
    """

    read_us: float
    hash_us: float
    list_us: float
    compute_us: float

    @property
    def total_us(self) -> float:
        return self.read_us + self.hash_us + self.list_us + self.compute_us

    @classmethod
    def of(
        cls, model: SloNN, x: Any, point: OperatingPoint | None = None, threshold: float = float("inf")
    ) -> StageTimes:
        """Of the rows of ``x``, float32 [n, *input_shape] or CSR, answered by ``model`` at ``point``; None: with k
        chosen per input by ``threshold``, and no less than all nodes where that is infinite.
        """
        at = layout.BY_CONFIDENCE if point is None else model.points.index(point)
        flat = model.flat(x)[:QUERIES]
        rest: tuple[Any, ...] = (at, threshold, *model.compiled.state)
        layers = len(model.mlp.layers)
        stops = [0, *(1 + STAGES * layer + stage for layer in range(layers) for stage in range(STAGES))]
        few = _few(lambda rows: until(stops[-1], *single.batch(rows), *rest), flat)
        taken_us = _by_stop(lambda stop: until(stop, *single.batch(few), *rest), stops) / few.shape[0]
        parts = np.diff(taken_us)[: STAGES * layers].reshape(layers, STAGES).sum(axis=0)
        return cls(
            read_us=float(taken_us[0]),
            hash_us=float(parts[HASH]),
            list_us=float(parts[LIST]),
            compute_us=float(parts[COLUMNS] + parts[COMPUTE]),
        )


def _few(answer: Callable[[Any], Any], rows: Any) -> Any:
    """So many of ``rows`` that answering them takes about ``CALL_S``."""
    each_s = in_turns([answer], lambda block: [[(rows[:4],) for _ in block]], 5).medians_s[0] / 4
    return rows[: max(4, int(CALL_S / each_s))]


def _by_stop(answer: Callable[[int], Any], stops: list[int]) -> np.ndarray:
    """Median µs of a call for each of ``stops``."""
    turns = in_turns([answer] * len(stops), lambda block: [[(stop,) for _ in block] for stop in stops], CALLS)
    medians_us: np.ndarray = 1e6 * turns.medians_s
    return medians_us


@njit(cache=True, fastmath=FAST)
def until(
    stop: int,
    x: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    point: int,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> int:
    """Answer all rows of a ``single.batch``, of networks of dense layers, up to stage ``stop`` and not further.

    Stage s of layer l is ``1 + STAGES · l + s``; 0 is before the first layer. ``point``, ``threshold``: as of a handle.
    Returns the number of the last query's best node, so that nothing is left out. Raises ``ValueError`` for rows that
    cannot be answered.
    """
    header, dense = header_of(ints), x.shape[1] > 0
    require(x.shape[1] == layer_of(ints, 0).inputs if dense else len(indices) == len(values))
    best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
    for query in range(len(x) if dense else len(indptr) - 1):
        for i in range(MIN_RESCORED):
            best[i], nodes[i] = -np.inf, -1
        if dense:
            _stages(stop, load_dense(x[query], numbers, ints), point, threshold, numbers, ints, ids, bytes_)
            continue
        require(0 <= indptr[query] <= indptr[query + 1] <= len(indices))
        part = slice(indptr[query], indptr[query + 1])
        active = load_sparse(indices[part], values[part], numbers, ints)
        require(active >= 0)
        _stages(stop, active, point, threshold, numbers, ints, ids, bytes_)
        unload_sparse(indices[part], numbers, ints)
    last: int = nodes[0]
    return last


@internal_njit(fastmath=FAST)
def _stages(
    stop: int,
    active: int,
    point: int,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> None:
    header = header_of(ints)
    best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
    for layer in range(header.layers):
        row, left = layer_of(ints, layer), stop - 1 - STAGES * layer
        keep = MIN_RESCORED if layer == header.layers - 1 else 0
        if left < 0:
            return
        if row.kind == NONE or point == header.shares:
            if left < COMPUTE:
                return
            computed = compute_all(row, active, keep, numbers, ints)
        else:
            point, computed = _some(left, row, active, point, threshold, keep, numbers, ints, ids, bytes_)
        if computed == UNFINISHED:
            return
        if layer < header.layers - 1:
            active = rectify(row.units, computed, reads_columns(layer_of(ints, layer + 1), point, ints), numbers, ints)
        elif row.int8_at >= 0 and point < header.shares:
            score_again(row, keep, best, nodes, numbers, ints)


@internal_njit(fastmath=FAST)
def _some(
    left: int,
    row: Layer,
    active: int,
    point: int,
    threshold: float,
    keep: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """``layer.compute_some`` up to the stage ``left`` of this layer; UNFINISHED nodes where that is not the last."""
    header = header_of(ints)
    output, chosen = numbers[header.output_at :], ints[header.chosen_at :]
    least = ints[row.counts_at + max(point, 0)]
    by_columns = active >= 0 and reads_columns(row, point, ints) and active * row.units <= least * row.inputs
    if by_columns:
        columns_of(row, active, header.all_at, numbers, ints)
    if left < HASH:
        return point, UNFINISHED
    hash_nodes(row, by_columns, numbers, ints, ids)
    find_buckets(row, numbers, ints, ids, bytes_)
    if point < 0:
        point = 0
        while point < header.shares and confidence(row, point, numbers, ints) < threshold:
            point += 1
    if point == header.shares:
        return point, compute_all(row, active, keep, numbers, ints) if left >= COMPUTE else UNFINISHED
    if left < LIST:
        return point, UNFINISHED
    count = ints[row.counts_at + point]
    hashed = pick(row, row.hashed, count, ints, ids, bytes_)
    if left < COMPUTE:
        return point, UNFINISHED
    if by_columns:
        for i in range(hashed, count):
            output[i] = numbers[header.all_at + chosen[i]]
    else:
        gather(row, hashed, count, keep, numbers, ints, bytes_)
    best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
    for i in range((count if by_columns else hashed) if keep else 0):
        if output[i] > best[keep - 1]:
            insert(output[i], chosen[i], keep, best, nodes)
    return point, count
