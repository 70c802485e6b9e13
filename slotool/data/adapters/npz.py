"""NumPy's ``.npz``: arrays by name, one example per index of their first axis."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import SPLIT_NAMES, SPLIT_OF, ArrayTable, ColumnSource
from slotool.errors import DataError
from slotool.printable import reason

# Smaller arrays are read whole.
MAPPED_BYTES = 64 << 20
_LOCAL_HEADER = 30


class NpzAdapter(DataAdapter):
    name, suffixes = "npz", (".npz",)
    reads = "NumPy's .npz: arrays x and y, or any number of arrays by name; or x_train, y_train, x_test, y_test"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """Return arrays by name; names in ``_train``, ``_validation`` or ``_test`` are splits of one array."""
        path = location.path
        try:
            with zipfile.ZipFile(path) as archive:
                arrays = {
                    info.filename.removesuffix(".npy"): _array(path, archive, info) for info in archive.infolist()
                }
        except (
            OSError,
            ValueError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise DataError(f"{path}: cannot be read ({reason(error)})") from error
        if not arrays:
            raise DataError(f"{path}: it holds no array")
        for name, array in arrays.items():
            if array.ndim == 0:
                raise DataError(f"{path}: array {name!r} is a single value, expected one per example")
            if array.dtype.kind not in "fiubSU":
                kind = array.dtype
                raise DataError(f"{path}: array {name!r} holds {kind}, expected numbers, booleans or text")
        splits: dict[str, np.ndarray] = {}
        if all(_split_of(name)[1] for name in arrays):
            arrays, splits = _joined(str(path), arrays)
        return ArrayTable(str(path), arrays, splits, name=location.text)


def _array(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Map a large uncompressed array of the archive; read any other one and compare its checksum."""
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1 and info.file_size >= MAPPED_BYTES:
        return _mapped(path, info)
    with archive.open(info) as stored:
        try:
            return np.lib.format.read_array(stored, allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{info.filename}: {error}") from error


def _mapped(path: Path, info: zipfile.ZipInfo) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEADER)
        name, extra = struct.unpack("<HH", head[26:30])
        file.seek(info.header_offset + _LOCAL_HEADER + name + extra)
        start = file.tell()
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{info.filename}: it holds Python objects")
    if offset - start + dtype.itemsize * math.prod(shape) != info.file_size:
        raise ValueError(f"{info.filename}: its header promises another number of values than there are")
    return np.memmap(path, dtype, "r", offset, shape, "F" if by_column else "C")


def _split_of(name: str) -> tuple[str, str | None]:
    """Return the name without its split, and the split: ``x_train`` is x of train."""
    before, _, last = name.rpartition("_")
    return (before, SPLIT_OF[last]) if before and last in SPLIT_OF else (name, None)


def _joined(source: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return each array with its splits one after the other, and the rows of the splits."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        before, split = _split_of(name)
        parts.setdefault(before, {})[str(split)] = array
    first, *others = parts.values()
    lengths = {split: len(first[split]) for split in SPLIT_NAMES if split in first}
    for other in others:
        if {split: len(part) for split, part in other.items()} != lengths:
            raise DataError(f"{source}: its arrays {', '.join(arrays)} differ in their splits or their numbers of rows")
    starts = np.cumsum([0, *lengths.values()])
    splits = {split: np.arange(starts[i], starts[i + 1]) for i, split in enumerate(lengths)}
    try:
        return {name: np.concatenate([part[split] for split in lengths]) for name, part in parts.items()}, splits
    except ValueError as error:
        raise DataError(f"{source}: its splits differ in shape ({reason(error)})") from error
