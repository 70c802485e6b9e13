"""Extensions of Numba: records of ``layout`` read in place, cache-line prefetch, arrays by address, the thread.

To compiled code a record is an address: passing one costs nothing, and reading a field is one load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic

from slotool.compilation import internal_njit
from slotool.elastic.slo_nn.kernels import layout

# Types of arguments, for a reader: to NumPy they are records, to a type checker anything.
Header = Any
Layer = Any
Handle = Any

LAYER_SIZE, HEADER_SIZE = layout.LAYER_SIZE, layout.HEADER_SIZE


def _record(dtype: np.dtype) -> Any:
    """Return a function of compiled code: the record of ``dtype`` that begins at an element of an int64 array."""
    kind = from_dtype(dtype)

    def declare(typing_context: Any, array: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, arguments[0])
            item = cgutils.get_item_pointer(context, builder, signature.args[0], view, [arguments[1]], wraparound=False)
            return builder.bitcast(item, context.get_value_type(kind))

        return kind(array, at), generate

    return intrinsic(declare)


_header, _layer, _handle = _record(layout.HEADER), _record(layout.LAYER), _record(layout.HANDLE)


@internal_njit(forceinline=True)
def header_of(ints: np.ndarray) -> Header:
    return _header(ints, 0)


@internal_njit(forceinline=True)
def layer_of(ints: np.ndarray, at: int) -> Layer:
    return _layer(ints, HEADER_SIZE + at * LAYER_SIZE)


@internal_njit(forceinline=True)
def handle_of(handle: np.ndarray) -> Handle:
    return _handle(handle, 0)


READ, KEEP_IN_ALL_CACHES, DATA = 0, 3, 1


def _prefetch(typing_context: Any, array: Any, at: Any) -> Any:
    """Fetch the cache line of element ``at`` of a one-dimensional ``array``; it may lie past the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        element = cgutils.get_item_pointer(context, builder, signature.args[0], view, [arguments[1]], wraparound=False)
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [address], ir.FunctionType(ir.VoidType(), [address, number, number, number])
        )
        builder.call(hint, [builder.bitcast(element, address), number(READ), number(KEEP_IN_ALL_CACHES), number(DATA)])
        return context.get_dummy_value()

    return types.void(array, at), generate


def _pointer(typing_context: Any, address: Any, item: Any) -> Any:
    """Return the int64 ``address`` as a pointer to items of the type of the scalar ``item``, for ``numba.carray``."""
    kind = types.CPointer(item)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, item), generate


def _thread(typing_context: Any) -> Any:
    """Return ``threading.get_ident()``, which from Python costs 50 ns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "PyThread_get_thread_ident"), [])

    return types.int64(), generate


# Without these types a checker would ask for the context that Numba passes by itself.
prefetch: Any = intrinsic(_prefetch)
pointer: Any = intrinsic(_pointer)
thread: Any = intrinsic(_thread)


@internal_njit(forceinline=True)
def owned(handle: np.ndarray, field: int) -> bool:
    """True if this thread made the first call: another one could overwrite an answer before it is read."""
    current = thread()
    if handle[field] == 0:
        handle[field] = current
    return handle[field] == current
