"""The records of ``layout`` in compiled code, read in place from an int64 array: header, layers, handle.

To compiled code a record is an address: passing one costs nothing, and reading a field is one load.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype
from numba.core import cgutils
from numba.extending import intrinsic

from slotool.compilation import internal_njit
from slotool.elastic.activators.kernels import layout

# Types of arguments, for a reader: to NumPy they are records, to a type checker anything.
Header = Any
Layer = Any
Handle = Any

LAYER_SIZE, HEADER_SIZE = layout.LAYER_SIZE, layout.HEADER_SIZE


def _record(dtype: np.dtype) -> Any:
    """A function of compiled code: the record of ``dtype`` that begins at an element of an int64 array."""
    kind = from_dtype(dtype)

    def declare(typing_context: Any, array: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            view = context.make_array(signature.args[0])(context, builder, arguments[0])
            found = cgutils.get_item_pointer(
                context, builder, signature.args[0], view, [arguments[1]], wraparound=False
            )
            return builder.bitcast(found, context.get_value_type(kind))

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
