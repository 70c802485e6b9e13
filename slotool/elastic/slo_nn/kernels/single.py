"""Query in one compiled call, on one thread: input, key, look-up, gathered rows, best labels.

Every k of the grid is computed in one pass over an input, with the confidence of the tables in each. Functions that
hold most of a call are inlined before they are compiled. Compiled by themselves, each would be optimised with all that
it calls, for seconds, and again in each of its callers.

Nothing is allocated per query: everything is in four flat arrays, see ``layout``. The plain NumPy path with the same
answers is ``activator.logits``. Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types

from slotool.compilation import copy, internal_njit, njit
from slotool.elastic.slo_nn.kernels.int8 import FAST, FLOATS_PER_LINE
from slotool.elastic.slo_nn.kernels.intrinsics import (
    Layer,
    handle_of,
    header_of,
    layer_of,
    owned,
    pointer,
    prefetch,
)
from slotool.elastic.slo_nn.kernels.layer import (
    compute_all,
    compute_some,
    confidence,
    dot,
    find_buckets,
    finite,
    gather,
    hash_nodes,
    pick,
    reads_columns,
    rectify,
)
from slotool.elastic.slo_nn.kernels.layout import (
    MIN_RESCORED,
    NONE,
    NOT_FINITE,
    OTHER_THREAD,
    OUT_OF_RANGE,
    OWNER,
    TOO_MANY,
    WRONG_LENGTH,
)

# Columns of sparse inputs that are fetched while the query is being read.
FETCHED_COLUMNS = 16
_NO_ROWS = np.empty((0, 0), dtype=np.float32)
_NO_CSR = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))


def _contiguous(dtype: Any, dimensions: int = 1) -> types.Array:
    # Read-only, because that takes both kinds.
    return types.Array(dtype, dimensions, "C", readonly=True)


_HANDLE, _FLOATS, _INDICES = types.int64[::1], _contiguous(types.float32), _contiguous(types.int32)
DENSE = types.int64(_FLOATS, _HANDLE, types.float64)
SPARSE = types.int64(_INDICES, _FLOATS, _HANDLE, types.float64)
_ANSWERS = (types.int32[:, ::1], types.float32[:, ::1], _HANDLE, types.float64)


@njit(DENSE, cache=True, fastmath=FAST)
def top_dense(x: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    """Write the best labels and their scores for ``x`` float32 [inputs] to where ``handle`` says.

    ``handle``: a ``HANDLE`` as int64 [HANDLE_SIZE]; its point is an index into the k grid, its length for the full
    network, or BY_CONFIDENCE. One array in place of six, because each costs a call about 100 ns. Returns the point
    answered at, or a negative number, for another thread's handle too. Fewer than p computed nodes leave labels −1 and
    scores −inf.
    """
    if not owned(handle, OWNER):
        return OTHER_THREAD
    numbers, ints, ids, bytes_ = _arrays(handle)
    if len(x) != layer_of(ints, 0).inputs:
        return WRONG_LENGTH
    labels, scores = _last_answer(handle)
    return _top(load_dense(x, numbers, ints), labels, scores, handle, threshold, numbers, ints, ids, bytes_)


@njit(SPARSE, cache=True, fastmath=FAST)
def top_sparse(indices: np.ndarray, values: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    """Compute ``top_dense`` for features ``indices`` int32 [n] with ``values`` float32 [n], summing repeated ones."""
    if not owned(handle, OWNER):
        return OTHER_THREAD
    labels, scores = _last_answer(handle)
    return _top_of_features(indices, values, labels, scores, handle, threshold)


@njit(types.int64(_contiguous(types.float32, 2), *_ANSWERS), cache=True, fastmath=FAST)
def rows_dense(x: np.ndarray, labels: np.ndarray, scores: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    """Answer every row of ``x`` float32 [n, inputs] into ``labels`` int32 and ``scores`` float32 [n, p].

    Any thread may call it. Returns 0, or, for the first row without an answer, its error code minus 8 × its number.
    Raises ``ValueError`` if shapes do not fit.
    """
    numbers, ints, ids, bytes_ = _arrays(handle)
    require(labels.shape == scores.shape and labels.shape == (len(x), handle_of(handle).answers))
    require(x.shape[1] == layer_of(ints, 0).inputs)
    for row in range(len(x)):
        active = load_dense(x[row], numbers, ints)
        point = _top(active, labels[row], scores[row], handle, threshold, numbers, ints, ids, bytes_)
        if point < 0:
            return point - 8 * row
    return 0


@njit(types.int64(_INDICES, _INDICES, _FLOATS, *_ANSWERS), cache=True, fastmath=FAST)
def rows_sparse(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    handle: np.ndarray,
    threshold: float,
) -> int:
    """Compute ``rows_dense`` for the rows of a CSR matrix: row pointers, features and values."""
    require(labels.shape == scores.shape and labels.shape == (len(indptr) - 1, handle_of(handle).answers))
    require(len(indices) == len(values) and indptr[0] == 0)
    for row in range(len(labels)):
        start, end = indptr[row], indptr[row + 1]
        require(0 <= start <= end <= len(indices))
        point = _top_of_features(indices[start:end], values[start:end], labels[row], scores[row], handle, threshold)
        if point < 0:
            return point - 8 * row
    return 0


@internal_njit(forceinline=True)
def _last_answer(handle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels and scores that a session's handle names."""
    fields = handle_of(handle)
    return (
        carray(pointer(fields.labels_at, np.int32(0)), (fields.answers,)),
        carray(pointer(fields.scores_at, np.float32(0)), (fields.answers,)),
    )


@internal_njit(forceinline=True)
def _arrays(handle: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    fields = handle_of(handle)
    return (
        carray(pointer(fields.numbers_at, np.float32(0)), (fields.numbers_length,)),
        carray(pointer(fields.ints_at, np.int64(0)), (fields.ints_length,)),
        carray(pointer(fields.ids_at, np.uint32(0)), (fields.ids_length,)),
        carray(pointer(fields.bytes_at, np.int8(0)), (fields.bytes_length,)),
    )


def batch(x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a batch for compiled calls: float32 [n, inputs], and CSR row pointers, features and values.

    Pointers are int64 [n + 1], features int32 and values float32 [entries]. The form that ``x`` does not have is empty.
    """
    if isinstance(x, np.ndarray):
        return x, *_NO_CSR
    return _NO_ROWS, x.indptr.astype(np.int64), x.indices, x.data


@njit(cache=True, fastmath=FAST)
def logits(
    x: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    out: np.ndarray,
    point: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> int:
    """Fill ``out`` float32 [n, classes] for the rows of a ``batch``; a dropped class is −inf.

    Returns the first row that cannot be answered (rows from there on are not filled), or −1. Raises
    ``ValueError`` where shapes do not fit.
    """
    header, dense = header_of(ints), x.shape[1] > 0
    require(x.shape[1] == layer_of(ints, 0).inputs if dense else len(indptr) == len(out) + 1 and indptr[0] == 0)
    require(len(indices) == len(values) and (len(x) == len(out) or not dense))
    require(out.shape[1] == layer_of(ints, header.layers - 1).units and 0 <= point <= header.shares)
    for query in range(len(out)):
        part = slice(0, 0)
        if dense:
            active = load_dense(x[query], numbers, ints)
        else:
            require(0 <= indptr[query] <= indptr[query + 1] <= len(indices))
            part = slice(indptr[query], indptr[query + 1])
            active = load_sparse(indices[part], values[part], numbers, ints)
            if active < 0:
                return query
        point_taken, chosen = _propagate(active, point, 0.0, 0, numbers, ints, ids, bytes_)
        if not dense:
            unload_sparse(indices[part], numbers, ints)
        if point_taken < 0:
            return query
        _store(chosen, out[query], numbers, ints)
    return -1


@internal_njit()
def require(fits: bool) -> None:
    if not fits:
        raise ValueError("arrays of shapes that do not belong together")


@internal_njit(fastmath=FAST)
def load_dense(x: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Copy a query in and list its inputs that are not zero; returns how many."""
    header = header_of(ints)
    inputs, values, actives = numbers[header.input_at :], numbers[header.values_at :], ints[header.active_at :]
    active = 0
    for i in range(len(x)):
        value = x[i]
        inputs[i] = value
        actives[active] = i
        values[active] = value
        active += value != 0.0
    return active


@internal_njit(fastmath=FAST)
def load_sparse(indices: np.ndarray, values: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Load non-zeros, made dense only if the first layer needs it; return their number, or an error code."""
    header = header_of(ints)
    row = layer_of(ints, 0)
    listed, actives = numbers[header.values_at :], ints[header.active_at :]
    width, units, columns = row.inputs, row.units, row.columns_at
    if len(values) != len(indices):
        return WRONG_LENGTH
    if len(indices) > width:
        return TOO_MANY
    for i in range(len(indices)):
        index = np.int64(indices[i])
        if index < 0 or index >= width:
            return OUT_OF_RANGE
        if columns >= 0 and i < FETCHED_COLUMNS:
            for line in range(0, units, FLOATS_PER_LINE):
                prefetch(numbers, columns + index * units + line)
        actives[i] = index
        listed[i] = values[i]
    if row.rows_at >= 0:
        inputs = numbers[header.input_at :]
        for i in range(width):
            inputs[i] = 0.0
        for i in range(len(indices)):
            inputs[indices[i]] += values[i]
    return len(indices)


@internal_njit(fastmath=FAST)
def unload_sparse(indices: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> None:
    """Clear the query, so that nothing is left for the next."""
    header = header_of(ints)
    if layer_of(ints, 0).rows_at >= 0:
        inputs = numbers[header.input_at :]
        for i in range(len(indices)):
            inputs[indices[i]] = 0.0


@njit(cache=True, fastmath=FAST, inline="always")
def _top_of_features(
    indices: np.ndarray,
    values: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    handle: np.ndarray,
    threshold: float,
) -> int:
    numbers, ints, ids, bytes_ = _arrays(handle)
    active = load_sparse(indices, values, numbers, ints)
    if active < 0:
        return active
    point = _top(active, labels, scores, handle, threshold, numbers, ints, ids, bytes_)
    unload_sparse(indices, numbers, ints)
    return point


@njit(cache=True, fastmath=FAST, inline="always")
def _top(
    active: int,
    labels: np.ndarray,
    scores: np.ndarray,
    handle: np.ndarray,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> int:
    header = header_of(ints)
    answers, candidates = len(labels), max(len(labels), MIN_RESCORED)
    best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
    for i in range(candidates):
        best[i] = -np.inf
        nodes[i] = -1
    point, _ = _propagate(active, handle_of(handle).point, threshold, candidates, numbers, ints, ids, bytes_)
    if point < 0:
        return point
    row = layer_of(ints, header.layers - 1)
    if row.int8_at >= 0 and point < header.shares:
        score_again(row, candidates, best, nodes, numbers, ints)
    for i in range(answers):
        labels[i] = nodes[i]
        scores[i] = best[i]
    return point


@internal_njit(fastmath=FAST)
def score_again(
    row: Layer, candidates: int, best: np.ndarray, nodes: np.ndarray, numbers: np.ndarray, ints: np.ndarray
) -> None:
    """Score the best from their float32 rows and put them in order again."""
    header = header_of(ints)
    inputs, start = row.inputs, row.rows_at
    x = numbers[header.input_at : header.input_at + inputs]
    for i in range(candidates):
        if nodes[i] >= 0:
            for line in range(0, inputs, FLOATS_PER_LINE):
                prefetch(numbers, start + nodes[i] * inputs + line)
    for i in range(candidates):
        node = nodes[i]
        if node < 0:
            return
        at = start + node * inputs
        value = numbers[row.bias_at + node] + dot(numbers[at : at + inputs], x)
        place = i
        while place > 0 and best[place - 1] < value:
            best[place], nodes[place] = best[place - 1], nodes[place - 1]
            place -= 1
        best[place], nodes[place] = value, node


@njit(cache=True, fastmath=FAST, inline="always")
def _propagate(
    active: int,
    point: int,
    threshold: float,
    candidates: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """Compute from the loaded input to OUTPUT, in the order of CHOSEN unless that is all nodes.

    ``candidates``: number of best labels to keep in BEST. Returns the point (or NOT_FINITE), and the number of computed
    output nodes.
    """
    header = header_of(ints)
    layers, full = header.layers, header.shares
    chosen = 0
    for layer in range(layers):
        row = layer_of(ints, layer)
        keep = candidates if layer == layers - 1 else 0
        after = layer_of(ints, layer + 1)
        if row.kind == NONE or point == full:
            chosen = compute_all(row, active, keep, numbers, ints)
        else:
            point, chosen = compute_some(row, active, point, threshold, keep, numbers, ints, ids, bytes_)
        if layer == 0 and not finite(numbers[header.output_at]):
            return NOT_FINITE, 0
        if layer < layers - 1:
            active = rectify(row.units, chosen, reads_columns(after, point, ints), numbers, ints)
    return point, chosen


@internal_njit(fastmath=FAST)
def _store(chosen: int, out: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> None:
    header = header_of(ints)
    output, picked = numbers[header.output_at :], ints[header.chosen_at :]
    if chosen == len(out):
        for i in range(chosen):
            out[i] = output[i]
        return
    out[:] = -np.inf
    for i in range(chosen):
        out[picked[i]] = output[i]


# The logarithm of ``confidence.MIN_PROBABILITY``.
_LOG_MIN_PROBABILITY = float(np.log(1e-6))


@njit(cache=True, fastmath=FAST)
def evaluate_nested(
    x: np.ndarray,
    log_partition: np.ndarray,
    best: np.ndarray,
    closeness: np.ndarray,
    probability: np.ndarray,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> None:
    """Compute all k of the grid from one gather, if the output layer alone is activated: its lists are nested.

    ``x``: float32 [n, inputs of the output layer]; ``log_partition``: float32 [n], of the full logits. Fills ``best``
    int32 [n, shares], the best label, ``probability`` float32 [n, shares], its full softmax, and ``closeness`` float32
    [n, shares], minus the cross-entropy to the full answer, with ``MIN_PROBABILITY`` for labels not computed. Raises
    ``ValueError`` if shapes do not fit.
    """
    header = header_of(ints)
    layers, shares = header.layers, header.shares
    row = layer_of(ints, layers - 1)
    require(x.shape[1] == row.inputs and row.kind != NONE and len(log_partition) == len(x))
    require(best.shape == closeness.shape == probability.shape == (len(x), shares))
    output, chosen = numbers[header.output_at :], ints[header.chosen_at :]
    inputs = numbers[header.input_at : header.input_at + row.inputs]
    for query in range(len(x)):
        copy(x[query], inputs)
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        hashed = row.hashed
        count = ints[row.counts_at + shares - 1]
        pick(row, hashed, count, ints, ids, bytes_)
        gather(row, hashed, count, 0, numbers, ints, bytes_)
        done, at, highest = 0, 0, np.float32(-np.inf)
        mass, weighted = 0.0, 0.0
        for share in range(shares):
            for i in range(done, ints[row.counts_at + share]):
                value = output[i]
                if value > highest:
                    highest, at = value, chosen[i]
                below = value - log_partition[query]
                if below > -25.0:
                    part = np.exp(below)
                    mass += part
                    weighted += part * below
            done = ints[row.counts_at + share]
            best[query, share] = at
            probability[query, share] = np.exp(highest - log_partition[query])
            missing = max(0.0, 1.0 - mass)
            entropy = mass * np.log(mass) if mass > 0.0 else 0.0
            closeness[query, share] = weighted - entropy + missing * _LOG_MIN_PROBABILITY


@njit(cache=True, fastmath=FAST)
def estimate(
    x: np.ndarray, out: np.ndarray, at: int, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray
) -> None:
    """Fill ``out`` float64 [shares] with ĉ(k, x) for ``x`` float32 [inputs of layer ``at``, the first activated one].

    Raises ``ValueError`` where shapes do not fit.
    """
    header = header_of(ints)
    require(0 <= at < header.layers)
    row = layer_of(ints, at)
    require(row.kind != NONE and len(x) == row.inputs and len(out) == header.shares)
    copy(x, numbers[header.input_at : header.input_at + row.inputs])
    hash_nodes(row, False, numbers, ints, ids)
    find_buckets(row, numbers, ints, ids, bytes_)
    for share in range(header.shares):
        out[share] = confidence(row, share, numbers, ints)
