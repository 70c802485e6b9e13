"""Dot products of uint8 inputs with int8 weights in compiled code, 64 products an instruction.

``row_dots``: four nodes, each a row of whole cache lines. Processors with AVX-512 VNNI have one instruction for it;
elsewhere the compiler is given the same sums in plain vector operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES, INPUTS_PER_GROUP, LINE_BYTES, ROWS = 16, 4, 64, 4
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
    """The address of element ``index``; under ``NUMBA_BOUNDSCHECK`` it and the ``extent`` − 1 behind it are checked."""
    view = context.make_array(kind)(context, builder, array)
    if getattr(config, "BOUNDSCHECK", False):
        last = builder.add(index, _INT64(extent - 1))
        for end in (index, last):
            cgutils.get_item_pointer(context, builder, kind, view, [end], wraparound=False, boundscheck=True)
    return cgutils.get_item_pointer(context, builder, kind, view, [index], wraparound=False)


def _row_dots(multiply: Multiply) -> Any:
    """Into ``sums[at_sum:][4]``, float32: the dot products of ``lines`` · 64 uint8 from byte ``query`` of ``bytes_``
    with as many int8 from each of the bytes ``a`` to ``d``.

    Four rows, because their sums across a register then share the shuffles; as floats they are exact up to 2^24.
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
            found = _added_up(builder, [builder.load(total) for total in totals])
            builder.store(builder.sitofp(found, _FOUR_FLOATS), place(7, arguments[8], _FOUR_FLOATS, ROWS), align=4)
            return context.get_dummy_value()

        return types.void(bytes_, query, a, b, c, d, lines, sums, at_sum), generate

    return intrinsic(declare)


def _added_up(builder: Any, totals: list[Any]) -> Any:
    """int32 [4]: the sum of each of four registers; halved first within quarters of 128 bits, which is quickest."""
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
# The same in plain vector operations, for the tests to hold against.
row_dots_plain = _row_dots(_by_plain_vectors)
