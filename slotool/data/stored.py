"""Examples that stay in their files until some are taken, and are cast without a change of meaning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.columns import Ragged, bytes_of, concatenated, in_columns
from slotool.data.encoded_images import ImageFormat
from slotool.data.table import ANY_LENGTH, ColumnSource
from slotool.errors import DataError
from slotool.images import ImageError


def cast(table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray | Ragged, dtype: np.dtype[Any]) -> Any:
    """Return ``values`` of ``rows`` as ``dtype``, finite where they are floating-point; an array, or ``Ragged``.

    Whole numbers stay exact or become the nearest floating-point numbers; fractions become no whole numbers, numbers no
    text. Raises ``DataError`` naming the row of a value that ``dtype`` cannot hold.
    """
    if isinstance(values, Ragged):
        flat_rows = np.repeat(rows, values.lengths)
        return Ragged(_cast(table, column, flat_rows, values.values, dtype), values.indptr)
    return _cast(table, column, rows, values, dtype)


def require_castable(table: ColumnSource, column: str, dtype: np.dtype[Any], expected: str) -> None:
    """Raise ``DataError`` when no value of the column can be one of ``dtype``. ``expected``: end of the message."""
    actual = table.fields[column].dtype
    same_kind = actual.kind == dtype.kind or (actual.kind in "iub" and dtype.kind in "iufb")
    if not same_kind:
        raise _wrong_kind(table, column, expected)


def _wrong_kind(table: ColumnSource, column: str, expected: str) -> Exception:
    from slotool.errors import DataError

    return DataError(f"{table.source}: column {column!r} holds {table.fields[column]}, {expected}")


def _cast(table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if values.dtype.kind == "f":
        _require(table, column, rows, values, np.isfinite(values), "is no finite number")
    if values.dtype == dtype:
        # Mapped files and Arrow's buffers are read-only, which torch warns of.
        return values if values.flags.writeable else values.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        converted: np.ndarray = values.astype(dtype)
    if dtype.kind == "f":
        _require(table, column, rows, values, np.isfinite(converted), f"is beyond what {dtype.name} holds")
    elif values.dtype.kind in "iub":
        is_exact = (converted == values) & ((converted < 0) == (values < 0))
        _require(table, column, rows, values, is_exact, f"is beyond what {dtype.name} holds")
    return converted


def _require(
    table: ColumnSource, column: str, rows: np.ndarray, values: np.ndarray, good: np.ndarray, what: str
) -> None:
    if good.all():
        return
    at = int(np.flatnonzero(~good.reshape(-1))[0])
    row = rows[at // max(1, math.prod(values.shape[1:]))]
    raise table.trouble(column, int(row), f"{values.reshape(-1)[at]} {what}")


# About as much is read at a time where a whole split is wanted.
BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class TensorPlan:
    """Plan of one tensor.

    ``columns``: put side by side. ``shape``: of one example, −1 for any length; None: as stored. ``image``: format of a
    column of image files.
    """

    columns: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None
    image: ImageFormat | None = None


class StoredExamples:
    """The examples in ``rows`` of a table, read when they are taken.

    ``examples[a:b]``: an array [m, ...] for one floating-point tensor, else ``Columns``. A value that cannot be used is
    found when it is read. Only a few rows are held at a time.
    """

    def __init__(self, table: ColumnSource, plans: Mapping[str, TensorPlan], rows: np.ndarray, *, as_array: bool):
        self._table, self._plans, self._rows, self._as_array = table, dict(plans), rows, as_array

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | np.ndarray) -> Any:
        """Read examples; ``rows``: a slice, or int or bool [m]. Raises ``DataError`` naming file, column and row."""
        chosen = self._rows[rows]
        if not len(chosen):
            return self._none()
        read = self._table.read([column for plan in self._plans.values() for column in plan.columns], chosen)
        result = {name: self._tensor(name, plan, read, chosen) for name, plan in self._plans.items()}
        return next(iter(result.values())) if self._as_array else in_columns(result)

    def __iter__(self) -> Iterator[Any]:
        """Yield one example at a time, each of length 1."""
        return (self[row : row + 1] for row in range(len(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, ...] of an array. Raises ``DataError`` where examples are ``Columns`` or there are none."""
        if not self._as_array or not len(self):
            raise DataError(
                f"{self._table.source}: one tensor of floating-point numbers is needed here, its examples have "
                f"{', '.join(self._plans)}"
            )
        return (len(self), *self[:1].shape[1:])

    @classmethod
    def joined(cls, parts: Sequence[StoredExamples]) -> StoredExamples:
        """Return the examples of ``parts`` of one table, one part after the other."""
        rows = np.concatenate([part._rows for part in parts])
        return cls(parts[0]._table, parts[0]._plans, rows, as_array=parts[0]._as_array)

    @property
    def nbytes(self) -> int:
        """About what all take in memory, by the first."""
        return len(self) * _bytes(self[:1]) if len(self) else 0

    def batches(self) -> Iterator[slice]:
        """Yield the slices of so many examples that one takes about ``BATCH_BYTES``."""
        step = max(1, BATCH_BYTES // max(1, _bytes(self[:1]))) if len(self) else 1
        return (slice(start, min(start + step, len(self))) for start in range(0, len(self), step))

    def load(self) -> Any:
        """Return all of them in memory: an array, or ``Columns``."""
        if not len(self):
            return self._none()
        if not self._as_array:
            return concatenated([self[part] for part in self.batches()])
        whole: np.ndarray | None = None
        for part in self.batches():
            read = self[part]
            if whole is None:
                whole = np.empty((len(self), *read.shape[1:]), dtype=read.dtype)
            whole[part] = read
        return whole

    def _none(self) -> Any:
        """Return no example, in the shape of the table's first."""
        one = np.arange(1)
        read = self._table.read([column for plan in self._plans.values() for column in plan.columns], one)
        result = {name: self._tensor(name, plan, read, one)[:0] for name, plan in self._plans.items()}
        return next(iter(result.values())) if self._as_array else in_columns(result)

    def _tensor(self, name: str, plan: TensorPlan, read: Mapping[str, Any], rows: np.ndarray) -> Any:
        if plan.image is not None:
            return self._images(plan.columns[0], plan.image, read[plan.columns[0]], rows)
        parts = [cast(self._table, column, rows, read[column], plan.dtype) for column in plan.columns]
        values = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        if plan.shape is None:
            return values
        return self._shaped(name, plan.columns[0], plan.shape, values, rows)

    def _images(self, column: str, form: ImageFormat, bodies: np.ndarray, rows: np.ndarray) -> np.ndarray:
        result = np.empty((len(rows), *form.shape), dtype=form.dtype)
        for at, body in enumerate(bodies):
            try:
                result[at] = form.decode(body)
            except ImageError as error:
                raise self._table.trouble(column, int(rows[at]), str(error)) from None
        return result

    def _shaped(self, name: str, column: str, shape: tuple[int, ...], values: Any, rows: np.ndarray) -> Any:
        """Return ``values`` in ``shape``, where axes of length 1 may be put in or left out."""
        if isinstance(values, Ragged):
            wrong = values.lengths != shape[0] if shape[0] != ANY_LENGTH else np.zeros(len(rows), bool)
            if wrong.any():
                at = int(wrong.argmax())
                what = f"{values.lengths[at]} values, input {name!r} takes {shape[0]}"
                raise self._table.trouble(column, int(rows[at]), what)
            return values
        actual = values.shape[1:]
        if len(actual) == len(shape) and all(w in (ANY_LENGTH, f) for w, f in zip(shape, actual, strict=True)):
            return values
        if ANY_LENGTH not in shape and math.prod(shape) == math.prod(actual) and long_axes(shape) == long_axes(actual):
            return values.reshape(len(values), *shape)
        if long_axes(actual) == [] and all(size in (ANY_LENGTH, 1) for size in shape):
            return values.reshape(len(values), *[1] * len(shape))
        what = f"an example of shape {list(actual)}, input {name!r} takes {list(shape)}"
        raise self._table.trouble(column, int(rows[0]), what)


def long_axes(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _bytes(examples: Any) -> int:
    return bytes_of(examples) if isinstance(examples, np.ndarray) else int(examples.nbytes)
