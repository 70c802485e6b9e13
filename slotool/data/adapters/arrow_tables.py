"""Tables of Arrow record batches, in memory or mapped into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from slotool.data.arrow_values import field_of, values_of
from slotool.data.sequences import Ragged
from slotool.data.table import ColumnSource, Field
from slotool.errors import DataError


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
