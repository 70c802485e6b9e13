"""From values as they are stored to the values of a tensor, refusing what would change their meaning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slotool.data.sequences import Ragged
from slotool.data.table import ColumnSource


def cast(table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray | Ragged, dtype: np.dtype[Any]) -> Any:
    """``values`` of ``rows`` as ``dtype``, finite where they are floating-point; an array, or ``Ragged``.

    Whole numbers stay exact or become the nearest floating-point numbers; fractions become no whole numbers, numbers no
    text. Raises ``DataError`` naming the row of a value that ``dtype`` cannot hold.
    """
    if isinstance(values, Ragged):
        flat_rows = np.repeat(rows, values.lengths)
        return Ragged(_cast(table, column, flat_rows, values.values, dtype), values.indptr)
    return _cast(table, column, rows, values, dtype)


def require_castable(table: ColumnSource, column: str, dtype: np.dtype[Any], wanted: str) -> None:
    """Raises ``DataError`` when no value of the column can be one of ``dtype``. ``wanted``: who wants what."""
    found = table.fields[column].dtype
    same_kind = found.kind == dtype.kind or (found.kind in "iub" and dtype.kind in "iufb")
    if not same_kind:
        raise _wrong_kind(table, column, wanted)


def _wrong_kind(table: ColumnSource, column: str, wanted: str) -> Exception:
    from slotool.errors import DataError

    return DataError(f"{table.source}: column {column!r} holds {table.fields[column]}, {wanted}")


def _cast(table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if values.dtype.kind == "f":
        _require(table, column, rows, values, np.isfinite(values), "is no finite number")
    if values.dtype == dtype:
        # Mapped files and Arrow's buffers are read-only, which torch warns of.
        return values if values.flags.writeable else values.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        made: np.ndarray = values.astype(dtype)
    if dtype.kind == "f":
        _require(table, column, rows, values, np.isfinite(made), f"is beyond what {dtype.name} holds")
    elif values.dtype.kind in "iub":
        kept = (made == values) & ((made < 0) == (values < 0))
        _require(table, column, rows, values, kept, f"is beyond what {dtype.name} holds")
    return made


def _require(
    table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray, good: np.ndarray, what: str
) -> None:
    if good.all():
        return
    at = int(np.flatnonzero(~good.reshape(-1))[0])
    row = rows[at // max(1, math.prod(values.shape[1:]))]
    raise table.trouble(column, int(row), f"{values.reshape(-1)[at]} {what}")
