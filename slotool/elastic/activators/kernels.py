"""The whole answer to one query in one compiled call: input, key, look-up, gathered rows, best labels. One thread.

Nothing is allocated per query. Everything lies in four flat arrays that ``compiled.Compiled`` lays out:

- ``numbers`` float32: weights by rows and by columns, biases, thresholds, confidences, workspaces;
- ``ints`` int64: ``HEADER`` fields, then ``FIELDS`` per layer, node counts, workspaces;
- ``ids`` uint32: hashed nodes, slots, ranked lists; ``bytes_`` int8: rounded rows and centroids.

Fields ending in _AT are offsets. The plain NumPy path with the same answers is ``activator.logits``.

Import this module only where a query is to be answered: it brings in Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from slotool.elastic.activators.intrinsics import pointer, prefetch
from slotool.elastic.activators.slo_nn import SCORED_AGAIN

# Sums may be reordered and fused, but NaN must stay NaN: it is how a bad input shows.
_FAST = {"reassoc", "contract", "nsz"}
_LARGEST = float(np.finfo(np.float32).max)

# Fields of the header.
LAYERS, SHARES, MEANS_AT, CLOCK = range(4)
INPUT_AT, VALUES_AT, ALL_AT, OUTPUT_AT, BEST_AT = range(4, 9)  # numbers
ACTIVE_AT, CHOSEN_AT, STAMPS_AT, STARTS_AT, BEST_NODES_AT = range(9, 14)  # ints
HEADER = 16
# Fields of a layer; KIND is NONE without an activator.
INPUTS, UNITS, ROWS_AT, COLUMNS_AT, BIAS_AT, BYTES_AT, STEPS_AT = range(7)
KIND, TABLES, BUCKETS, SLOTS_AT, LISTS_AT, LENGTH, OVERALL_AT, COUNTS_AT, HASHED, HASHED_AT = range(7, 17)
BITS, POSITIONS_AT, THRESHOLDS_AT = range(17, 20)
COARSE, FINE, COARSE_AT, FINE_AT, COARSE_STEPS_AT, FINE_STEPS_AT = range(20, 26)
FIELDS = 32
NONE, HASH, CLUSTERS = range(3)

# The most labels a query may ask for.
MOST_ANSWERS = 128
# Rows fetched ahead of the one being read; measured: 8 to 16 are alike.
AHEAD = 12
FLOATS_PER_LINE, BYTES_PER_LINE = 16, 64

# Fields of a handle, see ``top_dense``; first an address and a length for each of the four arrays.
LABELS_AT, SCORES_AT, ANSWERS, POINT = range(8, 12)
HANDLE = 12

# What a query that cannot be answered returns.
NOT_FINITE, OUT_OF_RANGE = -1, -2
# Instead of a point: the least k whose confidence is at least the threshold.
BY_CONFIDENCE = -1


@njit(cache=True, fastmath=_FAST)
def top_dense(x: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    """Write the best labels and their scores for ``x`` float32 [inputs] to where ``handle`` says.

    ``handle``: int64 [HANDLE], addresses and lengths of the four arrays, of ``labels`` int32 [p] and ``scores``
    float32 [p]; and the point: index into the k grid, its length for the full network, or BY_CONFIDENCE. One array in
    place of six, because each costs a call about 100 ns. Returns the point answered at, or a negative number. Fewer
    than p computed nodes leave labels −1 and scores −inf.
    """
    numbers, ints, ids, bytes_ = _arrays(handle)
    active = _load_dense(x, numbers, ints)
    return _top(active, handle, threshold, numbers, ints, ids, bytes_)


@njit(cache=True, fastmath=_FAST)
def top_sparse(indices: np.ndarray, values: np.ndarray, handle: np.ndarray, threshold: float) -> int:
    """As ``top_dense``, for the features ``indices`` int32 [n], each once, with ``values`` float32 [n]."""
    numbers, ints, ids, bytes_ = _arrays(handle)
    active = _load_sparse(indices, values, numbers, ints)
    if active < 0:
        return active
    point = _top(active, handle, threshold, numbers, ints, ids, bytes_)
    _unload_sparse(indices, numbers, ints)
    return point


@njit(cache=True, forceinline=True)
def _arrays(handle: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return (
        carray(pointer(handle[0], np.float32(0)), (handle[1],)),
        carray(pointer(handle[2], np.int64(0)), (handle[3],)),
        carray(pointer(handle[4], np.uint32(0)), (handle[5],)),
        carray(pointer(handle[6], np.int8(0)), (handle[7],)),
    )


@njit(cache=True, fastmath=_FAST)
def logits_dense(
    x: np.ndarray,
    out: np.ndarray,
    point: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> int:
    """Fill ``out`` float32 [n, classes] for ``x`` float32 [n, inputs]; a dropped class is −inf.

    Returns the first row whose values are not finite (rows from there on are not filled), or −1.
    """
    for query in range(len(x)):
        active = _load_dense(x[query], numbers, ints)
        point_taken, chosen = _propagate(active, point, 0.0, 0, numbers, ints, ids, bytes_)
        if point_taken < 0:
            return query
        _store(chosen, out[query], numbers, ints)
    return -1


@njit(cache=True, fastmath=_FAST)
def logits_sparse(
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
    """As ``logits_dense``, for the rows of a CSR matrix."""
    for query in range(len(indptr) - 1):
        part = slice(indptr[query], indptr[query + 1])
        active = _load_sparse(indices[part], values[part], numbers, ints)
        if active < 0:
            return query
        point_taken, chosen = _propagate(active, point, 0.0, 0, numbers, ints, ids, bytes_)
        _unload_sparse(indices[part], numbers, ints)
        if point_taken < 0:
            return query
        _store(chosen, out[query], numbers, ints)
    return -1


@njit(cache=True, fastmath=_FAST)
def ladder(
    x: np.ndarray,
    log_partition: np.ndarray,
    best: np.ndarray,
    closeness: np.ndarray,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> None:
    """All k of the grid from one gather, where the output layer alone is activated: its lists are nested.

    ``x``: float32 [n, inputs of the output layer]; ``log_partition``: float32 [n], of the full logits. Fills ``best``
    int32 [n, shares], the label that scores highest, and ``closeness`` float32 [n, shares], minus the cross-entropy
    to the full answer, a label that was not computed having ``LEAST_PROBABILITY``.
    """
    layers, shares = ints[LAYERS], ints[SHARES]
    row = ints[HEADER + (layers - 1) * FIELDS : HEADER + layers * FIELDS]
    output, chosen = numbers[ints[OUTPUT_AT] :], ints[ints[CHOSEN_AT] :]
    inputs = numbers[ints[INPUT_AT] : ints[INPUT_AT] + row[INPUTS]]
    for query in range(len(x)):
        inputs[:] = x[query]
        _hash_nodes(row, False, numbers, ints, ids)
        _find_buckets(row, numbers, ints, ids, bytes_)
        hashed = row[HASHED]
        count = ints[row[COUNTS_AT] + shares - 1]
        _pick(row, hashed, count, ints, ids)
        _gather(row, hashed, count, 0, numbers, ints, bytes_)
        done, at, highest = 0, 0, np.float32(-np.inf)
        mass, weighted = 0.0, 0.0
        for share in range(shares):
            for i in range(done, ints[row[COUNTS_AT] + share]):
                value = output[i]
                if value > highest:
                    highest, at = value, chosen[i]
                below = value - log_partition[query]
                if below > -25.0:
                    probability = np.exp(below)
                    mass += probability
                    weighted += probability * below
            done = ints[row[COUNTS_AT] + share]
            best[query, share] = at
            missing = max(0.0, 1.0 - mass)
            own = mass * np.log(mass) if mass > 0.0 else 0.0
            closeness[query, share] = weighted - own + missing * _LOG_LEAST


# The logarithm of ``confidence.LEAST_PROBABILITY``.
_LOG_LEAST = float(np.log(1e-6))


@njit(cache=True, fastmath=_FAST)
def estimate(
    x: np.ndarray, out: np.ndarray, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray
) -> None:
    """Fill ``out`` float64 [shares] with ĉ(k, x) for ``x`` float32 [inputs of the first activated layer]."""
    at = _first_activated(ints)
    row = ints[HEADER + at * FIELDS : HEADER + (at + 1) * FIELDS]
    numbers[ints[INPUT_AT] : ints[INPUT_AT] + row[INPUTS]] = x
    _hash_nodes(row, False, numbers, ints, ids)
    _find_buckets(row, numbers, ints, ids, bytes_)
    for share in range(ints[SHARES]):
        out[share] = _confidence(row, share, numbers, ints)


@njit(cache=True)
def _first_activated(ints: np.ndarray) -> int:
    at = 0
    while ints[HEADER + at * FIELDS + KIND] == NONE:
        at += 1
    return at


@njit(cache=True, forceinline=True)
def _finite(value: Any) -> bool:
    # Not np.isfinite: it asks whether value − value is 0, which reassociation takes for granted.
    return abs(value) <= _LARGEST


@njit(cache=True, fastmath=_FAST, forceinline=True)
def _dot(weights: np.ndarray, x: np.ndarray) -> Any:
    # Slices, not offsets, and a loop from 0: only then does the compiler know that no index is negative, and uses SIMD.
    total = np.float32(0.0)
    for i in range(len(weights)):
        total += np.float32(weights[i]) * x[i]
    return total


@njit(cache=True, fastmath=_FAST)
def _load_dense(x: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Copy a query in and list its inputs that are not zero; returns how many."""
    inputs, values, actives = numbers[ints[INPUT_AT] :], numbers[ints[VALUES_AT] :], ints[ints[ACTIVE_AT] :]
    active = 0
    for i in range(len(x)):
        value = x[i]
        inputs[i] = value
        actives[active] = i
        values[active] = value
        active += value != 0.0
    return active


@njit(cache=True, fastmath=_FAST)
def _load_sparse(indices: np.ndarray, values: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> int:
    """The same from the non-zeros; spread out only where the first layer needs it. Returns how many, or a refusal."""
    row = ints[HEADER : HEADER + FIELDS]
    listed, actives = numbers[ints[VALUES_AT] :], ints[ints[ACTIVE_AT] :]
    width = row[INPUTS]
    for i in range(len(indices)):
        index = np.int64(indices[i])
        if index < 0 or index >= width:
            return OUT_OF_RANGE
        actives[i] = index
        listed[i] = values[i]
    if row[ROWS_AT] >= 0:
        inputs = numbers[ints[INPUT_AT] :]
        for i in range(width):
            inputs[i] = 0.0
        for i in range(len(indices)):
            inputs[indices[i]] = values[i]
    return len(indices)


@njit(cache=True, fastmath=_FAST)
def _unload_sparse(indices: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> None:
    """Nothing of a query may be left for the next."""
    if ints[HEADER + ROWS_AT] >= 0:
        inputs = numbers[ints[INPUT_AT] :]
        for i in range(len(indices)):
            inputs[indices[i]] = 0.0


@njit(cache=True, fastmath=_FAST)
def _top(
    active: int,
    handle: np.ndarray,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> int:
    wanted, point = handle[ANSWERS], handle[POINT]
    labels = carray(pointer(handle[LABELS_AT], np.int32(0)), (wanted,))
    scores = carray(pointer(handle[SCORES_AT], np.float32(0)), (wanted,))
    kept = max(wanted, SCORED_AGAIN)
    best, nodes = numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
    for i in range(kept):
        best[i] = -np.inf
        nodes[i] = -1
    taken, _ = _propagate(active, point, threshold, kept, numbers, ints, ids, bytes_)
    if taken < 0:
        return taken
    row = ints[HEADER + (ints[LAYERS] - 1) * FIELDS : HEADER + ints[LAYERS] * FIELDS]
    if row[BYTES_AT] >= 0 and taken < ints[SHARES]:
        _score_again(row, kept, best, nodes, numbers, ints)
    for i in range(wanted):
        labels[i] = nodes[i]
        scores[i] = best[i]
    return taken


@njit(cache=True, fastmath=_FAST)
def _score_again(
    row: np.ndarray, kept: int, best: np.ndarray, nodes: np.ndarray, numbers: np.ndarray, ints: np.ndarray
) -> None:
    """Score the best from their float32 rows and put them in order again."""
    inputs, start = row[INPUTS], row[ROWS_AT]
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    for i in range(kept):
        if nodes[i] >= 0:
            for line in range(0, inputs, FLOATS_PER_LINE):
                prefetch(numbers, start + nodes[i] * inputs + line)
    for i in range(kept):
        node = nodes[i]
        if node < 0:
            return
        at = start + node * inputs
        value = numbers[row[BIAS_AT] + node] + _dot(numbers[at : at + inputs], x)
        place = i
        while place > 0 and best[place - 1] < value:
            best[place], nodes[place] = best[place - 1], nodes[place - 1]
            place -= 1
        best[place], nodes[place] = value, node


@njit(cache=True, fastmath=_FAST)
def _propagate(
    active: int,
    point: int,
    threshold: float,
    kept: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """From the loaded input to the output layer: values in OUTPUT, in the order of CHOSEN unless that is all nodes.

    ``kept``: how many best labels to keep in BEST. Returns the point taken (or NOT_FINITE), and how many output nodes
    were computed.
    """
    layers, full = ints[LAYERS], ints[SHARES]
    chosen = 0
    for layer in range(layers):
        row = ints[HEADER + layer * FIELDS : HEADER + (layer + 1) * FIELDS]
        keep = kept if layer == layers - 1 else 0
        if row[KIND] == NONE or point == full:
            chosen = _compute_all(row, active, keep, numbers, ints)
        else:
            point, chosen = _compute_some(row, active, point, threshold, keep, numbers, ints, ids, bytes_)
        if layer == 0 and not _finite(numbers[ints[OUTPUT_AT]]):
            return NOT_FINITE, 0
        if layer < layers - 1:
            active = _rectify(row[UNITS], chosen, ints[HEADER + (layer + 1) * FIELDS + COLUMNS_AT] >= 0, numbers, ints)
    return point, chosen


@njit(cache=True, fastmath=_FAST)
def _compute_all(row: np.ndarray, active: int, keep: int, numbers: np.ndarray, ints: np.ndarray) -> int:
    """w·x + b of every node: whole columns of the inputs that are not zero where there are columns, else rows."""
    units, inputs, output = row[UNITS], row[INPUTS], ints[OUTPUT_AT]
    if row[COLUMNS_AT] >= 0:
        _columns(row, active, output, numbers, ints)
    else:
        x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
        weights = numbers[row[ROWS_AT] : row[ROWS_AT] + units * inputs].reshape(units, inputs)
        values, bias = numbers[output : output + units], numbers[row[BIAS_AT] : row[BIAS_AT] + units]
        for node in range(units):
            values[node] = bias[node] + _dot(weights[node], x)
    if keep:
        values, best, nodes = numbers[output:], numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
        for node in range(units):
            if values[node] > best[keep - 1]:
                _insert(values[node], node, keep, best, nodes)
    return units


@njit(cache=True, fastmath=_FAST, forceinline=True)
def _insert(value: Any, node: int, keep: int, best: np.ndarray, nodes: np.ndarray) -> None:
    place = keep - 1
    while place > 0 and best[place - 1] < value:
        best[place], nodes[place] = best[place - 1], nodes[place - 1]
        place -= 1
    best[place], nodes[place] = value, node


@njit(cache=True, fastmath=_FAST)
def _compute_some(
    row: np.ndarray,
    active: int,
    point: int,
    threshold: float,
    keep: int,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """w·x + b of the nodes this query needs. Returns the point, chosen here if it was not yet, and how many nodes."""
    units, inputs, hashed = row[UNITS], row[INPUTS], row[HASHED]
    # Whole columns of the inputs that are not zero, or whole rows of the chosen nodes: whichever is less to read.
    least = ints[row[COUNTS_AT] + max(point, 0)]
    by_columns = row[COLUMNS_AT] >= 0 and active * units <= least * inputs
    if by_columns:
        _columns(row, active, ints[ALL_AT], numbers, ints)
    _hash_nodes(row, by_columns, numbers, ints, ids)
    _find_buckets(row, numbers, ints, ids, bytes_)
    if point < 0:
        point = 0
        while point < ints[SHARES] and _confidence(row, point, numbers, ints) < threshold:
            point += 1
        if point == ints[SHARES]:
            return point, _compute_all(row, active, keep, numbers, ints)
    count = ints[row[COUNTS_AT] + point]
    _pick(row, hashed, count, ints, ids)
    output, chosen = numbers[ints[OUTPUT_AT] :], ints[ints[CHOSEN_AT] :]
    if by_columns:
        everything = numbers[ints[ALL_AT] :]
        for i in range(hashed, count):
            output[i] = everything[chosen[i]]
    else:
        _gather(row, hashed, count, keep, numbers, ints, bytes_)
    if keep:
        best, nodes = numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
        for i in range(count if by_columns else hashed):
            if output[i] > best[keep - 1]:
                _insert(output[i], chosen[i], keep, best, nodes)
    return point, count


@njit(cache=True, fastmath=_FAST, forceinline=True)
def _confidence(row: np.ndarray, share: int, numbers: np.ndarray, ints: np.ndarray) -> float:
    total, tables, shares = 0.0, row[TABLES], ints[SHARES]
    starts = ints[ints[STARTS_AT] :]
    for table in range(tables):
        total += numbers[ints[MEANS_AT] + starts[table] * shares + share]
    return total / tables


@njit(cache=True, fastmath=_FAST)
def _gather(
    row: np.ndarray, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    """Values of ``CHOSEN[start:stop]`` from their rows, fetched ahead; the best of them kept on the way."""
    if row[BYTES_AT] >= 0:
        _gather_int8(row, start, stop, keep, numbers, ints, bytes_)
    else:
        _gather_float32(row, start, stop, keep, numbers, ints)


@njit(cache=True, fastmath=_FAST)
def _gather_int8(
    row: np.ndarray, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    units, inputs, rows_at, steps_at = row[UNITS], row[INPUTS], row[BYTES_AT], row[STEPS_AT]
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    rows = bytes_[rows_at : rows_at + units * inputs].reshape(units, inputs)
    steps = numbers[steps_at : steps_at + 2 * units].reshape(units, 2)
    chosen, output = ints[ints[CHOSEN_AT] :], numbers[ints[OUTPUT_AT] :]
    best, nodes = numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
    worst = best[keep - 1] if keep else np.float32(np.inf)
    for i in range(start - AHEAD, stop):
        if i + AHEAD < stop:
            ahead = chosen[i + AHEAD]
            prefetch(numbers, steps_at + 2 * ahead)
            for line in range(0, inputs, BYTES_PER_LINE):
                prefetch(bytes_, rows_at + ahead * inputs + line)
        if i < start:
            continue
        node = chosen[i]
        value = _dot(rows[node], x) * steps[node, 0] + steps[node, 1]
        output[i] = value
        if value > worst:
            _insert(value, node, keep, best, nodes)
            worst = best[keep - 1]


@njit(cache=True, fastmath=_FAST)
def _gather_float32(row: np.ndarray, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray) -> None:
    units, inputs, rows_at, bias_at = row[UNITS], row[INPUTS], row[ROWS_AT], row[BIAS_AT]
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    rows, bias = numbers[rows_at : rows_at + units * inputs].reshape(units, inputs), numbers[bias_at:]
    chosen, output = ints[ints[CHOSEN_AT] :], numbers[ints[OUTPUT_AT] :]
    best, nodes = numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
    worst = best[keep - 1] if keep else np.float32(np.inf)
    for i in range(start - AHEAD, stop):
        if i + AHEAD < stop:
            ahead = chosen[i + AHEAD]
            prefetch(numbers, bias_at + ahead)
            for line in range(0, inputs, FLOATS_PER_LINE):
                prefetch(numbers, rows_at + ahead * inputs + line)
        if i < start:
            continue
        node = chosen[i]
        value = bias[node] + _dot(rows[node], x)
        output[i] = value
        if value > worst:
            _insert(value, node, keep, best, nodes)
            worst = best[keep - 1]


@njit(cache=True, fastmath=_FAST)
def _rectify(units: int, chosen: int, list_active: bool, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Turn computed outputs into the next layer's inputs; dropped nodes become 0. Returns how many are positive.

    They are listed only where the next layer may read columns.
    """
    inputs, output = numbers[ints[INPUT_AT] : ints[INPUT_AT] + units], numbers[ints[OUTPUT_AT] :]
    if chosen == units:
        for i in range(units):
            inputs[i] = max(output[i], np.float32(0.0))
    else:
        picked = ints[ints[CHOSEN_AT] :]
        for i in range(units):
            inputs[i] = 0.0
        for i in range(chosen):
            inputs[picked[i]] = max(output[i], np.float32(0.0))
    active = 0
    if list_active:
        values, actives = numbers[ints[VALUES_AT] :], ints[ints[ACTIVE_AT] :]
        for i in range(units):
            actives[active] = i
            values[active] = inputs[i]
            active += inputs[i] > 0.0
    return active


@njit(cache=True, fastmath=_FAST)
def _store(chosen: int, out: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> None:
    output, picked = numbers[ints[OUTPUT_AT] :], ints[ints[CHOSEN_AT] :]
    if chosen == len(out):
        for i in range(chosen):
            out[i] = output[i]
        return
    out[:] = -np.inf
    for i in range(chosen):
        out[picked[i]] = output[i]


@njit(cache=True, fastmath=_FAST)
def _columns(row: np.ndarray, active: int, target: int, numbers: np.ndarray, ints: np.ndarray) -> None:
    """All nodes at once from the columns of the active inputs, four columns a pass to spare the running sums."""
    units, bias, start = row[UNITS], row[BIAS_AT], row[COLUMNS_AT]
    listed, values = ints[ints[ACTIVE_AT] :], numbers[ints[VALUES_AT] :]
    sums = numbers[target : target + units]
    sums[:] = numbers[bias : bias + units]
    fours = active - active % 4
    for i in range(0, fours, 4):
        for ahead in range(i + 4, min(i + 8, active)):
            for line in range(0, units, FLOATS_PER_LINE):
                prefetch(numbers, start + listed[ahead] * units + line)
        v0, v1, v2, v3 = values[i], values[i + 1], values[i + 2], values[i + 3]
        c0 = numbers[start + listed[i] * units : start + (listed[i] + 1) * units]
        c1 = numbers[start + listed[i + 1] * units : start + (listed[i + 1] + 1) * units]
        c2 = numbers[start + listed[i + 2] * units : start + (listed[i + 2] + 1) * units]
        c3 = numbers[start + listed[i + 3] * units : start + (listed[i + 3] + 1) * units]
        for u in range(units):
            sums[u] += v0 * c0[u] + v1 * c1[u] + v2 * c2[u] + v3 * c3[u]
    for i in range(fours, active):
        value, column = values[i], numbers[start + listed[i] * units : start + (listed[i] + 1) * units]
        for u in range(units):
            sums[u] += value * column[u]


@njit(cache=True, fastmath=_FAST)
def _hash_nodes(row: np.ndarray, known: bool, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray) -> None:
    """The nodes that the keys read are the first to be chosen; their values, from ALL where they are ``known``."""
    chosen, output = ints[ints[CHOSEN_AT] :], numbers[ints[OUTPUT_AT] :]
    everything, inputs = numbers[ints[ALL_AT] :], row[INPUTS]
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    for i in range(row[HASHED]):
        node = np.int64(ids[row[HASHED_AT] + i])
        chosen[i] = node
        if known:
            output[i] = everything[node]
        else:
            at = row[ROWS_AT] + node * inputs
            output[i] = numbers[row[BIAS_AT] + node] + _dot(numbers[at : at + inputs], x)


@njit(cache=True, fastmath=_FAST)
def _find_buckets(row: np.ndarray, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray) -> None:
    """The row of this query's list in each table, into STARTS."""
    starts = ints[ints[STARTS_AT] :]
    if row[KIND] == CLUSTERS:
        coarse, fine, inputs = row[COARSE], row[FINE], row[INPUTS]
        near = _nearest(row[COARSE_AT], row[COARSE_STEPS_AT], coarse, inputs, numbers, ints, bytes_)
        key = near * fine + _nearest(
            row[FINE_AT] + near * fine * inputs,
            row[FINE_STEPS_AT] + 2 * near * fine,
            fine,
            inputs,
            numbers,
            ints,
            bytes_,
        )
        starts[0] = np.int64(ids[row[SLOTS_AT] + key])
        return
    bits, output = row[BITS], numbers[ints[OUTPUT_AT] :]
    for table in range(row[TABLES]):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            key |= (output[ids[row[POSITIONS_AT] + at]] > numbers[row[THRESHOLDS_AT] + at]) << bit
        starts[table] = np.int64(ids[row[SLOTS_AT] + table * row[BUCKETS] + key])


@njit(cache=True, fastmath=_FAST)
def _nearest(
    at: int, steps: int, count: int, inputs: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> int:
    """Which of ``count`` centroids, rows of int8, has the largest scale · c·x + offset; four share a pass over x."""
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    centroids = bytes_[at : at + count * inputs].reshape(count, inputs)
    scale, offset = numbers[steps : steps + count], numbers[steps + count : steps + 2 * count]
    near, highest = 0, np.float32(-np.inf)
    fours = count - count % 4
    for c in range(0, fours, 4):
        c0, c1, c2, c3 = centroids[c], centroids[c + 1], centroids[c + 2], centroids[c + 3]
        v0 = v1 = v2 = v3 = np.float32(0.0)
        for i in range(len(x)):
            v0 += np.float32(c0[i]) * x[i]
            v1 += np.float32(c1[i]) * x[i]
            v2 += np.float32(c2[i]) * x[i]
            v3 += np.float32(c3[i]) * x[i]
        near, highest = _nearer(v0 * scale[c] + offset[c], c, near, highest)
        near, highest = _nearer(v1 * scale[c + 1] + offset[c + 1], c + 1, near, highest)
        near, highest = _nearer(v2 * scale[c + 2] + offset[c + 2], c + 2, near, highest)
        near, highest = _nearer(v3 * scale[c + 3] + offset[c + 3], c + 3, near, highest)
    for c in range(fours, count):
        near, highest = _nearer(_dot(centroids[c], x) * scale[c] + offset[c], c, near, highest)
    return near


@njit(cache=True, forceinline=True)
def _nearer(value: Any, c: int, near: int, highest: Any) -> tuple[int, Any]:
    if value > highest:
        return c, value
    return near, highest


@njit(cache=True, fastmath=_FAST)
def _pick(row: np.ndarray, hashed: int, count: int, ints: np.ndarray, ids: np.ndarray) -> None:
    """Choose on from the interleaved lists of this query's buckets, then from the overall ranking, up to ``count``."""
    stamps, picked, starts = ints[ints[STAMPS_AT] :], ints[ints[CHOSEN_AT] :], ints[ints[STARTS_AT] :]
    tables, length, overall, lists = row[TABLES], row[LENGTH], row[OVERALL_AT], row[LISTS_AT]
    if hashed == 0 and tables == 1 and count <= length:
        own = ids[lists + starts[0] * length : lists + starts[0] * length + count]
        for place in range(count):
            picked[place] = own[place]
        return
    ints[CLOCK] += 1
    now, chosen = ints[CLOCK], hashed
    for i in range(hashed):
        stamps[picked[i]] = now
    for place in range(length):
        for table in range(tables):
            if chosen >= count:
                return
            # Without a branch on what the list holds: written always, kept only when it is new.
            node = np.int64(ids[lists + starts[table] * length + place])
            picked[chosen] = node
            chosen += stamps[node] != now
            stamps[node] = now
    for place in range(row[UNITS]):
        if chosen >= count:
            return
        node = np.int64(ids[overall + place])
        picked[chosen] = node
        chosen += stamps[node] != now
        stamps[node] = now
