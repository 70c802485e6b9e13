"""The whole forward pass of one query in one compiled call: hash, look up, gather, for every layer. Single-threaded.

Nothing is allocated per query: ``Compiled`` holds the network and its tables in a few flat arrays (each argument costs
the call about 50 ns), and workspaces that every call reuses. Numba keeps the interpreter lock during a call, so one
model's workspaces are never in use twice. The plain NumPy path with the same answers is ``activator.logits``.

Import this module only where a query is to be answered: it brings in Numba.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numba import njit

from slotool.elastic.activators.activator import Activator
from slotool.elastic.activators.confidence import ConfidenceTables
from slotool.elastic.activators.mlp import MLP

# Sums may be reordered and fused, but NaN must stay NaN: it is how a bad input shows.
_FAST = {"reassoc", "contract", "nsz"}
_LARGEST = float(np.finfo(np.float32).max)

# Columns of ``layout``, a row per layer. *_AT are offsets into the array named in the comment.
INPUTS, UNITS, ROWS_AT, COLUMNS_AT, BIAS_AT = range(5)  # numbers
TABLES, BITS, HASH_AT, THRESHOLDS_AT = range(5, 9)  # ids, numbers; TABLES is 0 without an activator
SLOTS_AT, LISTS_AT, LENGTH, OVERALL_AT = range(9, 13)  # slots, ids, -, ids
FIELDS = 13

# Rows of ``marks``.
ACTIVE, CHOSEN, STAMP, LISTS = range(4)
# Rows of ``values``.
INPUT, OUTPUT = range(2)


class Compiled:
    """A network and its activators laid out for the compiled calls.

    ``numbers``: float32, weights by rows and by columns, biases, hash thresholds; ``layout``: int64 [layers, FIELDS];
    ``ids``: uint8/16/32, hash nodes and ranked lists; ``slots``: uint16; ``means``: float32 [rows, shares].
    Workspaces: ``values`` float32 [2, width], ``marks`` int64 [4, width], ``clock`` int64 [1] (stamps given so far).
    """

    def __init__(self, mlp: MLP, activators: Mapping[int, Activator], confidence: ConfidenceTables):
        layout = np.zeros((len(mlp.layers), FIELDS), dtype=np.int64)
        numbers, ids, slots = _Tape(), _Tape(), _Tape()
        for row, layer in zip(layout, mlp.layers, strict=True):
            row[[INPUTS, UNITS]] = layer.inputs, layer.units
            row[ROWS_AT] = numbers.add(layer.weights)
            row[COLUMNS_AT] = numbers.add(layer.weights.T)
            row[BIAS_AT] = numbers.add(layer.bias)
        for at, activator in activators.items():
            row, ranker, lists = layout[at], activator.ranker, activator.lists
            row[[TABLES, BITS]] = ranker.nodes.shape
            row[HASH_AT], row[THRESHOLDS_AT] = ids.add(ranker.nodes), numbers.add(ranker.thresholds)
            row[SLOTS_AT], row[LISTS_AT] = slots.add(lists.slots), ids.add(lists.lists)
            row[LENGTH], row[OVERALL_AT] = lists.lists.shape[1], ids.add(lists.overall)
        widest = max(mlp.layers[at].units for at in activators)
        width = max(int(layout[:, [INPUTS, UNITS, TABLES]].max()), 1)
        self.tables = (
            numbers.joined(np.float32),
            layout,
            ids.joined(np.min_scalar_type(widest - 1)),
            slots.joined(np.uint16),
        )
        self.means = confidence.means
        self.workspace = (
            np.zeros((2, width), dtype=np.float32),
            np.zeros((4, width), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )

    def forward(self, x: np.ndarray, out: np.ndarray, counts: np.ndarray) -> int:
        """See the function ``forward``; ``x`` and ``out`` must be contiguous."""
        return forward(x, out, counts, *self.tables, *self.workspace)

    def estimate(self, x: np.ndarray, out: np.ndarray) -> bool:
        """See the function ``estimate``."""
        return estimate(x, out, *self.tables, self.means)


class _Tape:
    """Arrays put end to end."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self._length = 0

    def add(self, array: np.ndarray) -> int:
        """Where ``array`` begins."""
        start = self._length
        self._pieces.append(array.ravel())
        self._length += array.size
        return start

    def joined(self, dtype: np.typing.DTypeLike) -> np.ndarray:
        return np.concatenate(self._pieces).astype(dtype)


@njit(cache=True, fastmath=_FAST)
def forward(
    x: np.ndarray,
    out: np.ndarray,
    counts: np.ndarray,
    numbers: np.ndarray,
    layout: np.ndarray,
    ids: np.ndarray,
    slots: np.ndarray,
    values: np.ndarray,
    marks: np.ndarray,
    clock: np.ndarray,
) -> int:
    """Fill ``out`` float32 [n, classes] for ``x`` float32 [n, inputs], one query after another.

    ``counts``: int64 [layers], nodes to compute per layer. Returns the first row whose values are not finite (rows
    from there on are not filled), or −1.
    """
    last = len(layout) - 1
    for query in range(len(x)):
        active = _load(x[query], values, marks)
        for layer in range(last + 1):
            row = layout[layer]
            chosen, ok = _compute(row, counts[layer], active, numbers, ids, slots, values, marks, clock)
            if layer == 0 and not ok:
                return query
            if layer < last:
                active = _rectify(row[UNITS], chosen, values, marks)
        _store(row[UNITS], chosen, out[query], values, marks)
    return -1


@njit(cache=True, fastmath=_FAST)
def estimate(
    x: np.ndarray,
    out: np.ndarray,
    numbers: np.ndarray,
    layout: np.ndarray,
    ids: np.ndarray,
    slots: np.ndarray,
    means: np.ndarray,
) -> bool:
    """Fill ``out`` float64 [shares] with ĉ(k, x) of one query ``x`` float32 [inputs]; False when x is not finite."""
    row = layout[0]
    tables, bits = row[TABLES], row[BITS]
    out[:] = 0.0
    for table in range(tables):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            node = int(ids[row[HASH_AT] + at])
            start = row[ROWS_AT] + node * row[INPUTS]
            value = numbers[row[BIAS_AT] + node] + _dot(numbers[start : start + row[INPUTS]], x)
            if not _finite(value):
                return False
            key |= (value > numbers[row[THRESHOLDS_AT] + at]) << bit
        slot = slots[row[SLOTS_AT] + table * (1 << bits) + key]
        for share in range(len(out)):
            out[share] += means[slot, share]
    for share in range(len(out)):
        out[share] /= tables
    return True


@njit(cache=True)
def _finite(value: float) -> bool:
    # Not np.isfinite: it asks whether value − value is 0, which reassociation takes for granted.
    return abs(value) <= _LARGEST


@njit(cache=True, fastmath=_FAST)
def _dot(weights: np.ndarray, x: np.ndarray) -> np.float32:
    # Slices, not offsets, and a loop from 0: only then does the compiler know that no index is negative, and uses SIMD.
    total = np.float32(0.0)
    for i in range(len(weights)):
        total += weights[i] * x[i]
    return total


@njit(cache=True, fastmath=_FAST)
def _load(x: np.ndarray, values: np.ndarray, marks: np.ndarray) -> int:
    """Copy a query in and list its inputs that are not zero; returns how many."""
    active = 0
    for i in range(len(x)):
        value = x[i]
        values[INPUT, i] = value
        marks[ACTIVE, active] = i
        active += value != 0.0
    return active


@njit(cache=True, fastmath=_FAST)
def _rectify(units: int, chosen: int, values: np.ndarray, marks: np.ndarray) -> int:
    """Turn computed outputs into the next layer's inputs; dropped nodes become 0. Returns how many are positive."""
    active = 0
    if chosen < units:
        for i in range(units):
            values[INPUT, i] = 0.0
    for i in range(chosen):
        node = marks[CHOSEN, i] if chosen < units else i
        value = values[OUTPUT, node]
        values[INPUT, node] = value if value > 0.0 else np.float32(0.0)
        marks[ACTIVE, active] = node
        active += value > 0.0
    return active


@njit(cache=True, fastmath=_FAST)
def _store(units: int, chosen: int, out: np.ndarray, values: np.ndarray, marks: np.ndarray) -> None:
    if chosen == units:
        for i in range(units):
            out[i] = values[OUTPUT, i]
        return
    out[:] = -np.inf
    for i in range(chosen):
        out[marks[CHOSEN, i]] = values[OUTPUT, marks[CHOSEN, i]]


@njit(cache=True, fastmath=_FAST)
def _compute(
    row: np.ndarray,
    count: int,
    active: int,
    numbers: np.ndarray,
    ids: np.ndarray,
    slots: np.ndarray,
    values: np.ndarray,
    marks: np.ndarray,
    clock: np.ndarray,
) -> tuple[int, bool]:
    """w·x + b of the nodes this query needs, into ``values[OUTPUT]``.

    Returns how many were chosen (listed in ``marks[CHOSEN]`` unless that is all), and whether the first is finite.
    Whole columns of the inputs that are not zero, or whole rows of the chosen nodes: whichever is less to read.
    """
    units, inputs = row[UNITS], row[INPUTS]
    by_columns = active * units <= count * inputs
    if by_columns:
        _columns(row, active, numbers, values, marks)
    if count >= units:
        if not by_columns:
            for node in range(units):
                _node(row, node, numbers, values)
        return units, _finite(values[OUTPUT, 0])
    clock[0] += 1
    chosen = _hash_nodes(row, by_columns, numbers, ids, values, marks, clock[0])
    hashed = chosen
    _find_lists(row, numbers, slots, ids, values, marks)
    chosen = _rank(row, count, chosen, ids, marks, clock[0])
    if not by_columns:
        for i in range(hashed, chosen):
            _node(row, marks[CHOSEN, i], numbers, values)
    return chosen, _finite(values[OUTPUT, marks[CHOSEN, 0]])


@njit(cache=True, fastmath=_FAST)
def _node(row: np.ndarray, node: int, numbers: np.ndarray, values: np.ndarray) -> None:
    inputs = row[INPUTS]
    start = row[ROWS_AT] + node * inputs
    weights = numbers[start : start + inputs]
    values[OUTPUT, node] = numbers[row[BIAS_AT] + node] + _dot(weights, values[INPUT, :inputs])


@njit(cache=True, fastmath=_FAST)
def _columns(row: np.ndarray, active: int, numbers: np.ndarray, values: np.ndarray, marks: np.ndarray) -> None:
    """All nodes at once from the columns of the active inputs, four columns a pass to spare the running sums."""
    units, bias = row[UNITS], row[BIAS_AT]
    columns = numbers[row[COLUMNS_AT] : row[COLUMNS_AT] + units * row[INPUTS]].reshape(-1, units)
    sums = values[OUTPUT, :units]
    sums[:] = numbers[bias : bias + units]
    fours = active - active % 4
    for i in range(0, fours, 4):
        n0, n1, n2, n3 = marks[ACTIVE, i], marks[ACTIVE, i + 1], marks[ACTIVE, i + 2], marks[ACTIVE, i + 3]
        v0, v1, v2, v3 = values[INPUT, n0], values[INPUT, n1], values[INPUT, n2], values[INPUT, n3]
        c0, c1, c2, c3 = columns[n0], columns[n1], columns[n2], columns[n3]
        for u in range(units):
            sums[u] += v0 * c0[u] + v1 * c1[u] + v2 * c2[u] + v3 * c3[u]
    for i in range(fours, active):
        value, column = values[INPUT, marks[ACTIVE, i]], columns[marks[ACTIVE, i]]
        for u in range(units):
            sums[u] += value * column[u]


@njit(cache=True, fastmath=_FAST)
def _hash_nodes(
    row: np.ndarray,
    known: bool,
    numbers: np.ndarray,
    ids: np.ndarray,
    values: np.ndarray,
    marks: np.ndarray,
    now: int,
) -> int:
    """Compute the nodes that the keys read, each once; they are the first to be chosen. Returns how many."""
    chosen = 0
    for at in range(row[HASH_AT], row[HASH_AT] + row[TABLES] * row[BITS]):
        node = int(ids[at])
        if marks[STAMP, node] != now:
            marks[STAMP, node] = now
            marks[CHOSEN, chosen] = node
            chosen += 1
            if not known:
                _node(row, node, numbers, values)
    return chosen


@njit(cache=True, fastmath=_FAST)
def _find_lists(
    row: np.ndarray, numbers: np.ndarray, slots: np.ndarray, ids: np.ndarray, values: np.ndarray, marks: np.ndarray
) -> None:
    """Where this query's list of each table begins in ``ids``, into ``marks[LISTS]``."""
    tables, bits = row[TABLES], row[BITS]
    for table in range(tables):
        key = 0
        for bit in range(bits):
            at = table * bits + bit
            key |= (values[OUTPUT, ids[row[HASH_AT] + at]] > numbers[row[THRESHOLDS_AT] + at]) << bit
        slot = np.int64(slots[row[SLOTS_AT] + table * (1 << bits) + key])
        marks[LISTS, table] = row[LISTS_AT] + slot * row[LENGTH]


@njit(cache=True, fastmath=_FAST)
def _rank(row: np.ndarray, count: int, chosen: int, ids: np.ndarray, marks: np.ndarray, now: int) -> int:
    """Choose on from the interleaved lists of this query's buckets, then from the overall ranking, up to ``count``."""
    stamps, picked, starts = marks[STAMP], marks[CHOSEN], marks[LISTS]
    tables, length, overall = row[TABLES], row[LENGTH], row[OVERALL_AT]
    for place in range(length):
        for table in range(tables):
            if chosen >= count:
                return chosen
            # Without a branch on what the list holds: written always, kept only when it is new.
            node = np.int64(ids[starts[table] + place])
            picked[chosen] = node
            chosen += stamps[node] != now
            stamps[node] = now
    for place in range(row[UNITS]):
        if chosen >= count:
            return chosen
        node = np.int64(ids[overall + place])
        picked[chosen] = node
        chosen += stamps[node] != now
        stamps[node] = now
    return chosen
