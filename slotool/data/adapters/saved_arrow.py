"""Data sets of Hugging Face's ``datasets``, as ``save_to_disk`` writes them: Arrow files, mapped into memory.

A folder with ``state.json`` and ``dataset_info.json``, or a folder of such folders with ``dataset_dict.json``. The
package ``datasets`` is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slotool import strict_json
from slotool.data.adapters.arrow_tables import ArrowTable, class_names_of
from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import SPLIT_OF, ColumnSource
from slotool.errors import DataError
from slotool.printable import printable, reason

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
                return f"row {row - first} of split {name}"
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
        found, more = _batches(folder / file)
        if schema is not None and not found.equals(schema):
            raise DataError(f"{folder / file}: its columns differ from those of {files[0]}")
        schema, batches = found, batches + more
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
