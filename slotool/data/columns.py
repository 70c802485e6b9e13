"""Examples of several named tensors, as a model of several inputs takes them; of one length, or of different ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.errors import InputError


class Columns:
    """Named arrays of one length, in the order given: ``arrays["input_ids"][i]`` belongs to example i.

    Indexing by a slice or an array of positions or booleans gives those examples, of every array. Raises ``InputError``
    when there is no array, one has no dimension, or two differ in length.
    """

    __slots__ = ("_batch_key", "arrays")

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        if not arrays:
            raise InputError("examples need at least one named tensor")
        lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length is None:
                raise InputError(f"tensor {name}: a single value, expected one per example")
            if length != lengths[first]:
                raise InputError(f"tensor {name} has {length} examples, {first} has {lengths[first]}")
        self.arrays: dict[str, np.ndarray] = dict(arrays)
        self._batch_key: tuple[Any, ...] | None = None

    @classmethod
    def unchecked(cls, arrays: dict[str, np.ndarray]) -> Columns:
        """Return columns of arrays known to be of equal length, without a copy: a served request waits for this."""
        columns = cls.__new__(cls)
        columns.arrays, columns._batch_key = arrays, None
        return columns

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, rows: slice | np.ndarray) -> Columns:
        return Columns.unchecked({name: array[rows] for name, array in self.arrays.items()})

    def __iter__(self) -> Iterator[str]:
        raise TypeError("Columns are iterated by .arrays (by name) or indexed by rows")

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in self.arrays.items())
        return f"Columns({tensors})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all values; of ``bytes`` objects, of their content."""
        total = 0
        for array in self.arrays.values():
            total += sum(map(len, array.ravel())) if array.dtype.kind == "O" else array.nbytes
        return total

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Equal where examples can be joined in one batch: names, dtypes and shapes of one example."""
        if self._batch_key is None:
            self._batch_key = tuple([(name, array.dtype, array.shape[1:]) for name, array in self.arrays.items()])
        return self._batch_key

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """Return the examples of all parts, one after another; the parts have one ``batch_key``."""
        return cls.unchecked({name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays})


Inputs = np.ndarray | Columns


def only_array(x: Inputs) -> np.ndarray:
    """Return ``x`` itself, or its only column. Raises ``InputError`` where there are several."""
    if not isinstance(x, Columns):
        return x
    if len(x.arrays) > 1:
        raise InputError(f"one tensor is expected, not {', '.join(x.arrays)}")
    return next(iter(x.arrays.values()))


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Return arrays, or columns, joined along their examples.

    Raises ``InputError`` for different kinds, or columns that differ in ``batch_key``.
    """
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    columns = [part for part in parts if isinstance(part, Columns)]
    if arrays and columns:
        raise InputError("examples of one tensor cannot be joined with examples of several")
    for part in columns:
        if part.batch_key != columns[0].batch_key:
            raise InputError(f"examples of {part!r} cannot be joined with those of {columns[0]!r}")
    return np.concatenate(arrays) if arrays else Columns.concatenate(columns)


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
        """Lengths, int64 [n]."""
        return np.diff(self.indptr)


def dense_if_equal(values: np.ndarray, indptr: np.ndarray) -> np.ndarray | Ragged:
    """Return the array [n, length, ...] of sequences of one length, else ``Ragged``."""
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
    """Return ``Columns`` where every column is an array, else ``RaggedColumns``."""
    arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
    return Columns(arrays) if len(arrays) == len(columns) else RaggedColumns(columns)


def concatenated(parts: Sequence[Columns | RaggedColumns]) -> Columns | RaggedColumns:
    """Return the examples of ``parts``, which have the same columns, one part after the other."""
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
    """Return the bytes of the values; for text, its bytes and a pointer each."""
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
