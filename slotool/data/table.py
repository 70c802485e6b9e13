"""Interface of every adapter's result: named columns of examples, read a few rows at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.columns import Ragged
from slotool.errors import DataError
from slotool.printable import row_name

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
# Names of splits in files and tables.
SPLIT_NAMES = {
    TRAIN: ("train", "training", "trn"),
    VALIDATION: ("validation", "valid", "val", "dev"),
    TEST: ("test", "testing", "tst", "eval"),
}
SPLIT_OF = {name: split for split, names in SPLIT_NAMES.items() for name in names}
ANY_LENGTH = -1


@dataclass(frozen=True)
class Field:
    """Content of a column.

    ``dtype``: NumPy's, object for text and encoded images. ``shape``: of one example, −1 if lengths differ or are
    unknown. ``is_image``: each value is a PNG or JPEG file. ``class_names``: names of its class numbers, −1 for none.
    ``unreadable``: noun for content that no tensor can hold, else "".
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    is_image: bool = False
    class_names: tuple[str, ...] = ()
    unreadable: str = ""

    def __str__(self) -> str:
        kind = "images" if self.is_image else "text" if self.dtype == np.object_ else self.dtype.name
        sizes = ", ".join("any" if size == ANY_LENGTH else str(size) for size in self.shape)
        return self.unreadable or kind + (f"[{sizes}]" if self.shape else "")


class ColumnSource(ABC):
    """Examples in named columns. ``source``: what sentences call it. ``name``: of the data set.

    ``splits``: rows of the splits that the files themselves tell apart, by name; empty where they do not.
    """

    source: str
    name: str
    fields: Mapping[str, Field]
    splits: Mapping[str, np.ndarray]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        """Return these columns in these rows (int64 [m], any order), by name; read nothing else.

        Values are arrays [m, ...] of the field's dtype, or ``Ragged``; images are the bytes of their files. Raises
        ``DataError`` naming file, column and row.
        """

    def row_name(self, row: int) -> str:
        """Return the name of a row in sentences."""
        return row_name(row)

    def trouble(self, column: str, row: int, what: str) -> DataError:
        """Return the error for one value: file, row and column, and ``what`` is wrong."""
        return DataError(f"{self.source}: {self.row_name(row)}, column {column!r}: {what}")


class ArrayTable(ColumnSource):
    """Columns that are in memory, or mapped into it. ``arrays``: [n, ...] each, text as ``bytes`` objects or str.

    Raises ``DataError`` when they differ in length.
    """

    def __init__(
        self,
        source: str,
        arrays: Mapping[str, np.ndarray | Ragged],
        splits: Mapping[str, np.ndarray] | None = None,
        *,
        name: str | None = None,
        class_names: Mapping[str, Sequence[str]] | None = None,
    ):
        self.source, self.name, self.splits = source, name or source, dict(splits or {})
        self._arrays = {column: _bytes_if_text(values) for column, values in arrays.items()}
        lengths = {len(values) for values in self._arrays.values()}
        if len(lengths) > 1:
            sizes = ", ".join(f"{column} {len(values)}" for column, values in self._arrays.items())
            raise DataError(f"{source}: its columns have different numbers of rows: {sizes}")
        self._length = lengths.pop() if lengths else 0
        names = class_names or {}
        self.fields = {
            column: Field(values.dtype, _shape(values), class_names=tuple(names.get(column, ())))
            for column, values in self._arrays.items()
        }

    def __len__(self) -> int:
        return self._length

    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        return {column: self._arrays[column][_slice_if_range(rows)] for column in columns}


def to_bytes_objects(values: np.ndarray) -> np.ndarray:
    """Return the text of any kind as ``bytes`` objects of UTF-8, of the same shape."""
    texts = np.empty(values.shape, dtype=np.object_)
    texts.reshape(-1)[:] = [text.encode() if isinstance(text, str) else text for text in values.reshape(-1).tolist()]
    return texts


def _bytes_if_text(values: np.ndarray | Ragged) -> np.ndarray | Ragged:
    if isinstance(values, np.ndarray) and values.dtype.kind in "SU":
        return to_bytes_objects(values)
    return values


def _shape(values: np.ndarray | Ragged) -> tuple[int, ...]:
    return values.shape[1:] if isinstance(values, np.ndarray) else (ANY_LENGTH, *values.values.shape[1:])


def _slice_if_range(rows: np.ndarray) -> slice | np.ndarray:
    """Return a slice of the same rows, which copies nothing, where they follow each other."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows
