"""Int8 rows against one query of uint8: the nearest centroid, and gathered nodes. See ``layout``."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.compilation import internal_njit
from slotool.elastic.slo_nn.kernels.integer_dots import ROWS, row_dots
from slotool.elastic.slo_nn.kernels.intrinsics import Layer, header_of, prefetch
from slotool.elastic.slo_nn.kernels.layout import LINE_BYTES, SUMS
from slotool.elastic.slo_nn.quantization import INPUT_STEPS, MIN_SPREAD

# Sums may be reordered and fused, but NaN must stay NaN: it is how a bad input shows.
FAST = {"reassoc", "contract", "nsz"}
# Rows fetched ahead of the one being read; measured: 8 to 16 are alike.
AHEAD = 12
FLOATS_PER_LINE = 16
# Lines of a row that compiled code is made for: 128 hidden units.
USUAL_LINES = 2
# Above it, read as unsigned, are the bits of numbers below zero.
SIGN = np.uint32(0x80000000)


@internal_njit(forceinline=True)
def lines_of(width: int) -> int:
    return (width + LINE_BYTES - 1) // LINE_BYTES


@internal_njit(fastmath=FAST, forceinline=True)
def insert(value: Any, node: int, keep: int, best: np.ndarray, nodes: np.ndarray) -> None:
    place = keep - 1
    while place > 0 and best[place - 1] < value:
        best[place], nodes[place] = best[place - 1], nodes[place - 1]
        place -= 1
    best[place], nodes[place] = value, node


@internal_njit(fastmath={*FAST, "nnan"})
def _highest(values: np.ndarray) -> Any:
    highest = values[0]
    for i in range(len(values)):
        highest = max(highest, values[i])
    return highest


# No sum of floats is reordered or fused here and in ``nearest``: NumPy finds the very same centroids. Each function
# says so itself, because otherwise it takes the fastmath of the caller that is compiled first.
@internal_njit(fastmath=False)
def quantize_query(width: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray) -> None:
    """The layer's inputs in 255 steps, as ``quantization.quantized_inputs`` has them, at ``query_at``; step and
    least value at ``query_scale_at``."""
    header = header_of(ints)
    x, steps = numbers[header.input_at : header.input_at + width], header.query_scale_at
    # By their bits: numbers that are not negative are in order as whole numbers, the others backwards and above all.
    bits: Any = x.view(np.uint32)
    signed: Any = x.view(np.int32)
    highest, lowest = np.int32(0), np.uint32(0)
    for i in range(len(bits)):
        lowest = max(lowest, bits[i])
    for i in range(len(signed)):
        highest = max(highest, signed[i])
    scratch: Any = numbers[steps : steps + 2].view(np.uint32)
    scratch[0], scratch[1] = np.uint32(highest), lowest if lowest > SIGN else np.uint32(0)
    least = numbers[steps + 1]
    spread = numbers[steps] - least
    per_step = INPUT_STEPS / spread if spread > MIN_SPREAD else np.float32(0)
    # NaN and infinity go into the step, so that outputs show them.
    numbers[steps] = np.float32(0) if spread <= MIN_SPREAD else spread / INPUT_STEPS
    query = bytes_[header.query_at : header.query_at + width]
    for i in range(len(x)):
        query[i] = np.int8(np.int32((x[i] - least) * per_step + np.float32(0.5)))
    bytes_[header.query_at + width : header.query_at + lines_of(width) * LINE_BYTES] = 0


@internal_njit(fastmath=False)
def nearest(
    at: int, steps: int, count: int, width: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> int:
    """Which of ``count`` centroids, rows of int8, has the largest scale · c·x + offset for the quantized query."""
    header = header_of(ints)
    own = header.query_scale_at
    if width == USUAL_LINES * LINE_BYTES:
        _sum_centroids(at, count, USUAL_LINES, own + SUMS, numbers, ints, bytes_)
    else:
        _sum_centroids(at, count, lines_of(width), own + SUMS, numbers, ints, bytes_)
    values, step, least = numbers[own + SUMS : own + SUMS + count], numbers[own], numbers[own + 1]
    scale, offset = numbers[steps : steps + count], numbers[steps + count : steps + 2 * count]
    sums = numbers[steps + 2 * count : steps + 3 * count]
    for c in range(len(values)):
        values[c] = (values[c] * step + least * sums[c]) * scale[c] + offset[c]
    near, highest = 0, _highest(values)
    while near < count - 1 and values[near] < highest:
        near += 1
    return near


@internal_njit(fastmath=False, forceinline=True)
def _sum_centroids(
    at: int, count: int, lines: int, target: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    header = header_of(ints)
    last, stride = count - 1, lines * LINE_BYTES
    for i in range(0, count, ROWS):
        a, b = at + i * stride, at + min(i + 1, last) * stride
        c, d = at + min(i + 2, last) * stride, at + min(i + 3, last) * stride
        row_dots(bytes_, header.query_at, a, b, c, d, lines, numbers, target + i)


@internal_njit(fastmath=FAST)
def gather_int8(
    row: Layer, start: int, stop: int, keep: int, numbers: np.ndarray, ints: np.ndarray, bytes_: np.ndarray
) -> None:
    """Of the quantized query. One pass each for sums of products, values and the best.

    Bytes of the query are not signed, as the instruction wants them; its least value times the sum of a row makes up
    for it. That is 0 behind a ReLU, where no sums are laid out.
    """
    header = header_of(ints)
    chosen = ints[header.chosen_at + start : header.chosen_at + stop]
    output = numbers[header.output_at + start : header.output_at + stop]
    if row.inputs == USUAL_LINES * LINE_BYTES:
        _sum_rows(row, chosen, header.output_at + start, USUAL_LINES, numbers, ints, bytes_)
    else:
        _sum_rows(row, chosen, header.output_at + start, lines_of(row.inputs), numbers, ints, bytes_)
    step, steps = numbers[header.query_scale_at], numbers[row.int8_scales_at : row.int8_scales_at + 2 * row.units]
    for i in range(len(chosen)):
        output[i] = output[i] * step * steps[2 * chosen[i]] + steps[2 * chosen[i] + 1]
    if row.int8_sums_at >= 0:
        least, sums = numbers[header.query_scale_at + 1], numbers[row.int8_sums_at : row.int8_sums_at + row.units]
        for i in range(len(chosen)):
            output[i] += least * sums[chosen[i]]
    if keep:
        best, nodes = numbers[header.best_at :], ints[header.best_nodes_at :]
        for first in range(0, len(output), FLOATS_PER_LINE):
            some = output[first : first + FLOATS_PER_LINE]
            if _highest(some) > best[keep - 1]:
                for i in range(len(some)):
                    if some[i] > best[keep - 1]:
                        insert(some[i], chosen[first + i], keep, best, nodes)


@internal_njit(fastmath=False, forceinline=True)
def _sum_rows(
    row: Layer, chosen: np.ndarray, target: int, lines: int, numbers: np.ndarray, ints: np.ndarray, bytes_: Any
) -> None:
    """Products of the quantized query with the rows of ``chosen``, of so many lines each, fetched ahead."""
    header = header_of(ints)
    last, start, stride = len(chosen) - 1, row.int8_at, lines * LINE_BYTES
    for i in range(-AHEAD, len(chosen), ROWS):
        for ahead in range(i + AHEAD, min(i + AHEAD + ROWS, len(chosen))):
            prefetch(numbers, row.int8_scales_at + 2 * chosen[ahead])
            for line in range(lines):
                prefetch(bytes_, start + chosen[ahead] * stride + line * LINE_BYTES)
        if i >= 0:
            # Where four are not left the last comes again.
            a, b = start + chosen[i] * stride, start + chosen[min(i + 1, last)] * stride
            c, d = start + chosen[min(i + 2, last)] * stride, start + chosen[min(i + 3, last)] * stride
            row_dots(bytes_, header.query_at, a, b, c, d, lines, numbers, target + i)
