"""What compiled code needs beyond Numba's own: a hint to fetch a cache line, arrays found by their address, and which
thread it runs in."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from slotool.compilation import internal_njit

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
    """The int64 ``address`` as a pointer to items of the type of the scalar ``item``, for ``numba.carray``."""
    kind = types.CPointer(item)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(address, item), generate


def _thread(typing_context: Any) -> Any:
    """``threading.get_ident()``, which from Python costs 50 ns."""

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
    """Whether this thread made the first call: another one could overwrite an answer before it is read."""
    own = thread()
    if handle[field] == 0:
        handle[field] = own
    is_own: bool = handle[field] == own
    return is_own
