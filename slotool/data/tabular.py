"""Data sets in one file: Parquet or CSV with a column per feature, and NumPy's ``.npz`` with arrays x and y."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from slotool.data.dataset import Dataset, Split
from slotool.errors import DataError

# Of the column with the classes, where none is named.
LABEL_NAMES = ("label", "class", "target", "y")
SPLIT_COLUMN = "split"
SPLITS = ("train", "validation", "test")
# Without a column that says which split a row is in: shares of train and validation; the rest is test.
SHARES = (0.6, 0.2)
SPLIT_SEED = 0
SUFFIXES = (".parquet", ".csv", ".npz")


def is_tabular(name: str) -> bool:
    """Whether ``name`` is a file of this kind, alone or followed by a colon and the label column."""
    return _parted(name)[0].suffix.lower() in SUFFIXES


def load_tabular(name: str) -> Dataset:
    """The data set in a file, ``wine.parquet`` or ``wine.parquet:quality`` with the column that holds the classes.

    Without a column it is the one called label, class, target or y. All other columns are features, numbers without
    gaps, in their order; a column ``split`` of train, validation and test says where a row belongs, else 60, 20 and
    20 % are drawn at random, always alike. Classes are the label's values in sorted order. An ``.npz`` holds ``x``
    [n, …] and ``y`` [n], and perhaps ``split``. Raises ``DataError`` naming file, column and row.
    """
    path, label = _parted(name)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    x, classes, splits = _of_npz(path, label) if path.suffix.lower() == ".npz" else _of_columns(path, label)
    if not len(x):
        raise DataError(f"{path}: it has no rows")
    labels, y = np.unique(classes, return_inverse=True)
    train, validation, test = (Split(x[rows], y[rows].astype(np.int64)) for rows in _rows(path, len(x), splits))
    return Dataset(name, train, validation, test, classes=len(labels), labels=tuple(map(str, labels)))


def _parted(name: str) -> tuple[Path, str | None]:
    before, colon, label = name.rpartition(":")
    if colon and Path(before).suffix.lower() in SUFFIXES:
        return Path(before), label
    return Path(name), None


def _of_columns(path: Path, label: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    try:
        rows = pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    rows.columns = rows.columns.map(str)
    names = [label] if label else [name for name in LABEL_NAMES if name in rows]
    if len(names) != 1 or names[0] not in rows:
        listed = ", ".join(rows.columns[:20])
        raise DataError(f"{path}: which column holds the classes? Write {path.name}:COLUMN; there are {listed}")
    if rows[names[0]].isna().any():
        raise DataError(f"{path}: row {_first(rows[names[0]].isna())} has no {names[0]}")
    features = rows.drop(columns=[*names, *({SPLIT_COLUMN} & set(rows.columns))])
    for name, column in features.items():
        if not pd.api.types.is_numeric_dtype(column):
            raise DataError(f"{path}: column {name!r} holds {column.dtype}, features are numbers; leave it out")
        if not np.isfinite(column.to_numpy(dtype=np.float64, na_value=np.nan)).all():
            raise DataError(f"{path}: row {_first(~np.isfinite(column))} has no finite number in column {name!r}")
    if features.shape[1] == 0:
        raise DataError(f"{path}: it has no feature beside {names[0]}")
    splits = rows[SPLIT_COLUMN].to_numpy() if SPLIT_COLUMN in rows else None
    return features.to_numpy(dtype=np.float32), rows[names[0]].to_numpy(), splits


def _of_npz(path: Path, label: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in ("x", label or "y", SPLIT_COLUMN) if name in arrays}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    x, y = found.get("x"), found.get(label or "y")
    if x is None or y is None or y.ndim != 1 or len(x) != len(y) or x.ndim < 2 or x.dtype.kind not in "fiub":
        raise DataError(f"{path}: arrays x [n, …] of numbers and {label or 'y'} [n] are expected")
    if not np.isfinite(x).all():
        raise DataError(f"{path}: x holds NaN or infinity")
    return x.astype(np.float32), y, found.get(SPLIT_COLUMN)


def _rows(path: Path, count: int, splits: np.ndarray | None) -> list[np.ndarray]:
    """The rows of train, validation and test."""
    if splits is None:
        ends = np.cumsum([round(count * share) for share in SHARES])
        return [np.sort(part) for part in np.split(np.random.default_rng(SPLIT_SEED).permutation(count), ends)]
    unknown = ~np.isin(splits.astype(str), SPLITS)
    if unknown.any():
        at = int(unknown.argmax())
        raise DataError(f"{path}: row {at} has split {str(splits[at])[:40]!r}, expected {', '.join(SPLITS)}")
    return [np.flatnonzero(splits.astype(str) == split) for split in SPLITS]


def _first(wrong: pd.Series) -> int:
    return int(np.asarray(wrong).argmax())
