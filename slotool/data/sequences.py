"""Sequences of different lengths, one per example: what holds them until rows of one length are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.data.columns import Columns
from slotool.errors import InputError


class Ragged:
    """Sequences of different lengths, one per example: example i has ``values[indptr[i] : indptr[i + 1]]``.

    ``values``: [all, ...], ``indptr``: int64 [n + 1]. Indexing by rows gives an array [m, length, ...] where these rows
    have one length, else another ``Ragged``.
    """

    __slots__ = ("indptr", "values")

    def __init__(self, values: np.ndarray, indptr: np.ndarray):
        self.values, self.indptr = values, indptr

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray | Ragged:
        chosen = np.arange(len(self))[rows]
        counts = np.diff(self.indptr)[chosen]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(indptr[-1]) + np.repeat(self.indptr[chosen] - indptr[:-1], counts)
        return dense_if_equal(self.values[at], indptr)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return bytes_of(self.values) + self.indptr.nbytes

    @property
    def lengths(self) -> np.ndarray:
        """int64 [n]."""
        return np.diff(self.indptr)


def dense_if_equal(values: np.ndarray, indptr: np.ndarray) -> np.ndarray | Ragged:
    """The array [n, length, ...] of sequences of one length, else ``Ragged``."""
    counts = np.diff(indptr)
    if len(counts) and (counts == counts[0]).all():
        return values.reshape(len(counts), int(counts[0]), *values.shape[1:])
    return Ragged(values, indptr)


class RaggedColumns:
    """Named columns of which at least one is ``Ragged``: the examples of a set whose sequences differ in length.

    Rows of one length, such as one example at a time, are taken as ``Columns``.
    """

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, np.ndarray | Ragged]):
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: slice | np.ndarray) -> Columns | RaggedColumns:
        return in_columns({name: column[rows] for name, column in self.columns.items()})

    def __iter__(self) -> Iterator[Columns]:
        raise TypeError("RaggedColumns are indexed by rows")

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {described(column)}" for name, column in self.columns.items())
        return f"RaggedColumns({len(self)} × {columns})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def nbytes(self) -> int:
        return sum(bytes_of(c) if isinstance(c, np.ndarray) else c.nbytes for c in self.columns.values())


def in_columns(columns: Mapping[str, np.ndarray | Ragged]) -> Columns | RaggedColumns:
    """``Columns`` where every column is an array, else ``RaggedColumns``."""
    arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
    return Columns(arrays) if len(arrays) == len(columns) else RaggedColumns(columns)


def concatenated(parts: Sequence[Columns | RaggedColumns]) -> Columns | RaggedColumns:
    """The examples of ``parts``, which have the same columns, one part after the other."""
    columns = [part.arrays if isinstance(part, Columns) else part.columns for part in parts]
    return in_columns({name: _concatenated([part[name] for part in columns]) for name in columns[0]})


def described(column: np.ndarray | Ragged) -> str:
    """Datatype and shape of one example, for a sentence: ``int64[128]``, ``text``, ``float32[of 3 to 9]``."""
    dtype = "text" if column.dtype.kind in "OSU" else column.dtype.name
    if isinstance(column, Ragged):
        shortest, longest = (column.lengths.min(), column.lengths.max()) if len(column) else (0, 0)
        return f"{dtype}[of {shortest} to {longest}]"
    return dtype + (str(list(column.shape[1:])) if column.ndim > 1 else "")


def bytes_of(array: np.ndarray) -> int:
    """Bytes of its values; of text, those of the text and a pointer each."""
    if array.dtype != np.object_:
        return array.nbytes
    return array.nbytes + sum(len(value) for value in array.flat)


def _concatenated(parts: Sequence[np.ndarray | Ragged]) -> np.ndarray | Ragged:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts) and len({part.shape[1:] for part in arrays}) == 1:
        return np.concatenate(arrays)
    sequences = [_as_ragged(part) for part in parts]
    counts = np.concatenate([part.lengths for part in sequences])
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return dense_if_equal(np.concatenate([part.values for part in sequences]), indptr)


def _as_ragged(column: np.ndarray | Ragged) -> Ragged:
    if isinstance(column, Ragged):
        return column
    if column.ndim < 2:
        raise InputError("numbers and sequences cannot be concatenated")
    n, length = column.shape[:2]
    return Ragged(column.reshape(n * length, *column.shape[2:]), np.arange(n + 1) * length)
