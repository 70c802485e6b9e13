"""NumPy's ``.npz``: arrays by name, one example per index of their first axis."""

from __future__ import annotations

import zipfile
import zlib

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import SPLIT_NAMES, SPLIT_OF, ArrayTable, Table
from slotool.errors import DataError
from slotool.printable import reason


class NpzAdapter(DataAdapter):
    name, suffixes = "npz", (".npz",)
    reads = "NumPy's .npz: arrays x and y, or any number of arrays by name; or x_train, y_train, x_test, y_test"

    def open(self, location: Location, options: DataOptions) -> Table:
        """Arrays whose names end in ``_train``, ``_validation`` or ``_test`` are splits of one array."""
        path = location.path
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise DataError(f"{path}: cannot be read ({reason(error)})") from error
        for name, array in arrays.items():
            if array.ndim == 0 or array.dtype.kind not in "fiubSU":
                raise DataError(f"{path}: array {name!r} holds {array.dtype} {list(array.shape)}; expected [n, …]")
        splits: dict[str, np.ndarray] = {}
        if all(_split_of(name)[1] for name in arrays):
            arrays, splits = _joined(str(path), arrays)
        return ArrayTable(str(path), arrays, splits, name=location.text)


def _split_of(name: str) -> tuple[str, str | None]:
    """Name without its split, and the split: ``x_train`` is x of train."""
    before, _, last = name.rpartition("_")
    return (before, SPLIT_OF[last]) if before and last in SPLIT_OF else (name, None)


def _joined(source: str, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Each array with its splits one after the other, and the rows of the splits."""
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
