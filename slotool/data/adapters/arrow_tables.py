"""Tables of Arrow record batches, in memory or mapped into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from slotool.data.sequences import Ragged, dense_if_equal
from slotool.data.table import ANY_LENGTH, ColumnSource, Field
from slotool.errors import DataError

_OBJECT = np.dtype(np.object_)


def field_of(kind: pa.DataType) -> Field:
    """Return the field that a column of this Arrow type holds."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType) or types.is_dictionary(kind):
        return field_of(kind.value_type if types.is_dictionary(kind) else kind.storage_type)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Field(np.dtype(kind.to_pandas_dtype()))
    if types.is_decimal(kind):
        return Field(np.dtype(np.float64))
    is_image = types.is_struct(kind) and _image_bytes(kind) is not None
    if _is_text(kind) or is_image:
        return Field(_OBJECT, is_image=is_image)
    if _is_list(kind):
        inner = field_of(kind.value_type)
        size = kind.list_size if types.is_fixed_size_list(kind) else ANY_LENGTH
        if not inner.unreadable and not inner.is_image:
            return Field(inner.dtype, (size, *inner.shape))
    return Field(_OBJECT, unreadable=str(kind)[:60])


def values_of(
    table: ColumnSource, column: str, rows: np.ndarray, values: pa.Array | pa.ChunkedArray
) -> np.ndarray | Ragged:
    """The values of one column in ``rows`` [m]: an array of the field's dtype [m, ...], or ``Ragged``; text and
    images as ``bytes`` objects. Raises ``DataError`` naming the row of a value that is missing."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # which it stays when it has no chunk, or too much for one
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    return _values(table, column, rows, values)


def _values(table: ColumnSource, column: str, rows: np.ndarray, values: pa.Array) -> np.ndarray | Ragged:
    kind, types = values.type, pa.types
    if values.null_count:
        at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise table.trouble(column, int(rows[at]), "it has no value")
    if isinstance(kind, pa.BaseExtensionType):
        return _values(table, column, rows, values.storage)
    if types.is_dictionary(kind):
        return _values(table, column, rows, values.dictionary_decode())
    if types.is_struct(kind):
        return _values(table, column, rows, values.field(_image_bytes(kind)))
    if _is_list(kind):
        return _lists(table, column, rows, values)
    if types.is_decimal(kind):
        values = values.cast(pa.float64())
    elif _is_text(kind):
        values = values.cast(pa.large_binary())
    made: np.ndarray = values.to_numpy(zero_copy_only=False)
    return made


def _lists(table: ColumnSource, column: str, rows: np.ndarray, values: Any) -> np.ndarray | Ragged:
    if pa.types.is_fixed_size_list(values.type):
        indptr = np.arange(len(values) + 1, dtype=np.int64) * values.type.list_size
    else:
        offsets = values.offsets.to_numpy().astype(np.int64)
        indptr = offsets - offsets[0]
    inner = _values(table, column, np.repeat(rows, np.diff(indptr)), values.flatten())
    if isinstance(inner, Ragged):
        raise DataError(f"{table.source}: column {column!r} holds lists of lists of different lengths")
    if not len(values):
        return np.empty((0, 0, *inner.shape[1:]), dtype=inner.dtype)
    return dense_if_equal(inner, indptr)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind)
        for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary,
                      types.is_fixed_size_binary)
    )  # fmt: skip


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return any(check(kind) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _image_bytes(kind: pa.DataType) -> int | None:
    """Return which member of a struct holds an image file (Hugging Face's ``{bytes, path}``), or None."""
    at = kind.get_field_index("bytes")
    return at if at >= 0 and _is_text(kind.field(at).type) and kind.get_field_index("path") >= 0 else None


def fields_of(schema: pa.Schema, class_names: Mapping[str, tuple[str, ...]]) -> dict[str, Field]:
    """What the columns hold, without those that are a pandas index."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return {
        field.name: replace(field_of(field.type), class_names=class_names.get(field.name, ()))
        for field in schema
        if field.name not in index
    }


def class_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """Names of the classes by column, of Hugging Face's description of features."""
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and names:
            found[str(column)] = tuple(map(str, names))
    return found


class ArrowTable(ColumnSource):
    """Record batches of one schema. ``splits``: as ``ColumnSource`` says."""

    def __init__(
        self,
        source: str,
        name: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        splits: Mapping[str, np.ndarray] | None = None,
        class_names: Mapping[str, tuple[str, ...]] | None = None,
    ):
        self.source, self.name, self.splits = source, name, dict(splits or {})
        if len(set(schema.names)) < len(schema.names):
            twice = next(column for column in schema.names if schema.names.count(column) > 1)
            raise DataError(f"{source}: two columns are called {twice!r}")
        self.fields = fields_of(schema, class_names or {})
        self._schema = schema
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        order = np.argsort(rows, kind="stable")
        taken = []
        ascending = rows[order]
        cuts = np.searchsorted(ascending, self._starts)
        for batch, start, first, last in zip(self._batches, self._starts, cuts, cuts[1:], strict=False):
            if last > first:
                taken.append(take(batch.select(columns), ascending[first:last] - start))
        schema = pa.schema([self._schema.field(column) for column in columns])
        return in_order(self, pa.Table.from_batches(taken, schema), columns, rows, order)


def take(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """These rows, ascending, of a batch; without a copy where they follow each other."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def in_order(
    table: ColumnSource, taken: pa.Table, columns: Sequence[str], rows: np.ndarray, order: np.ndarray
) -> dict[str, np.ndarray | Ragged]:
    """Values by column of ``rows``, of which ``taken`` holds ``rows[order]``."""
    ascending = rows[order]
    made = {column: values_of(table, column, ascending, taken.column(column)) for column in columns}
    if (order[1:] > order[:-1]).all():
        return made
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return {column: values[back] for column, values in made.items()}
