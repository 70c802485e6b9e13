"""Queries broken off after a stage: what each stage takes is the difference to the one before. See ``layout``.

The stages are those of ``single``, by the same pieces. They are here once more, because a kernel that asks after each
stage whether to stop is slower than one that does not.

Importing this module imports Numba.
"""

from __future__ import annotations

import numpy as np

from slotool.compilation import internal_njit, njit
from slotool.elastic.activators.kernels.int8 import FAST, insert
from slotool.elastic.activators.kernels.layer import (
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
from slotool.elastic.activators.kernels.layout import MIN_RESCORED, NONE
from slotool.elastic.activators.kernels.records import Layer, header_of, layer_of
from slotool.elastic.activators.kernels.single import load_dense, load_sparse, require, score_again, unload_sparse

# Of a query: its values are read; then of each layer: columns of its inputs are added up, where that is less to read
# than rows; keys are hashed, their buckets found and k chosen; nodes are listed; what is left of them is computed.
COLUMNS, HASH, LIST, COMPUTE = range(4)
STAGES = 4
UNFINISHED = -1


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
