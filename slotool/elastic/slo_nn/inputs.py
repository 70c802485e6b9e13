"""Inputs as compiled code takes them, contiguous float32 or CSR, and the errors for those that cannot be answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.errors import InputError


def row_values(x: Any, row: int) -> np.ndarray:
    """Return the values of row ``row``: all, or the stored ones of CSR."""
    return x[row] if isinstance(x, np.ndarray) else x.data[x.indptr[row] : x.indptr[row + 1]]


def not_finite(x: Any, row: int) -> InputError:
    """Return the error for a row without an answer, almost always because it is not finite."""
    if not isinstance(x, np.ndarray):
        features = x.indices[x.indptr[row] : x.indptr[row + 1]]
        if len(features) > x.shape[1]:
            return InputError(
                f"input {row} cannot be answered: {len(features)} entries for {x.shape[1]} features; "
                "sum those that are named twice, by sum_duplicates()"
            )
        if len(features) and not 0 <= features.min() <= features.max() < x.shape[1]:
            return InputError(f"input {row} cannot be answered: it names features beyond 0 to {x.shape[1] - 1}")
    finite = np.isfinite(row_values(x, row)).all()
    what = "its values overflow the first layer" if finite else "it holds NaN or infinite values"
    return InputError(f"input {row} cannot be answered: {what}")


def check_rows(x: Any) -> None:
    """Raise ``InputError`` for row pointers in disorder, and the first row with NaN, infinity or unknown features.

    ``x``: float32 [n, inputs] or CSR. For paths that no compiled call checks.
    """
    if is_sound(x):
        return
    if isinstance(x, np.ndarray):
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    elif not _in_order(x):
        raise InputError(f"a sparse input of {dims(x.shape)} whose row pointers are not in order")
    else:
        lengths = np.diff(x.indptr)
        entries = ~np.isfinite(x.data) | (x.indices < 0) | (x.indices >= x.shape[1])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        bad = np.union1d(rows[entries[: x.indptr[-1]]], np.flatnonzero(lengths > x.shape[1]))
    raise not_finite(x, int(bad[0]))


def is_sound(x: Any) -> bool:
    """True if ``check_rows`` finds nothing, by few calls of NumPy: a batch is often one row."""
    if isinstance(x, np.ndarray):
        return bool(np.isfinite(x).all())
    if not _in_order(x):
        return False
    features = x.indices[: x.indptr[-1]]
    if not len(features):
        return True
    return bool(
        features.min() >= 0
        and features.max() < x.shape[1]
        and np.isfinite(x.data[: x.indptr[-1]]).all()
        and np.diff(x.indptr).max() <= x.shape[1]
    )


def number(value: float, what: str) -> float:
    if math.isnan(value):
        raise InputError(f"the {what} is not a number")
    return float(value)


def dims(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


# As objects, because NumPy looks up types at every call.
_FLOAT, _INTEGER = np.dtype(np.float32), np.dtype(np.int32)
# Kinds of numbers that are taken, all as float32: whole ones, with a sign or without, truth values, fractions.
NUMBERS = "iubf"


def dense_rows(name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return ``x`` [n, *shape] as float32 [n, inputs], contiguous; its own memory where that is so already.

    Raises ``InputError`` for another shape, and for what are no numbers.
    """
    if x.shape[1:] != shape:
        raise _other_shape(name, shape, x.shape)
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise InputError(f"{name} takes arrays without masked values; fill them first, by x.filled(...)")
    if x.dtype.kind not in NUMBERS:
        raise InputError(f"{name} takes numbers, not {x.dtype}")
    rows = np.ascontiguousarray(x, _FLOAT)
    return rows if len(shape) == 1 else rows.reshape(len(x), math.prod(shape))


def sparse_rows(name: str, x: Any, width: int) -> Any:
    """Return ``x`` as CSR [n, width] of float32 values, int32 features and int32 row pointers.

    Raises ``InputError`` for another shape, for what are no numbers, and for parts that do not belong together. Row
    pointers, and whether each feature is one that ``name`` has, are left to the compiled calls, and elsewhere to
    ``check_rows``.
    """
    shape = x.shape
    if len(shape) != 2 or shape[1] != width:
        raise _other_shape(name, (width,), shape)
    csr = x.tocsr()
    indptr, indices, data = csr.indptr, csr.indices, csr.data
    whole = len(indptr) == shape[0] + 1 and len(indices) == len(data)
    if whole and data.dtype == _FLOAT and indices.dtype == _INTEGER and indptr.dtype == _INTEGER:
        return csr
    if not whole or not _in_order(csr):
        raise InputError(f"{name}: a sparse input of {dims(csr.shape)} whose parts do not belong together")
    if data.dtype.kind not in NUMBERS:
        raise InputError(f"{name} takes numbers, not {data.dtype}")
    if indices.dtype.kind not in "iu":
        raise InputError(f"{name}: the features of a sparse input are numbered by {indices.dtype}, not by integers")
    # Before they are made smaller, and so others.
    if len(indices) and not 0 <= indices.min() <= indices.max() < width:
        raise InputError(f"{name} has features 0 to {width - 1}, no others")
    if len(indices) > np.iinfo(_INTEGER).max:
        raise InputError(f"{name}: {len(indices):,} entries are too many for one call; split the batch")
    copy = type(csr)(csr.shape, dtype=np.float32)
    copy.data, copy.indices, copy.indptr = data.astype(_FLOAT), indices.astype(_INTEGER), indptr.astype(_INTEGER)
    return copy


def _other_shape(name: str, expected: Sequence[int], shape: Sequence[int]) -> InputError:
    return InputError(f"{name} takes inputs [batch, {dims(expected)}], not [{dims(shape)}]")


def _in_order(csr: Any) -> bool:
    """True if its row pointers begin at 0, never decrease, and end within its entries."""
    indptr = csr.indptr
    if indptr.dtype.kind not in "iu" or indptr[0] != 0 or indptr[-1] > len(csr.indices):
        return False
    return bool((np.diff(indptr) >= 0).all())
