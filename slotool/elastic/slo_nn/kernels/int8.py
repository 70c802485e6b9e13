"""Int8 rows against one query of uint8: the nearest centroid, and gathered nodes. See ``layout``.

``row_dots``: four nodes, each a row of whole cache lines, 64 products an instruction. Processors with AVX-512 VNNI have
one instruction for it; elsewhere the compiler is given the same sums in plain vector operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from slotool.compilation import internal_njit
from slotool.elastic.slo_nn.kernels.intrinsics import Layer, header_of, prefetch
from slotool.elastic.slo_nn.kernels.layout import LINE_BYTES, SUMS
from slotool.elastic.slo_nn.mlp import INPUT_STEPS, MIN_SPREAD

LANES, INPUTS_PER_GROUP, ROWS = 16, 4, 4
_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS, _BYTES, _WIDE = ir.VectorType(_INT32, LANES), ir.VectorType(_INT8, 64), ir.VectorType(_INT32, 64)
_FOUR_FLOATS = ir.VectorType(ir.FloatType(), ROWS)

Multiply = Callable[[Any, Any, Any, Any], Any]


def _by_instruction(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    kind = ir.FunctionType(_SUMS, [_SUMS, _SUMS, _SUMS])
    instruction = builder.module.declare_intrinsic("llvm.x86.avx512.vpdpbusd.512", [], kind)
    return builder.call(instruction, [sums, inputs, weights])


def _by_plain_vectors(builder: Any, sums: Any, inputs: Any, weights: Any) -> Any:
    wide_inputs = builder.zext(builder.bitcast(inputs, _BYTES), _WIDE)
    products = builder.mul(wide_inputs, builder.sext(builder.bitcast(weights, _BYTES), _WIDE))
    for part in range(INPUTS_PER_GROUP):
        every_fourth = ir.Constant(_SUMS, [part + INPUTS_PER_GROUP * lane for lane in range(LANES)])
        sums = builder.add(sums, builder.shuffle_vector(products, ir.Constant(_WIDE, ir.Undefined), every_fourth))
    return sums


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any, extent: int) -> Any:
    """Return the address of element ``index``; ``NUMBA_BOUNDSCHECK`` checks it and the ``extent`` − 1 after it."""
    view = context.make_array(kind)(context, builder, array)
    if getattr(config, "BOUNDSCHECK", False):
        last = builder.add(index, _INT64(extent - 1))
        for end in (index, last):
            cgutils.get_item_pointer(context, builder, kind, view, [end], wraparound=False, boundscheck=True)
    return cgutils.get_item_pointer(context, builder, kind, view, [index], wraparound=False)


def _row_dots(multiply: Multiply) -> Any:
    """Set ``sums[at_sum:][4]``, float32, to dot products of a query with four rows of int8.

    The query is ``lines`` · 64 uint8 from byte ``query`` of ``bytes_``, rows begin at the bytes ``a`` to ``d``. Four
    rows, because their sums across a register then share the shuffles; as floats they are exact up to 2^24.
    """

    def declare(
        context: Any, bytes_: Any, query: Any, a: Any, b: Any, c: Any, d: Any, lines: Any, sums: Any, at_sum: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def place(argument: int, index: Any, kind: Any, extent: int) -> Any:
                address = _place(context, builder, signature.args[argument], arguments[argument], index, extent)
                return builder.bitcast(address, kind.as_pointer())

            totals = [cgutils.alloca_once_value(builder, ir.Constant(_SUMS, [0] * LANES)) for _ in range(ROWS)]
            with cgutils.for_range(builder, arguments[6], intp=_INT64) as loop:
                offset = builder.mul(loop.index, _INT64(LINE_BYTES))
                inputs, *rows = (
                    builder.load(place(0, builder.add(start, offset), _SUMS, LINE_BYTES), align=1)
                    for start in arguments[1:6]
                )
                for total, weights in zip(totals, rows, strict=True):
                    builder.store(multiply(builder, builder.load(total), inputs, weights), total)
            sums_of_four = _added_up(builder, [builder.load(total) for total in totals])
            builder.store(
                builder.sitofp(sums_of_four, _FOUR_FLOATS), place(7, arguments[8], _FOUR_FLOATS, ROWS), align=4
            )
            return context.get_dummy_value()

        return types.void(bytes_, query, a, b, c, d, lines, sums, at_sum), generate

    return intrinsic(declare)


def _added_up(builder: Any, totals: list[Any]) -> Any:
    """Return the sum of each of four registers, int32 [4]; halved first within 128-bit quarters, which is fastest."""
    a, b, c, d = totals
    quarters = range(0, LANES, 4)

    def add(first: Any, second: Any, low: list[int], high: list[int]) -> Any:
        masks = (ir.Constant(_SUMS, [q + i for q in quarters for i in lanes]) for lanes in (low, high))
        return builder.add(*(builder.shuffle_vector(first, second, mask) for mask in masks))

    # Numbers from 16 on are lanes of the second register.
    ab, cd = (add(*pair, [0, 16, 1, 17], [2, 18, 3, 19]) for pair in ((a, b), (c, d)))
    whole = add(ab, cd, [0, 1, 16, 17], [2, 3, 18, 19])
    for width in (LANES // 2, LANES // 4):
        lower, upper = (
            ir.Constant(ir.VectorType(_INT32, width), list(range(start, start + width))) for start in (0, width)
        )
        whole = builder.add(builder.shuffle_vector(whole, whole, lower), builder.shuffle_vector(whole, whole, upper))
    return whole


def _native() -> Multiply:
    features = llvmlite.binding.get_host_cpu_features()
    return _by_instruction if features.get("avx512vnni") else _by_plain_vectors


row_dots = _row_dots(_native())
# Reference for tests in plain vector operations.
row_dots_plain = _row_dots(_by_plain_vectors)


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
    """Quantize the layer's inputs to 255 steps, as ``quantization.quantized_inputs``, at ``query_at``.

    Step and least value are stored at ``query_scale_at``.
    """
    header = header_of(ints)
    x, steps = numbers[header.input_at : header.input_at + width], header.query_scale_at
    # Compare bits: non-negative numbers are in order as integers, negative ones backwards and above all.
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
    """Return the one of ``count`` centroids, rows of int8, with the largest scale · c·x + offset for the query."""
    header = header_of(ints)
    scale_at = header.query_scale_at
    if width == USUAL_LINES * LINE_BYTES:
        _sum_centroids(at, count, USUAL_LINES, scale_at + SUMS, numbers, ints, bytes_)
    else:
        _sum_centroids(at, count, lines_of(width), scale_at + SUMS, numbers, ints, bytes_)
    values, step, least = numbers[scale_at + SUMS : scale_at + SUMS + count], numbers[scale_at], numbers[scale_at + 1]
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
    """Gather values for the quantized query, in a pass each for sums of products, values and the best.

    Bytes of the query are unsigned, as the instruction requires; its least value times a row's sum corrects for that.
    It is 0 behind a ReLU, where no sums are laid out.
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
    """Multiply the quantized query with the rows of ``chosen``, of ``lines`` lines each, fetched ahead."""
    header = header_of(ints)
    last, start, stride = len(chosen) - 1, row.int8_at, lines * LINE_BYTES
    for i in range(-AHEAD, len(chosen), ROWS):
        for ahead in range(i + AHEAD, min(i + AHEAD + ROWS, len(chosen))):
            prefetch(numbers, row.int8_scales_at + 2 * chosen[ahead])
            for line in range(lines):
                prefetch(bytes_, start + chosen[ahead] * stride + line * LINE_BYTES)
        if i >= 0:
            # Repeat the last row if fewer than four are left.
            a, b = start + chosen[i] * stride, start + chosen[min(i + 1, last)] * stride
            c, d = start + chosen[min(i + 2, last)] * stride, start + chosen[min(i + 3, last)] * stride
            row_dots(bytes_, header.query_at, a, b, c, d, lines, numbers, target + i)
