"""CSV files: a header line with the names of the columns, then a line per example."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import csv

from slotool.data.adapters.arrow_tables import ArrowTable
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import Table
from slotool.errors import DataError
from slotool.printable import reason


class CsvAdapter(DataAdapter):
    name, suffixes = "csv", (".csv", ".csv.gz", ".tsv")
    reads = "CSV with a header line: a column per feature; numbers, or text where a model takes it"

    def open(self, location: Location, options: DataOptions) -> Table:
        """The whole file; a column that a model takes as text is one, whatever it looks like."""
        path = location.path
        types = {column: pa.string() for column in options.text_columns}
        try:
            table = csv.read_csv(
                path,
                parse_options=csv.ParseOptions(
                    delimiter="\t" if path.suffix == ".tsv" else ",", newlines_in_values=True
                ),
                convert_options=csv.ConvertOptions(column_types=types),
            )
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({reason(error)})") from error
        return ArrowTable(str(path), location.text, table.schema, table.to_batches())
