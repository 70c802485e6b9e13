"""One convolutional layer of one query: bucket and list from its cells, then the chosen channels. See ``layout``.

Each layer has its padded input images in a workspace of its own, whose border stays zero. Only channels that were
computed are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import njit
from slotool.elastic.activators.kernels.int8 import FAST
from slotool.elastic.activators.kernels.layer import (
    confidence,
    find_buckets,
    finite,
    hash_nodes,
    list_inputs,
    pick,
    reads_columns,
)
from slotool.elastic.activators.kernels.layout import NONE, NOT_FINITE
from slotool.elastic.activators.kernels.records import Layer, header_of


@njit(cache=True, fastmath=FAST)
def convolve(
    row: Layer,
    after: Layer,
    first: bool,
    active: int,
    point: int,
    threshold: float,
    numbers: np.ndarray,
    ints: np.ndarray,
    ids: np.ndarray,
    bytes_: np.ndarray,
) -> tuple[int, int]:
    """From this layer's images to the next layer's images or inputs.

    ``active``: how many of its input channels were computed, listed in ACTIVE; ``first``: all of them, as the query
    lies in INPUT. Returns the point (or NOT_FINITE) and, for the next layer, how many channels were computed, or what
    ``rectify`` would say.
    """
    header = header_of(ints)
    if first:
        if not _enter(row, numbers, ints):
            return NOT_FINITE, 0
        active = row.channels
    units, chosen = row.units, ints[header.chosen_at :]
    count = units
    if row.kind != NONE and point != header.shares:
        _see(row, active, numbers, ints)
        hash_nodes(row, False, numbers, ints, ids)
        find_buckets(row, numbers, ints, ids, bytes_)
        if point < 0:
            point = 0
            while point < header.shares and confidence(row, point, numbers, ints) < threshold:
                point += 1
        if point < header.shares:
            count = ints[row.counts_at + point]
            pick(row, 0, count, ints, ids, bytes_)
    if count == units:
        for channel in range(units):
            chosen[channel] = channel
    overflown = _compute(row, after, active, count, numbers, ints)
    if first and overflown:
        return NOT_FINITE, 0
    if after.kernel_height == 0:
        width = units * row.pooled_height * row.pooled_width
        return point, list_inputs(width, numbers, ints) if reads_columns(after, point, ints) else -1
    actives = ints[header.active_at :]
    for i in range(count):
        actives[i] = chosen[i]
    return point, count


@njit(cache=True, fastmath=FAST)
def _enter(row: Layer, numbers: np.ndarray, ints: np.ndarray) -> bool:
    """Bring the query from INPUT to its padded place, and list all its channels; False when a value is not finite."""
    header = header_of(ints)
    height, width = row.image_height, row.image_width
    actives, bad = ints[header.active_at :], 0
    for channel in range(row.channels):
        actives[channel] = channel
        for y in range(height):
            source = header.input_at + (channel * height + y) * width
            target = row.maps_at + (channel * row.padded_height + y + row.pad_top) * row.padded_width + row.pad_left
            here, there = numbers[source : source + width], numbers[target : target + width]
            for x in range(width):
                bad += not finite(here[x])
                there[x] = here[x]
    return bad == 0


@njit(cache=True, fastmath=FAST)
def _see(row: Layer, active: int, numbers: np.ndarray, ints: np.ndarray) -> None:
    """What the ranker has of the images, into INPUT: means over the grid's cells, 0 of channels not computed."""
    header = header_of(ints)
    grid, seen, actives = row.grid, numbers[header.input_at :], ints[header.active_at :]
    height, width = row.image_height // grid, row.image_width // grid
    for i in range(row.inputs):
        seen[i] = 0.0
    for i in range(active):
        channel = actives[i]
        for y in range(grid * height):
            at = row.maps_at + (channel * row.padded_height + y + row.pad_top) * row.padded_width + row.pad_left
            cell = (channel * grid + y // height) * grid
            for column in range(grid):
                here, total = numbers[at + column * width : at + (column + 1) * width], np.float32(0.0)
                for x in range(width):
                    total += here[x]
                seen[cell + column] += total
    for i in range(row.inputs):
        seen[i] /= np.float32(height * width)


@njit(cache=True, fastmath=FAST)
def _compute(row: Layer, after: Layer, active: int, count: int, numbers: np.ndarray, ints: np.ndarray) -> bool:
    """The ``count`` chosen channels, two at a time, into the next layer's place. Returns whether any overflows."""
    header = header_of(ints)
    chosen, size = ints[header.chosen_at :], row.conv_height * row.padded_width
    if after.kernel_height == 0 and count < row.units:
        inputs = numbers[header.input_at : header.input_at + row.units * row.pooled_height * row.pooled_width]
        inputs[:] = 0.0
    one = numbers[header.convolved_at : header.convolved_at + size]
    other = numbers[header.convolved_at + size : header.convolved_at + 2 * size]
    bad = 0
    for i in range(0, count, 2):
        # The last of an odd number is computed with itself.
        left, right = chosen[i], chosen[min(i + 1, count - 1)]
        one[:] = numbers[row.bias_at + left]
        other[:] = numbers[row.bias_at + right]
        _add_up(row, active, left, right, one, other, numbers, ints)
        for place in range(size):
            bad += not finite(one[place])
        _pool(row, after, left, one, numbers, ints)
        if right != left:
            _pool(row, after, right, other, numbers, ints)
    return bad > 0


@njit(cache=True, fastmath=FAST)
def _add_up(
    row: Layer,
    active: int,
    left: int,
    right: int,
    one: np.ndarray,
    other: np.ndarray,
    numbers: np.ndarray,
    ints: np.ndarray,
) -> None:
    """Add to ``one`` and ``other`` what two channels make of the active input channels."""
    header = header_of(ints)
    channels, area = row.channels, row.kernel_height * row.kernel_width
    image, actives = row.padded_height * row.padded_width, ints[header.active_at :]
    for i in range(active):
        channel = actives[i]
        at = row.maps_at + channel * image
        left_at = row.kernels_at + (left * channels + channel) * area
        right_at = row.kernels_at + (right * channels + channel) * area
        kernel, second = numbers[left_at : left_at + area], numbers[right_at : right_at + area]
        maps = numbers[at : at + image]
        if row.stride_height > 1 or row.stride_width > 1:
            _strided(row, kernel, second, one, other, maps)
        elif row.kernel_height == 3 and row.kernel_width == 3:
            _three_by_three(row, kernel, second, one, other, maps)
        else:
            _sliding(row, kernel, second, one, other, maps)


@njit(cache=True, fastmath=FAST)
def _three_by_three(
    row: Layer, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """All nine products of a position at once; sums lie as wide as the padded image, so that a pass is one long loop
    whose last columns nobody reads."""
    width, length = row.padded_width, (row.conv_height - 1) * row.padded_width + row.conv_width
    k0, k1, k2, k3, k4, k5, k6, k7, k8 = _nine(kernel)
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = _nine(second)
    m0, m1, m2 = maps[:length], maps[1 : 1 + length], maps[2 : 2 + length]
    m3, m4, m5 = (
        maps[width : width + length],
        maps[width + 1 : width + 1 + length],
        maps[width + 2 : width + 2 + length],
    )
    twice = 2 * width
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
    row: Layer, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """The same for a kernel of any size: a pass per weight."""
    length = (row.conv_height - 1) * row.padded_width + row.conv_width
    first, last = one[:length], other[:length]
    for y in range(row.kernel_height):
        for x in range(row.kernel_width):
            at = y * row.padded_width + x
            values, left, right = (
                maps[at : at + length],
                kernel[y * row.kernel_width + x],
                second[y * row.kernel_width + x],
            )
            for i in range(length):
                first[i] += left * values[i]
                last[i] += right * values[i]


@njit(cache=True, fastmath=FAST)
def _strided(
    row: Layer, kernel: np.ndarray, second: np.ndarray, one: np.ndarray, other: np.ndarray, maps: np.ndarray
) -> None:
    """The same for strides beyond 1: a pass per weight and line."""
    width, across = row.padded_width, row.stride_width
    for y in range(row.kernel_height):
        for x in range(row.kernel_width):
            left, right = kernel[y * row.kernel_width + x], second[y * row.kernel_width + x]
            for line in range(row.conv_height):
                first = one[line * width : line * width + row.conv_width]
                last = other[line * width : line * width + row.conv_width]
                values = maps[(line * row.stride_height + y) * width + x :]
                for i in range(len(first)):
                    first[i] += left * values[i * across]
                    last[i] += right * values[i * across]


@njit(cache=True, fastmath=FAST)
def _pool(row: Layer, after: Layer, channel: int, sums: np.ndarray, numbers: np.ndarray, ints: np.ndarray) -> None:
    """ReLU and pooling of one channel, into its place in the next layer."""
    header = header_of(ints)
    height, width, pool, pitch = row.pooled_height, row.pooled_width, row.pool, row.padded_width
    target, step = header.input_at + channel * height * width, width
    if after.kernel_height > 0:
        step = after.padded_width
        target = after.maps_at + (channel * after.padded_height + after.pad_top) * step + after.pad_left
    for y in range(height):
        line = numbers[target + y * step : target + y * step + width]
        for x in range(width):
            best = np.float32(0.0)
            for inner in range(pool):
                at = (y * pool + inner) * pitch + x * pool
                for i in range(at, at + pool):
                    best = max(best, sums[i])
            line[x] = best
