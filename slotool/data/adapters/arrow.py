"""Tables of Arrow record batches: CSV and Parquet files, and data sets of Hugging Face's ``datasets``.

The last as ``save_to_disk`` writes them: a folder with ``state.json`` and ``dataset_info.json``, or a folder of such
folders with ``dataset_dict.json``. The package ``datasets`` is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from slotool import strict_json
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.columns import Ragged, dense_if_equal
from slotool.data.options import DataOptions
from slotool.data.table import ANY_LENGTH, SPLIT_OF, ColumnSource, Field
from slotool.errors import DataError
from slotool.printable import printable, reason, row_name

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
    """Return one column's values in ``rows`` [m]: an array of the field's dtype [m, ...], or ``Ragged``.

    Text and images are ``bytes`` objects. Raises ``DataError`` naming the row of a missing value.
    """
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
    columns_: np.ndarray = values.to_numpy(zero_copy_only=False)
    return columns_


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
    """Return the fields of all columns but those of a pandas index."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return {
        field.name: replace(field_of(field.type), class_names=class_names.get(field.name, ()))
        for field in schema
        if field.name not in index
    }


def class_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes by column, of Hugging Face's description of features."""
    fields = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else {}
        names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and names:
            fields[str(column)] = tuple(map(str, names))
    return fields


class ArrowTable(ColumnSource):
    """Record batches of one schema. ``splits``: see ``ColumnSource``."""

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
        parts = []
        ascending = rows[order]
        cuts = np.searchsorted(ascending, self._starts)
        for batch, start, first, last in zip(self._batches, self._starts, cuts, cuts[1:], strict=False):
            if last > first:
                parts.append(take(batch.select(columns), ascending[first:last] - start))
        schema = pa.schema([self._schema.field(column) for column in columns])
        return in_order(self, pa.Table.from_batches(parts, schema), columns, rows, order)


def take(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """Return ascending ``rows`` of a batch, without a copy if they are consecutive."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(pa.array(rows))


def in_order(
    table: ColumnSource, parts: pa.Table, columns: Sequence[str], rows: np.ndarray, order: np.ndarray
) -> dict[str, np.ndarray | Ragged]:
    """Return the values of ``rows`` by column; ``taken`` holds ``rows[order]``."""
    ascending = rows[order]
    columns_ = {column: values_of(table, column, ascending, parts.column(column)) for column in columns}
    if (order[1:] > order[:-1]).all():
        return columns_
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return {column: values[back] for column, values in columns_.items()}


class CsvAdapter(DataAdapter):
    name, suffixes = "csv", (".csv", ".csv.gz", ".tsv", ".tsv.gz")
    reads = "CSV with a header line: a column per feature; numbers, or text where a model takes it"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """Return the whole file, with columns of text inputs as text."""
        path = location.path
        is_tabbed = path.name.lower().endswith((".tsv", ".tsv.gz"))
        types = {column: pa.string() for column in options.text_columns}
        try:
            table = csv.read_csv(
                path,
                parse_options=csv.ParseOptions(delimiter="\t" if is_tabbed else ",", newlines_in_values=True),
                convert_options=csv.ConvertOptions(column_types=types),
            )
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({reason(error)})") from error
        _require_readable(path, table, "tab" if is_tabbed else "comma")
        return ArrowTable(str(path), location.text, table.schema, table.to_batches())


def _require_readable(path: Path, table: pa.Table, separator: str) -> None:
    """Raise ``DataError`` for a file of another encoding than UTF-8, or with another character between its columns."""
    for field in table.schema:
        if pa.types.is_binary(field.type):
            rows = enumerate(table.column(field.name).to_pylist())
            row = next(row for row, value in rows if value is not None and not _is_utf8(value))
            where = f"{path}: {row_name(row)}, column {field.name!r}"
            raise DataError(f"{where}: this is no UTF-8; save the file in that encoding")
    if table.num_columns == 1 and any(sign in table.schema.names[0] for sign in ",;\t|"):
        name = table.schema.names[0]
        raise DataError(f"{path}: its only column is called {name!r}; a {separator} between columns is expected")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


BATCH_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20
MAX_BATCH_ROWS = 65_536


class ParquetAdapter(DataAdapter):
    name, suffixes = "parquet", (".parquet", ".pq")
    reads = "Parquet: a column per feature, list columns, text, images as Hugging Face keeps them"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        return ParquetTable(location)


class ParquetTable(ColumnSource):
    """Parquet file. A cursor reads it in batches of rows; going back reads a row group again from its start."""

    def __init__(self, location: Location):
        self.source, self.name, self.splits = str(location.path), location.text, {}
        try:
            self._file = pq.ParquetFile(location.path, buffer_size=BUFFER_BYTES, pre_buffer=False)
            metadata, schema = self._file.metadata, self._file.schema_arrow
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DataError(f"{self.source}: cannot be read ({reason(error)})") from error
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self._batch_rows = max(1, min(MAX_BATCH_ROWS, *(_rows_at_once(group) for group in groups), MAX_BATCH_ROWS))
        self.fields = fields_of(schema, _class_names(schema))
        self._schema = schema
        self._columns: tuple[str, ...] = ()
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch: Any = None
        self._start = self._next = self._end = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        names = tuple(dict.fromkeys(columns))
        if self._columns != names:
            self._columns, self._next, self._end = names, 0, 0
            self._start, self._batch = 0, None
        order = np.argsort(rows, kind="stable")
        ascending, parts, at = rows[order], [], 0
        try:
            while at < len(ascending):
                self._go_to(int(ascending[at]))
                end = int(np.searchsorted(ascending, self._start + self._batch.num_rows))
                parts.append(take(self._batch, ascending[at:end] - self._start))
                at = end
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise DataError(
                f"{self.source}: cannot be read from {row_name(ascending[at])} on ({reason(error)})"
            ) from error
        schema = pa.schema([self._schema.field(column) for column in names])
        return in_order(self, pa.Table.from_batches(parts, schema), names, rows, order)

    def _go_to(self, row: int) -> None:
        """Make the batch with ``row`` the current one."""
        if self._batch is not None and self._start <= row < self._start + self._batch.num_rows:
            return
        if not self._next <= row < self._end:
            group = int(np.searchsorted(self._starts, row, side="right")) - 1
            self._next, self._end = int(self._starts[group]), int(self._starts[group + 1])
            self._batches = self._file.iter_batches(
                self._batch_rows, row_groups=[group], columns=list(self._columns), use_threads=False
            )
        while self._next <= row:
            self._batch = next(self._batches)
            self._start, self._next = self._next, self._next + self._batch.num_rows


def _rows_at_once(group: Any) -> int:
    """Return the rows of about ``BATCH_BYTES`` of a row group."""
    return int(BATCH_BYTES // max(1, group.total_byte_size // max(1, group.num_rows)))


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return class names from Hugging Face's metadata in the file, if readable."""
    try:
        document = strict_json.decode((schema.metadata or {}).get(b"huggingface", b"{}"))
        return class_names_of(document["info"]["features"])
    except (strict_json.JsonError, KeyError, TypeError):
        return {}


STATE, INFO, DICT = "state.json", "dataset_info.json", "dataset_dict.json"


class SavedArrowAdapter(DataAdapter):
    name = "datasets"
    reads = "a folder that Hugging Face's datasets wrote with save_to_disk"

    def recognises(self, location: Location) -> bool:
        return any((location.path / name).is_file() for name in (STATE, DICT))

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        folder = location.path
        if not (folder / DICT).is_file():
            schema, batches, names = _read(folder)
            return ArrowTable(str(folder), location.text, schema, batches, class_names=names)
        listed = _object(folder / DICT).get("splits")
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise DataError(f"{folder / DICT}: a list of splits is expected")
        return _of_splits(location, [name for name in listed if name in SPLIT_OF], listed)


class _Splits(ArrowTable):
    """Several splits, one after the other."""

    ends: Mapping[str, tuple[int, int]]

    def row_name(self, row: int) -> str:
        for name, (first, last) in self.ends.items():
            if first <= row < last:
                return f"{row_name(row - first)} of split {name}"
        return super().row_name(row)


def _of_splits(location: Location, names: list[str], listed: list[str]) -> ColumnSource:
    folder = location.path
    if not names:
        raise DataError(f"{folder}: none of its splits ({', '.join(listed)}) is one of {', '.join(SPLIT_OF)}")
    parts = {name: _read(folder / name) for name in names}
    schema, _, class_names = parts[names[0]]
    ends, at = {}, 0
    for name, (other, batches, _) in parts.items():
        if not other.equals(schema):
            raise DataError(f"{folder}: split {name} has other columns, or of other types, than {names[0]}")
        ends[name] = (at, at + sum(batch.num_rows for batch in batches))
        at = ends[name][1]
    splits: dict[str, np.ndarray] = {}
    for name, (first, last) in ends.items():
        of = SPLIT_OF[name]
        splits[of] = np.concatenate([splits.get(of, np.empty(0, np.int64)), np.arange(first, last)])
    everything = [batch for _, batches, _ in parts.values() for batch in batches]
    table = _Splits(str(folder), location.text, schema, everything, splits=splits, class_names=class_names)
    table.ends = ends
    return table


def _read(folder: Path) -> tuple[pa.Schema, list[pa.RecordBatch], dict[str, tuple[str, ...]]]:
    """Schema, batches and names of the classes of one saved data set."""
    state = _object(folder / STATE)
    if state.get("_indices_data_files"):
        raise DataError(f"{folder}: it selects rows by a list of indices; call flatten_indices() before save_to_disk()")
    files = [str(entry.get("filename")) for entry in state.get("_data_files") or [] if isinstance(entry, dict)]
    if not files or not all(Path(file).name == file for file in files):
        raise DataError(f"{folder / STATE}: names of data files in the same folder are expected")
    info = _object(folder / INFO) if (folder / INFO).is_file() else {}
    schema: Any = None
    batches: list[pa.RecordBatch] = []
    for file in files:
        fields, more = _batches(folder / file)
        if schema is not None and not fields.equals(schema):
            raise DataError(f"{folder / file}: its columns differ from those of {files[0]}")
        schema, batches = fields, batches + more
    return schema, batches, class_names_of(info.get("features"))


def _batches(path: Path) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    try:
        mapped = pa.memory_map(str(path))
        if mapped.size() >= 6 and mapped.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(mapped)
            return reader.schema, [reader.get_batch(i) for i in range(reader.num_record_batches)]
        mapped.seek(0)
        stream = pa.ipc.open_stream(mapped)
        return stream.schema, list(stream)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({reason(error)})") from error


def _object(path: Path) -> dict[str, Any]:
    try:
        document = strict_json.read(path, error=DataError)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(document, dict):
        raise DataError(f"{printable(str(path))}: a JSON object is expected")
    return document
