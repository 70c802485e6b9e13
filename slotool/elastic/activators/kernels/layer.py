"""One layer of one query: keys and lists, gathered rows or whole columns, ReLU. See ``layout`` for the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.elastic.activators.kernels.int8 import (
    AHEAD,
    FAST,
    FLOATS_PER_LINE,
    gather_int8,
    insert,
    lines_of,
    nearest,
    round_query,
)
from slotool.elastic.activators.kernels.intrinsics import prefetch
from slotool.elastic.activators.kernels.layout import (
    ACTIVE_AT,
    ALL_AT,
    BEST_AT,
    BEST_NODES_AT,
    BIAS_AT,
    BITS,
    BUCKETS,
    BYTES_AT,
    CHOSEN_AT,
    CLOCK,
    CLUSTERS,
    COARSE,
    COARSE_AT,
    COARSE_STEPS_AT,
    COLUMNS_AT,
    COUNTS_AT,
    FINE,
    FINE_AT,
    FINE_STEPS_AT,
    HASHED,
    HASHED_AT,
    INPUT_AT,
    INPUTS,
    KIND,
    LENGTH,
    LINE_BYTES,
    LISTS_AT,
    MEANS_AT,
    NONE,
    OUTPUT_AT,
    OVERALL_AT,
    POSITIONS_AT,
    PROJECTED,
    PROJECTIONS_AT,
    ROWS_AT,
    SHARES,
    SLOTS_AT,
    STAMPS_AT,
    STARTS_AT,
    TABLES,
    THRESHOLDS_AT,
    UNITS,
    VALUES_AT,
)

_LARGEST = float(np.finfo(np.float32).max)
# The head of a list is fetched while k is being chosen.
FETCHED_NODES = 128
LAST_STAMP = 127
# One node in so many is few enough for rows, whatever the inputs.
FEW_BY_ROWS = 8


@njit(cache=True, forceinline=True)
def finite(value: Any) -> bool:
    # Not np.isfinite: it asks whether value − value is 0, which reassociation takes for granted.
    return abs(value) <= _LARGEST


@njit(cache=True, fastmath=FAST, forceinline=True)
def dot(weights: np.ndarray, x: np.ndarray) -> Any:
    # Slices, not offsets, and a loop from 0: only then does the compiler know that no index is negative, and uses SIMD.
    total = np.float32(0.0)
    for i in range(len(weights)):
        total += np.float32(weights[i]) * x[i]
    return total


@njit(cache=True, fastmath=FAST)
def compute_all(row: np.ndarray, active: int, keep: int, numbers: np.ndarray, ints: np.ndarray) -> int:
    """w·x + b of every node: columns of the ``active`` inputs (−1: list them) where there are columns, else rows."""
    units, inputs, output = row[UNITS], row[INPUTS], ints[OUTPUT_AT]
    if row[COLUMNS_AT] >= 0:
        _columns(row, active if active >= 0 else list_inputs(inputs, numbers, ints), output, numbers, ints)
    else:
        x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
        weights = numbers[row[ROWS_AT] : row[ROWS_AT] + units * inputs].reshape(units, inputs)
        values, bias = numbers[output : output + units], numbers[row[BIAS_AT] : row[BIAS_AT] + units]
        for node in range(units):
            values[node] = bias[node] + dot(weights[node], x)
    if keep:
        values, best, nodes = numbers[output:], numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
        for node in range(units):
            if values[node] > best[keep - 1]:
                insert(values[node], node, keep, best, nodes)
    return units


@njit(cache=True, fastmath=FAST)
def compute_some(
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
    by_columns = active >= 0 and reads_columns(row, point, ints) and active * units <= least * inputs
    if by_columns:
        _columns(row, active, ints[ALL_AT], numbers, ints)
    hash_nodes(row, by_columns, numbers, ints, ids)
    find_buckets(row, numbers, ints, ids, bytes_)
    if point < 0:
        point = 0
        while point < ints[SHARES] and confidence(row, point, numbers, ints) < threshold:
            point += 1
        if point == ints[SHARES]:
            return point, compute_all(row, active, keep, numbers, ints)
    count = ints[row[COUNTS_AT] + point]
    output, chosen = numbers[ints[OUTPUT_AT] :], ints[ints[CHOSEN_AT] :]
    # All there are go on in their own order, not the lists'.
    hashed = _all_in_order(units, chosen) if count == units else pick(row, hashed, count, ints, ids, bytes_)
    if by_columns:
        everything = numbers[ints[ALL_AT] :]
        for i in range(hashed, count):
            output[i] = everything[chosen[i]]
    else:
        gather(row, hashed, count, keep, numbers, ints, bytes_)
    if keep:
        best, nodes = numbers[ints[BEST_AT] :], ints[ints[BEST_NODES_AT] :]
        for i in range(count if by_columns else hashed):
            if output[i] > best[keep - 1]:
                insert(output[i], chosen[i], keep, best, nodes)
    return point, count


@njit(cache=True, fastmath=FAST, forceinline=True)
def confidence(row: np.ndarray, share: int, numbers: np.ndarray, ints: np.ndarray) -> float:
    total, tables, shares = 0.0, row[TABLES], ints[SHARES]
    starts = ints[ints[STARTS_AT] :]
    for table in range(tables):
        total += numbers[ints[MEANS_AT] + starts[table] * shares + share]
    return total / tables


@njit(cache=True, fastmath=FAST)
def gather(
    row: np.ndarray, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    """Values of ``CHOSEN[start:stop]`` from their rows, fetched ahead; the best of them kept on the way."""
    if row[BYTES_AT] >= 0:
        gather_int8(row, start, stop, keep, numbers, ints, bytes_)
    else:
        _gather_float32(row, start, stop, keep, numbers, ints)


@njit(cache=True, fastmath=FAST)
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
        value = bias[node] + dot(rows[node], x)
        output[i] = value
        if value > worst:
            insert(value, node, keep, best, nodes)
            worst = best[keep - 1]


@njit(cache=True, fastmath=FAST)
def rectify(units: int, chosen: int, list_active: bool, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Turn computed outputs into the next layer's inputs; dropped nodes become 0.

    Returns how many are positive, if they are to be listed, or −1.
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
    return list_inputs(units, numbers, ints) if list_active else -1


@njit(cache=True, fastmath=FAST)
def list_inputs(width: int, numbers: np.ndarray, ints: np.ndarray) -> int:
    inputs, values, actives = numbers[ints[INPUT_AT] :], numbers[ints[VALUES_AT] :], ints[ints[ACTIVE_AT] :]
    active = 0
    for i in range(width):
        actives[active] = i
        values[active] = inputs[i]
        active += inputs[i] > 0.0
    return active


@njit(cache=True, forceinline=True)
def reads_columns(row: np.ndarray, point: int, ints: np.ndarray) -> bool:
    """Whether the active inputs are worth a list. A small k is less to read by rows, unless hardly any is active."""
    if row[COLUMNS_AT] < 0:
        return False
    if row[KIND] == NONE or point == ints[SHARES]:
        return True
    return row[BYTES_AT] < 0 and ints[row[COUNTS_AT] + max(point, 0)] * FEW_BY_ROWS >= row[UNITS]


@njit(cache=True, fastmath=FAST)
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


@njit(cache=True, fastmath=FAST)
def hash_nodes(row: np.ndarray, known: bool, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray) -> None:
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
            output[i] = numbers[row[BIAS_AT] + node] + dot(numbers[at : at + inputs], x)


@njit(cache=True, fastmath=FAST)
def find_buckets(row: np.ndarray, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray) -> None:
    """The row of this query's list in each table, into STARTS."""
    starts = ints[ints[STARTS_AT] :]
    if row[KIND] == CLUSTERS or row[BYTES_AT] >= 0:
        round_query(row[INPUTS], numbers, ints, bytes_)
    if row[KIND] == CLUSTERS:
        fine, width = row[FINE], row[INPUTS]
        near = nearest(row[COARSE_AT], row[COARSE_STEPS_AT], row[COARSE], width, numbers, ints, bytes_)
        at, steps = row[FINE_AT] + near * fine * lines_of(width) * LINE_BYTES, row[FINE_STEPS_AT] + 3 * near * fine
        key = near * fine + nearest(at, steps, fine, width, numbers, ints, bytes_)
        starts[0] = np.int64(ids[row[SLOTS_AT] + key])
        for line in range(0, min(row[LENGTH], FETCHED_NODES), FLOATS_PER_LINE):
            prefetch(ids, row[LISTS_AT] + starts[0] * row[LENGTH] + line)
        return
    if row[KIND] == PROJECTED:
        _find_projected(row, starts, numbers, ints, ids, bytes_)
        return
    bits, output = row[BITS], numbers[ints[OUTPUT_AT] :]
    for table in range(row[TABLES]):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            key |= (output[ids[row[POSITIONS_AT] + at]] > numbers[row[THRESHOLDS_AT] + at]) << bit
        starts[table] = np.int64(ids[row[SLOTS_AT] + table * row[BUCKETS] + key])


@njit(cache=True, fastmath=FAST)
def _find_projected(
    row: np.ndarray, starts: np.ndarray, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray
) -> None:
    """The same where each bit has a projection of its own, a row of int8."""
    bits, inputs = row[BITS], row[INPUTS]
    x = numbers[ints[INPUT_AT] : ints[INPUT_AT] + inputs]
    for table in range(row[TABLES]):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            start = row[PROJECTIONS_AT] + at * inputs
            key |= (dot(bytes_[start : start + inputs], x) > numbers[row[THRESHOLDS_AT] + at]) << bit
        starts[table] = np.int64(ids[row[SLOTS_AT] + table * row[BUCKETS] + key])


@njit(cache=True, forceinline=True)
def _all_in_order(units: int, chosen: np.ndarray) -> int:
    for node in range(units):
        chosen[node] = node
    return 0


@njit(cache=True, fastmath=FAST)
def pick(row: np.ndarray, hashed: int, count: int, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray) -> int:
    """Choose on from the interleaved lists of this query's buckets, then from the overall ranking, up to ``count``.

    Returns ``hashed``, how many were chosen before.
    """
    picked, starts, stamps = ints[ints[CHOSEN_AT] :], ints[ints[STARTS_AT] :], bytes_[ints[STAMPS_AT] :]
    tables, length, overall, lists = row[TABLES], row[LENGTH], row[OVERALL_AT], row[LISTS_AT]
    chosen = hashed
    if hashed == 0 and tables == 1:
        # One list names no node twice.
        own = ids[lists + starts[0] * length : lists + starts[0] * length + min(count, length)]
        heads = picked[: len(own)]
        for place in range(len(heads)):
            heads[place] = own[place]
        if count <= length:
            return hashed
        now, chosen = _next_stamp(ints, stamps), length
        for place in range(length):
            stamps[own[place]] = now
    else:
        now = _next_stamp(ints, stamps)
        for i in range(hashed):
            stamps[picked[i]] = now
        for place in range(length):
            for table in range(tables):
                if chosen >= count:
                    return hashed
                # Without a branch on what the list holds: written always, kept only when it is new.
                node = np.int64(ids[lists + starts[table] * length + place])
                picked[chosen] = node
                chosen += stamps[node] != now
                stamps[node] = now
    place = 0
    while chosen < count and place < row[UNITS]:
        # So many more at least are looked at, without asking after each whether it was the last.
        further = ids[overall + place : overall + min(place + count - chosen, row[UNITS])]
        for i in range(len(further)):
            node = np.int64(further[i])
            picked[chosen] = node
            chosen += stamps[node] != now
        place += len(further)
    return hashed


@njit(cache=True)
def _next_stamp(ints: np.ndarray, stamps: np.ndarray) -> Any:
    """A byte that no node bears yet. Bytes, because the stamps of 10^4 nodes then stay in the first cache."""
    if ints[CLOCK] == LAST_STAMP:
        stamps[:] = 0
        ints[CLOCK] = 0
    ints[CLOCK] += 1
    return np.int8(ints[CLOCK])
