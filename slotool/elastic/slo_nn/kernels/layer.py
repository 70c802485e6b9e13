"""Layer of one query: keys and lists, gathered rows or whole columns, ReLU. See ``layout`` for the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import copy, internal_njit
from slotool.elastic.slo_nn.kernels.int8 import (
    AHEAD,
    FAST,
    FLOATS_PER_LINE,
    gather_int8,
    insert,
    lines_of,
    nearest,
    quantize_query,
)
from slotool.elastic.slo_nn.kernels.intrinsics import Layer, header_of, prefetch
from slotool.elastic.slo_nn.kernels.layout import CLUSTERS, LINE_BYTES, NONE, PROJECTED

_LARGEST = float(np.finfo(np.float32).max)
# The head of a list is fetched while k is being chosen.
FETCHED_NODES = 128
LAST_STAMP = 127
# At most one node in so many: rows are faster, whatever the inputs.
FEW_BY_ROWS = 8


@internal_njit(forceinline=True)
def finite(value: float) -> bool:
    # np.isfinite tests value − value for 0, which reassociation optimizes away.
    return abs(value) <= _LARGEST


@internal_njit(fastmath=FAST, forceinline=True)
def dot(weights: np.ndarray, x: np.ndarray) -> Any:
    # Slices, not offsets, and a loop from 0: only then does the compiler know that no index is negative, and uses SIMD.
    total = np.float32(0.0)
    for i in range(len(weights)):
        total += np.float32(weights[i]) * x[i]
    return total


@internal_njit(fastmath=FAST)
def compute_all(row: Layer, active: int, keep: int, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Compute w·x + b of every node: from columns of the ``active`` inputs (−1: list them) if laid out, else rows."""
    header = header_of(ints)
    units: int = row.units
    inputs, output = row.inputs, header.output_at
    if row.columns_at >= 0:
        columns_of(row, active if active >= 0 else list_inputs(inputs, numbers, ints), output, numbers, ints)
    else:
        x = numbers[header.input_at : header.input_at + inputs]
        weights = numbers[row.rows_at : row.rows_at + units * inputs].reshape(units, inputs)
        values, bias = numbers[output : output + units], numbers[row.bias_at : row.bias_at + units]
        for node in range(units):
            values[node] = bias[node] + dot(weights[node], x)
    if keep:
        values, best, nodes = numbers[output:], numbers[header.best_at :], ints[header.best_nodes_at :]
        for node in range(units):
            if values[node] > best[keep - 1]:
                insert(values[node], node, keep, best, nodes)
    return units


@internal_njit(fastmath=FAST)
def compute_some(
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
    """Compute w·x + b of the nodes that this query needs; return the point, chosen here if open, and their number."""
    header = header_of(ints)
    units, inputs, hashed = row.units, row.inputs, row.hashed
    # Whole columns of the inputs that are not zero, or whole rows of the chosen nodes: whichever is less to read.
    least = ints[row.counts_at + max(point, 0)]
    by_columns = active >= 0 and reads_columns(row, point, ints) and active * units <= least * inputs
    if by_columns:
        columns_of(row, active, header.all_at, numbers, ints)
    hash_nodes(row, by_columns, numbers, ints, ids)
    find_buckets(row, numbers, ints, ids, bytes_)
    if point < 0:
        point = 0
        while point < header.shares and confidence(row, point, numbers, ints) < threshold:
            point += 1
        if point == header.shares:
            return point, compute_all(row, active, keep, numbers, ints)
    count = ints[row.counts_at + point]
    output, chosen = numbers[header.output_at :], ints[header.chosen_at :]
    # All nodes continue in their own order, not the lists'.
    hashed = _all_in_order(units, chosen) if count == units else pick(row, hashed, count, ints, ids, bytes_)
    if by_columns:
        everything = numbers[header.all_at :]
        for i in range(hashed, count):
            output[i] = everything[chosen[i]]
    else:
        gather(row, hashed, count, keep, numbers, ints, bytes_)
    if keep:
        best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
        for i in range(count if by_columns else hashed):
            if output[i] > best[keep - 1]:
                insert(output[i], chosen[i], keep, best, nodes)
    return point, count


@internal_njit(fastmath=FAST, forceinline=True)
def confidence(row: Layer, share: int, numbers: np.ndarray, ints: np.ndarray) -> float:
    header = header_of(ints)
    total, tables, shares = 0.0, row.tables, header.shares
    starts = ints[header.starts_at :]
    for table in range(tables):
        total += numbers[header.means_at + starts[table] * shares + share]
    return total / tables


@internal_njit(fastmath=FAST)
def gather(
    row: Layer, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    """Compute values of ``CHOSEN[start:stop]`` from their rows, fetched ahead, keeping the best of them."""
    if row.int8_at >= 0:
        gather_int8(row, start, stop, keep, numbers, ints, bytes_)
        return
    header = header_of(ints)
    units, inputs, rows_at, bias_at = row.units, row.inputs, row.rows_at, row.bias_at
    x = numbers[header.input_at : header.input_at + inputs]
    rows, bias = numbers[rows_at : rows_at + units * inputs].reshape(units, inputs), numbers[bias_at:]
    chosen, output = ints[header.chosen_at :], numbers[header.output_at :]
    best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
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


@internal_njit(fastmath=FAST)
def rectify(units: int, chosen: int, list_active: bool, numbers: np.ndarray, ints: np.ndarray) -> int:
    """Turn computed outputs into the next layer's inputs; dropped nodes become 0.

    Returns how many are positive, if they are to be listed, or −1.
    """
    header = header_of(ints)
    inputs, output = numbers[header.input_at : header.input_at + units], numbers[header.output_at :]
    if chosen == units:
        for i in range(units):
            inputs[i] = max(output[i], np.float32(0.0))
    else:
        picked = ints[header.chosen_at :]
        for i in range(units):
            inputs[i] = 0.0
        for i in range(chosen):
            inputs[picked[i]] = max(output[i], np.float32(0.0))
    return list_inputs(units, numbers, ints) if list_active else -1


@internal_njit(fastmath=FAST)
def list_inputs(width: int, numbers: np.ndarray, ints: np.ndarray) -> int:
    header = header_of(ints)
    inputs, values, actives = numbers[header.input_at :], numbers[header.values_at :], ints[header.active_at :]
    active = 0
    for i in range(width):
        actives[active] = i
        values[active] = inputs[i]
        active += inputs[i] > 0.0
    return active


@internal_njit(forceinline=True)
def reads_columns(row: Layer, point: int, ints: np.ndarray) -> bool:
    """True if the active inputs are worth a list. A small k is less to read by rows, unless hardly any is active."""
    header = header_of(ints)
    if row.columns_at < 0:
        return False
    if row.kind == NONE or point == header.shares:
        return True
    return row.int8_at < 0 and ints[row.counts_at + max(point, 0)] * FEW_BY_ROWS >= row.units


@internal_njit(fastmath=FAST)
def columns_of(row: Layer, active: int, target: int, numbers: np.ndarray, ints: np.ndarray) -> None:
    """Compute all nodes from the columns of the active inputs, four a pass to spare the running sums."""
    header = header_of(ints)
    units, bias, start = row.units, row.bias_at, row.columns_at
    listed, values = ints[header.active_at :], numbers[header.values_at :]
    sums = numbers[target : target + units]
    copy(numbers[bias : bias + units], sums)
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


@internal_njit(fastmath=FAST)
def hash_nodes(row: Layer, from_all: bool, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray) -> None:
    """Choose first the nodes that the keys read; their values come from ALL if ``from_all``."""
    header = header_of(ints)
    chosen, output = ints[header.chosen_at :], numbers[header.output_at :]
    everything, inputs = numbers[header.all_at :], row.inputs
    x = numbers[header.input_at : header.input_at + inputs]
    for i in range(row.hashed):
        node = np.int64(ids[row.hashed_at + i])
        chosen[i] = node
        if from_all:
            output[i] = everything[node]
        else:
            at = row.rows_at + node * inputs
            output[i] = numbers[row.bias_at + node] + dot(numbers[at : at + inputs], x)


@internal_njit(fastmath=FAST)
def find_buckets(row: Layer, numbers: np.ndarray, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray) -> None:
    """Set STARTS to the row of this query's list in each table."""
    header = header_of(ints)
    starts = ints[header.starts_at :]
    if row.kind == CLUSTERS or row.int8_at >= 0:
        quantize_query(row.inputs, numbers, ints, bytes_)
    if row.kind == CLUSTERS:
        fine, width = row.fine, row.inputs
        near = nearest(row.coarse_at, row.coarse_scales_at, row.coarse, width, numbers, ints, bytes_)
        at, steps = row.fine_at + near * fine * lines_of(width) * LINE_BYTES, row.fine_scales_at + 3 * near * fine
        key = near * fine + nearest(at, steps, fine, width, numbers, ints, bytes_)
        starts[0] = np.int64(ids[row.slots_at + key])
        for line in range(0, min(row.length, FETCHED_NODES), FLOATS_PER_LINE):
            prefetch(ids, row.lists_at + starts[0] * row.length + line)
        return
    bits, inputs, output = row.bits, row.inputs, numbers[header.output_at :]
    x = numbers[header.input_at : header.input_at + inputs]
    for table in range(row.tables):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            if row.kind == PROJECTED:
                start = row.projections_at + at * inputs
                value = dot(bytes_[start : start + inputs], x)
            else:
                value = output[ids[row.positions_at + at]]
            key |= (value > numbers[row.thresholds_at + at]) << bit
        starts[table] = np.int64(ids[row.slots_at + table * row.buckets + key])


@internal_njit(forceinline=True)
def _all_in_order(units: int, chosen: np.ndarray) -> int:
    for node in range(units):
        chosen[node] = node
    return 0


@internal_njit(fastmath=FAST)
def pick(row: Layer, hashed: int, count: int, ints: np.ndarray, ids: np.ndarray, bytes_: np.ndarray) -> int:
    """Choose on from the interleaved lists of this query's buckets, then from the overall ranking, up to ``count``.

    Returns ``hashed``, how many were chosen before.
    """
    header = header_of(ints)
    picked, starts, stamps = ints[header.chosen_at :], ints[header.starts_at :], bytes_[header.stamps_at :]
    tables, length, overall, lists = row.tables, row.length, row.overall_at, row.lists_at
    chosen = hashed
    if hashed == 0 and tables == 1:
        # A list has no node twice.
        members = ids[lists + starts[0] * length : lists + starts[0] * length + min(count, length)]
        heads = picked[: len(members)]
        for place in range(len(heads)):
            heads[place] = members[place]
        if count <= length:
            return hashed
        now, chosen = _next_stamp(ints, stamps), length
        for place in range(length):
            stamps[members[place]] = now
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
    while chosen < count and place < row.units:
        # Least number of nodes between checks for the last one.
        further = ids[overall + place : overall + min(place + count - chosen, row.units)]
        for i in range(len(further)):
            node = np.int64(further[i])
            picked[chosen] = node
            chosen += stamps[node] != now
        place += len(further)
    return hashed


@internal_njit()
def _next_stamp(ints: np.ndarray, stamps: np.ndarray) -> Any:
    """Return a byte that no node bears yet. Bytes, because the stamps of 10^4 nodes then stay in the first cache."""
    header = header_of(ints)
    if header.last_stamp == LAST_STAMP:
        stamps[:] = 0
        header.last_stamp = 0
    header.last_stamp += 1
    return np.int8(header.last_stamp)
