"""What an SLO-NN says to inputs and targets that it cannot answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.errors import InputError


def row_values(x: Any, row: int) -> np.ndarray:
    """What row ``row`` holds: all of it, or of CSR what is stored."""
    values: np.ndarray = x[row] if isinstance(x, np.ndarray) else x.data[x.indptr[row] : x.indptr[row + 1]]
    return values


def not_finite(x: Any, row: int) -> InputError:
    """For a row that could not be answered; almost always because it is not finite."""
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
    """Raises ``InputError`` naming the first row of ``x`` (float32 [n, inputs], or CSR whose row pointers were checked)
    that holds NaN, infinity or features that there are not: for paths that no compiled call checks."""
    if _is_sound(x):
        return
    if isinstance(x, np.ndarray):
        bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    else:
        lengths = np.diff(x.indptr)
        entries = ~np.isfinite(x.data) | (x.indices < 0) | (x.indices >= x.shape[1])
        rows = np.repeat(np.arange(len(lengths)), lengths)
        bad = np.union1d(rows[entries[x.indptr[0] : x.indptr[-1]]], np.flatnonzero(lengths > x.shape[1]))
    if len(bad):
        raise not_finite(x, int(bad[0]))


def _is_sound(x: Any) -> bool:
    """Whether ``check_rows`` finds nothing, by few calls of NumPy: a batch is often one row."""
    if isinstance(x, np.ndarray):
        return bool(np.isfinite(x).all())
    begin, end = int(x.indptr[0]), int(x.indptr[-1])
    features = x.indices[begin:end]
    if not len(features):
        return True
    return bool(
        features.min() >= 0
        and features.max() < x.shape[1]
        and np.isfinite(x.data[begin:end]).all()
        and np.diff(x.indptr).max() <= x.shape[1]
    )


def number(value: float, what: str) -> float:
    if math.isnan(value):
        raise InputError(f"the {what} is not a number")
    return float(value)


def dims(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
