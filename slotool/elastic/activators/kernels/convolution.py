"""One convolutional layer of one query: bucket and list from its cells, then the chosen channels. See ``layout``.

A layer's pictures lie padded in a place of their own, whose border stays zero; only channels that were computed are
read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.elastic.activators.kernels.layer import (
    FAST,
    confidence,
    find_buckets,
    finite,
    hash_nodes,
    list_inputs,
    pick,
    reads_columns,
)
from slotool.elastic.activators.kernels.layout import (
    ACROSS,
    ACTIVE_AT,
    BIAS_AT,
    CHANNELS,
    CHOSEN_AT,
    CONVOLVED_AT,
    COUNTS_AT,
    DOWN,
    GRID,
    HIGH,
    INPUT_AT,
    INPUTS,
    KERNEL_HIGH,
    KERNEL_WIDE,
    KERNELS_AT,
    KIND,
    LEFT,
    MAPS_AT,
    NONE,
    NOT_FINITE,
    PADDED_HIGH,
    PADDED_WIDE,
    PICTURE_HIGH,
    PICTURE_WIDE,
    POOL,
    POOLED_HIGH,
    POOLED_WIDE,
    SHARES,
    TOP,
    UNITS,
    WIDE,
)


@njit(cache=True, fastmath=FAST)
def convolve(
    row: np.ndarray,
    after: np.ndarray,
    first: bool,
    active: int,
    point: int,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """From this layer's pictures to the next layer's pictures or inputs.

    ``active``: how many of its input channels were computed, listed in ACTIVE; ``first``: all of them, as the query
    lies in INPUT. Returns the point (or NOT_FINITE) and, for the next layer, how many channels were computed, or what
    ``rectify`` would say.
    """
    if first:
        if not _enter(row, numbers, ints):
            return NOT_FINITE, 0
        active = row[CHANNELS]
    units, chosen = row[UNITS], ints[ints[CHOSEN_AT] :]
    count = units
    if row[KIND] != NONE and point != ints[SHARES]:
        _see(row, active, numbers, ints)
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        if point < 0:
            point = 0
            while point < ints[SHARES] and confidence(row, point, numbers, ints) < threshold:
                point += 1
        if point < ints[SHARES]:
            count = ints[row[COUNTS_AT] + point]
            pick(row, 0, count, ints, ids, bytes_)
    if count == units:
        for channel in range(units):
            chosen[channel] = channel
    overflown = _compute(row, after, active, count, numbers, ints)
    if first and overflown:
        return NOT_FINITE, 0
    if after[KERNEL_HIGH] == 0:
        width = units * row[POOLED_HIGH] * row[POOLED_WIDE]
        return point, list_inputs(width, numbers, ints) if reads_columns(after, point, ints) else -1
    actives = ints[ints[ACTIVE_AT] :]
    for i in range(count):
        actives[i] = chosen[i]
    return point, count


@njit(cache=True, fastmath=FAST)
def _enter(row: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> bool:
    """Bring the query from INPUT to its padded place, and list all its channels; False when a value is not finite."""
    high, wide = row[PICTURE_HIGH], row[PICTURE_WIDE]
    actives, bad = ints[ints[ACTIVE_AT] :], 0
    for channel in range(row[CHANNELS]):
        actives[channel] = channel
        for y in range(high):
            source = ints[INPUT_AT] + (channel * high + y) * wide
            target = row[MAPS_AT] + (channel * row[PADDED_HIGH] + y + row[TOP]) * row[PADDED_WIDE] + row[LEFT]
            here, there = numbers[source : source + wide], numbers[target : target + wide]
            for x in range(wide):
                bad += not finite(here[x])
                there[x] = here[x]
    return bad == 0


@njit(cache=True, fastmath=FAST)
def _see(row: np.ndarray, active: int, numbers: np.ndarray, ints: np.ndarray) -> None:
    """What the ranker has of the pictures, into INPUT: means over the grid's cells, 0 of channels not computed."""
    grid, seen, actives = row[GRID], numbers[ints[INPUT_AT] :], ints[ints[ACTIVE_AT] :]
    high, wide = row[PICTURE_HIGH] // grid, row[PICTURE_WIDE] // grid
    for i in range(row[INPUTS]):
        seen[i] = 0.0
    for i in range(active):
        channel = actives[i]
        for y in range(grid * high):
            at = row[MAPS_AT] + (channel * row[PADDED_HIGH] + y + row[TOP]) * row[PADDED_WIDE] + row[LEFT]
            cell = (channel * grid + y // high) * grid
            for column in range(grid):
                here, total = numbers[at + column * wide : at + (column + 1) * wide], np.float32(0.0)
                for x in range(wide):
                    total += here[x]
                seen[cell + column] += total
    for i in range(row[INPUTS]):
        seen[i] /= np.float32(high * wide)


@njit(cache=True, fastmath=FAST)
def _compute(
    row: np.ndarray, after: np.ndarray, active: int, count: int, numbers: np.ndarray, ints: np.ndarray
) -> bool:
    """The ``count`` chosen channels, two at a time, into the next layer's place. Returns whether any overflows."""
    chosen, size = ints[ints[CHOSEN_AT] :], row[HIGH] * row[PADDED_WIDE]
    if after[KERNEL_HIGH] == 0 and count < row[UNITS]:
        inputs = numbers[ints[INPUT_AT] : ints[INPUT_AT] + row[UNITS] * row[POOLED_HIGH] * row[POOLED_WIDE]]
        inputs[:] = 0.0
    one = numbers[ints[CONVOLVED_AT] : ints[CONVOLVED_AT] + size]
    other = numbers[ints[CONVOLVED_AT] + size : ints[CONVOLVED_AT] + 2 * size]
    bad = 0
    for i in range(0, count, 2):
        # The last of an odd number is computed with itself.
        left, right = chosen[i], chosen[min(i + 1, count - 1)]
        one[:] = numbers[row[BIAS_AT] + left]
        other[:] = numbers[row[BIAS_AT] + right]
        _add_up(row, active, left, right, one, other, numbers, ints)
        for place in range(size):
            bad += not finite(one[place])
        _pool(row, after, left, one, numbers, ints)
        if right != left:
            _pool(row, after, right, other, numbers, ints)
    return bad > 0


@njit(cache=True, fastmath=FAST)
def _add_up(
    row: np.ndarray,
    active: int,
    left: int,
    right: int,
    one: np.ndarray,
    other: np.ndarray,
    numbers: np.ndarray,
    ints: np.ndarray,
) -> None:
    """Add to ``one`` and ``other`` what two channels make of the active input channels."""
    channels, area = row[CHANNELS], row[KERNEL_HIGH] * row[KERNEL_WIDE]
    picture, actives = row[PADDED_HIGH] * row[PADDED_WIDE], ints[ints[ACTIVE_AT] :]
    for i in range(active):
        channel = actives[i]
        at = row[MAPS_AT] + channel * picture
        left_at = row[KERNELS_AT] + (left * channels + channel) * area
        right_at = row[KERNELS_AT] + (right * channels + channel) * area
        kernel, second = numbers[left_at : left_at + area], numbers[right_at : right_at + area]
        maps = numbers[at : at + picture]
        if row[DOWN] > 1 or row[ACROSS] > 1:
            _strided(row, kernel, second, one, other, maps)
        elif row[KERNEL_HIGH] == 3 and row[KERNEL_WIDE] == 3:
            _three_by_three(row, kernel, second, one, other, maps)
        else:
            _sliding(row, kernel, second, one, other, maps)


@njit(cache=True, fastmath=FAST)
def _three_by_three(
    row: np.ndarray, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """All nine products of a position at once; sums lie as wide as the padded picture, so that a pass is one long loop
    whose last columns nobody reads."""
    wide, length = row[PADDED_WIDE], (row[HIGH] - 1) * row[PADDED_WIDE] + row[WIDE]
    k0, k1, k2, k3, k4, k5, k6, k7, k8 = _nine(kernel)
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = _nine(second)
    m0, m1, m2 = maps[:length], maps[1 : 1 + length], maps[2 : 2 + length]
    m3, m4, m5 = maps[wide : wide + length], maps[wide + 1 : wide + 1 + length], maps[wide + 2 : wide + 2 + length]
    twice = 2 * wide
    m6, m7, m8 = (
        maps[twice : twice + length],
        maps[twice + 1 : twice + 1 + length],
        maps[twice + 2 : twice + 2 + length],
    )
    first, last = one[:length], other[:length]
    for i in range(length):
        v0, v1, v2, v3, v4, v5, v6, v7, v8 = m0[i], m1[i], m2[i], m3[i], m4[i], m5[i], m6[i], m7[i], m8[i]
        first[i] += k0 * v0 + k1 * v1 + k2 * v2 + k3 * v3 + k4 * v4 + k5 * v5 + k6 * v6 + k7 * v7 + k8 * v8
        last[i] += s0 * v0 + s1 * v1 + s2 * v2 + s3 * v3 + s4 * v4 + s5 * v5 + s6 * v6 + s7 * v7 + s8 * v8


@njit(cache=True, forceinline=True)
def _nine(k: np.ndarray) -> Any:
    return k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7], k[8]


@njit(cache=True, fastmath=FAST)
def _sliding(
    row: np.ndarray, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """The same for a kernel of any size: a pass per weight."""
    length = (row[HIGH] - 1) * row[PADDED_WIDE] + row[WIDE]
    first, last = one[:length], other[:length]
    for y in range(row[KERNEL_HIGH]):
        for x in range(row[KERNEL_WIDE]):
            at = y * row[PADDED_WIDE] + x
            values, left, right = (
                maps[at : at + length],
                kernel[y * row[KERNEL_WIDE] + x],
                second[y * row[KERNEL_WIDE] + x],
            )
            for i in range(length):
                first[i] += left * values[i]
                last[i] += right * values[i]


@njit(cache=True, fastmath=FAST)
def _strided(
    row: np.ndarray, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """The same for strides beyond 1: a pass per weight and line."""
    wide, across = row[PADDED_WIDE], row[ACROSS]
    for y in range(row[KERNEL_HIGH]):
        for x in range(row[KERNEL_WIDE]):
            left, right = kernel[y * row[KERNEL_WIDE] + x], second[y * row[KERNEL_WIDE] + x]
            for line in range(row[HIGH]):
                first = one[line * wide : line * wide + row[WIDE]]
                last = other[line * wide : line * wide + row[WIDE]]
                values = maps[(line * row[DOWN] + y) * wide + x :]
                for i in range(len(first)):
                    first[i] += left * values[i * across]
                    last[i] += right * values[i * across]


@njit(cache=True, fastmath=FAST)
def _pool(
    row: np.ndarray, after: np.ndarray, channel: int, sums: np.ndarray, numbers: np.ndarray, ints: np.ndarray
) -> None:
    """ReLU and pooling of one channel, into its place in the next layer."""
    high, wide, pool, pitch = row[POOLED_HIGH], row[POOLED_WIDE], row[POOL], row[PADDED_WIDE]
    target, step = ints[INPUT_AT] + channel * high * wide, wide
    if after[KERNEL_HIGH] > 0:
        step = after[PADDED_WIDE]
        target = after[MAPS_AT] + (channel * after[PADDED_HIGH] + after[TOP]) * step + after[LEFT]
    for y in range(high):
        line = numbers[target + y * step : target + y * step + wide]
        for x in range(wide):
            best = np.float32(0.0)
            for inner in range(pool):
                at = (y * pool + inner) * pitch + x * pool
                for i in range(at, at + pool):
                    best = max(best, sums[i])
            line[x] = best
