"""Parquet files: named columns, read a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slotool import strict_json
from slotool.data.adapters.arrow_tables import class_names_of, fields_of, in_order, take
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.sequences import Ragged
from slotool.data.table import ColumnSource
from slotool.errors import DataError
from slotool.printable import reason

BATCH_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20
MAX_BATCH_ROWS = 65_536


class ParquetAdapter(DataAdapter):
    name, suffixes = "parquet", (".parquet", ".pq")
    reads = "Parquet: a column per feature, list columns, text, images as Hugging Face keeps them"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        return ParquetTable(location)


class ParquetTable(ColumnSource):
    """One file. A cursor goes through it in batches of rows; going back reads a row group again from its start."""

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
        wanted = tuple(dict.fromkeys(columns))
        if self._columns != wanted:
            self._columns, self._next, self._end = wanted, 0, 0
            self._start, self._batch = 0, None
        order = np.argsort(rows, kind="stable")
        ascending, taken, at = rows[order], [], 0
        try:
            while at < len(ascending):
                self._go_to(int(ascending[at]))
                end = int(np.searchsorted(ascending, self._start + self._batch.num_rows))
                taken.append(take(self._batch, ascending[at:end] - self._start))
                at = end
        except (OSError, pa.ArrowException, StopIteration) as error:
            raise DataError(f"{self.source}: cannot be read from row {ascending[at]} on ({reason(error)})") from error
        schema = pa.schema([self._schema.field(column) for column in wanted])
        return in_order(self, pa.Table.from_batches(taken, schema), wanted, rows, order)

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
    """Rows of about ``BATCH_BYTES`` of a row group."""
    return int(BATCH_BYTES // max(1, group.total_byte_size // max(1, group.num_rows)))


def _class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Of Hugging Face's description in the file, where it has one that can be read."""
    try:
        document = strict_json.decode((schema.metadata or {}).get(b"huggingface", b"{}"))
        return class_names_of(document["info"]["features"])
    except (strict_json.JsonError, KeyError, TypeError):
        return {}
