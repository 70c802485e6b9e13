"""Inputs as compiled code takes them: contiguous float32, or CSR of float32 values and int32 features."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.elastic.activators.input_errors import dims
from slotool.errors import InputError

# Kinds of numbers that are taken, all as float32: whole ones, with a sign or without, truth values, fractions.
NUMBERS = "iubf"


def dense_rows(name: str, x: np.ndarray, width: int) -> np.ndarray:
    """``x`` as float32 [n, width], contiguous; its own memory where that is so already.

    Raises ``InputError`` for what are no numbers.
    """
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise InputError(f"{name} takes arrays without masked values; fill them first, by x.filled(...)")
    if x.dtype.kind not in NUMBERS:
        raise InputError(f"{name} takes numbers, not {x.dtype}")
    return np.ascontiguousarray(x, dtype=np.float32).reshape(len(x), width)


def sparse_rows(name: str, x: Any, width: int) -> Any:
    """``x`` as CSR [n, width] of float32 values and int32 features.

    Raises ``InputError`` for what are no numbers, and for parts and row pointers that do not belong together. Whether
    each feature is one that ``name`` has is left to the compiled calls, and elsewhere to ``check_rows``.
    """
    csr = x.tocsr()
    if len(csr.indptr) != csr.shape[0] + 1 or len(csr.indices) != len(csr.data) or not _in_order(csr):
        raise InputError(f"{name}: a sparse input of {dims(csr.shape)} whose parts do not belong together")
    if csr.data.dtype == np.float32 and csr.indices.dtype == np.int32:
        return csr
    if csr.data.dtype.kind not in NUMBERS:
        raise InputError(f"{name} takes numbers, not {csr.data.dtype}")
    if csr.indices.dtype.kind not in "iu":
        raise InputError(f"{name}: the features of a sparse input are numbered by {csr.indices.dtype}, not by integers")
    # Before they are made smaller, and so others.
    if len(csr.indices) and not 0 <= csr.indices.min() <= csr.indices.max() < width:
        raise InputError(f"{name} has features 0 to {width - 1}, no others")
    found = type(csr)(csr.shape, dtype=np.float32)
    found.data, found.indices, found.indptr = csr.data.astype(np.float32), csr.indices.astype(np.int32), csr.indptr
    return found


def _in_order(csr: Any) -> bool:
    """Whether its row pointers begin at 0, never decrease, and end within its entries."""
    indptr = csr.indptr
    if indptr.dtype.kind not in "iu" or indptr[0] != 0 or indptr[-1] > len(csr.indices):
        return False
    return bool(indptr[1] >= 0 if len(indptr) == 2 else (np.diff(indptr) >= 0).all())
