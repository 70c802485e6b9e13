"""Dot products of uint8 inputs with int8 weights in compiled code: four inputs and sixteen nodes an instruction.

Weights lie in groups of four inputs, [groups, nodes, 4]: a group's four bytes of every node side by side, so that an
input group that is all zeros is never read. Processors with AVX-512 VNNI have one instruction for it; elsewhere the
compiler is given the same sums in plain vector operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES, INPUTS_PER_GROUP = 16, 4
# Nodes are padded to one register of sums, or to multiples of as many as one pass keeps.
MANY = 8
_INT8, _INT32, _INT64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS, _BYTES, _WIDE = ir.VectorType(_INT32, LANES), ir.VectorType(_INT8, 64), ir.VectorType(_INT32, 64)

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


def _dots(registers: int, multiply: Multiply) -> Any:
    """``sums[at_sum:][16 · registers]`` of the ``count`` input groups that ``listed`` int64 names.

    ``weights`` int8, whose groups lie ``stride`` bytes apart, from byte ``at``; ``groups`` int32, four uint8 inputs
    each; ``sums`` int32.
    """

    def declare(
        context: Any, weights: Any, at: Any, stride: Any, groups: Any, listed: Any, count: Any, sums: Any, at_sum: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def place(argument: int, index: Any) -> Any:
                kind = signature.args[argument]
                view = context.make_array(kind)(context, builder, arguments[argument])
                return cgutils.get_item_pointer(context, builder, kind, view, [index], wraparound=False)

            zero, nothing = ir.Constant(_SUMS, [0] * LANES), ir.Constant(_SUMS, ir.Undefined)
            totals = [cgutils.alloca_once_value(builder, zero) for _ in range(registers)]
            with cgutils.for_range(builder, arguments[5], intp=_INT64) as loop:
                group = builder.load(place(4, loop.index))
                four = builder.insert_element(nothing, builder.load(place(3, group)), _INT32(0))
                inputs = builder.shuffle_vector(four, nothing, zero)
                start = builder.add(arguments[1], builder.mul(group, arguments[2]))
                for register, total in enumerate(totals):
                    address = place(0, builder.add(start, _INT64(4 * LANES * register)))
                    own = builder.load(builder.bitcast(address, _SUMS.as_pointer()), align=1)
                    builder.store(multiply(builder, builder.load(total), inputs, own), total)
            for register, total in enumerate(totals):
                address = place(6, builder.add(arguments[7], _INT64(LANES * register)))
                builder.store(builder.load(total), builder.bitcast(address, _SUMS.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(weights, at, stride, groups, listed, count, sums, at_sum), generate

    return intrinsic(declare)


def _native() -> Multiply:
    features = llvmlite.binding.get_host_cpu_features()
    return _by_instruction if features.get("avx512vnni") else _by_plain_vectors


dots_many, dots_few = _dots(MANY, _native()), _dots(1, _native())
# The same in plain vector operations, for the tests to hold against.
dots_few_plain = _dots(1, _by_plain_vectors)
