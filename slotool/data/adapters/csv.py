"""CSV files: a header line with the names of the columns, then a line per example."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from slotool.data.adapters.arrow_tables import ArrowTable
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import ColumnSource
from slotool.errors import DataError
from slotool.printable import reason


class CsvAdapter(DataAdapter):
    name, suffixes = "csv", (".csv", ".csv.gz", ".tsv", ".tsv.gz")
    reads = "CSV with a header line: a column per feature; numbers, or text where a model takes it"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """The whole file; a column that a model takes as text is one, whatever it looks like."""
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
    """Raises ``DataError`` for a file of another encoding than UTF-8, or with another character between its columns."""
    for field in table.schema:
        if pa.types.is_binary(field.type):
            rows = enumerate(table.column(field.name).to_pylist())
            row = next(row for row, value in rows if value is not None and not _is_utf8(value))
            raise DataError(
                f"{path}: row {row}, column {field.name!r}: this is no UTF-8; save the file in that encoding"
            )
    if table.num_columns == 1 and any(sign in table.schema.names[0] for sign in ",;\t|"):
        name = table.schema.names[0]
        raise DataError(f"{path}: its only column is called {name!r}; a {separator} between columns is expected")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
