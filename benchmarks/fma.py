"""FMA, the Free Music Archive set: ``features.csv`` and ``tracks.csv`` of its metadata → features and genres.

``python -m benchmarks.fma METADATA OUT`` writes them in the Extreme Classification Repository's format, for ``slotool
train xmc``.

One example per track that has both a row of features and genres (``genres_all``: a genre counts its ancestors too); the
set's own split column decides where it belongs. 518 features and 161 genres in the set as published.
"""

from __future__ import annotations

import csv
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit
from slotool.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FEATURES_FILE, TRACKS_FILE = "features.csv", "tracks.csv"
SPLITS = ("training", "validation", "test")
# Lines before the first track: the levels of the column names, then the index's own name.
FEATURE_LEVELS, TRACK_LEVELS = ("feature", "statistics", "number"), 2


def load_fma(folder: Path, source: str | None = None) -> MultiLabelDataset:
    """Dense float32 features, scaled to the training tracks' mean 0 and deviation 1; genre ids become labels in order.

    Raises ``DataError`` naming file and track, or line, for what is missing or damaged.
    """
    tracks, features = _tracks(folder / TRACKS_FILE), _features(folder / FEATURES_FILE)
    tracks = tracks.loc[tracks.index.intersection(features.index)]
    genres = [_genres(folder / TRACKS_FILE, track, text) for track, text in tracks["genres"].items()]
    counts = np.array([len(ids) for ids in genres], dtype=np.int64)
    classes, labels = np.unique(np.array([i for ids in genres for i in ids], dtype=np.int64), return_inverse=True)
    whole = MultiLabelSplit(
        features.loc[tracks.index].to_numpy(np.float64),
        LabelSets(np.concatenate([[0], np.cumsum(counts)]), labels.astype(np.int32)),
    )
    parts = [whole.take(np.flatnonzero((tracks["split"] == split).to_numpy() & (counts > 0))) for split in SPLITS]
    for split, part in zip(SPLITS, parts, strict=True):
        if not len(part):
            raise DataError(f"{folder / TRACKS_FILE}: no {split} track has both features and genres")
    train, validation, test = _scaled(parts)
    return MultiLabelDataset(
        name=folder.resolve().name,
        train=train,
        validation=validation,
        test=test,
        classes=len(classes),
        source=source or str(folder.resolve()),
        unlabelled=int((counts == 0).sum()),
    )


def _scaled(parts: list[MultiLabelSplit]) -> list[MultiLabelSplit]:
    mean, deviation = parts[0].x.mean(axis=0), parts[0].x.std(axis=0)
    deviation[deviation == 0.0] = 1.0
    return [MultiLabelSplit(((part.x - mean) / deviation).astype(np.float32), part.y) for part in parts]


def _features(path: Path) -> pd.DataFrame:
    """Return float64, a row per track id."""
    header = _header(path, len(FEATURE_LEVELS))
    if tuple(row[:1] for row in header) != tuple([level] for level in FEATURE_LEVELS):
        raise DataError(f"{path}: its first three lines do not begin with {', '.join(FEATURE_LEVELS)}")
    frame = _body(path, len(FEATURE_LEVELS) + 1)
    if len(frame.columns) != len(header[0]) - 1:
        raise DataError(f"{path}: {len(frame.columns)} values in a row, but {len(header[0]) - 1} features are named")
    return _finite(path, frame, [" ".join(names) for names in zip(*(row[1:] for row in header), strict=False)])


def _finite(path: Path, frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    import pandas as pd

    numbers: pd.DataFrame = frame.apply(pd.to_numeric, errors="coerce").astype(np.float64)
    bad = ~np.isfinite(numbers.to_numpy())
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise DataError(f"{path}, track {frame.index[row]}: {names[column]} is no finite number")
    return numbers


def _tracks(path: Path) -> pd.DataFrame:
    """Return the columns ``split`` and ``genres`` (text), a row per track id."""
    names = list(zip(*_header(path, TRACK_LEVELS), strict=False))
    for wanted in (("set", "split"), ("track", "genres_all")):
        if wanted not in names:
            raise DataError(f"{path}: its first two lines name no column {wanted[0]}, {wanted[1]}")
    at = {"split": names.index(("set", "split")), "genres": names.index(("track", "genres_all"))}
    frame = _body(path, TRACK_LEVELS + 1, [0, *at.values()])
    frame = frame.rename(columns={number: name for name, number in at.items()})
    strange = ~frame["split"].isin(SPLITS)
    if strange.any():
        track = frame.index[strange.to_numpy()][0]
        raise DataError(f"{path}, track {track}: split {frame['split'][track]!r} is none of {', '.join(SPLITS)}")
    return frame


def _genres(path: Path, track: object, text: object) -> list[int]:
    """Genre ids, ascending, of a cell such as ``[21, 12]``."""
    written = str(text).strip()
    try:
        if not (written.startswith("[") and written.endswith("]")):
            raise ValueError
        return sorted({int(part) for part in written[1:-1].split(",") if part.strip()})
    except ValueError:
        raise DataError(f"{path}, track {track}: genres_all {written[:40]!r} is no list of numbers") from None


def _header(path: Path, lines: int) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(islice(csv.reader(file), lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _body(path: Path, skipped_lines: int, columns: list[int] | None = None) -> pd.DataFrame:
    """Return the rows under the header, indexed by track id; columns are called by their position."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, skiprows=skipped_lines, header=None, index_col=0, usecols=columns, low_memory=False)
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not pd.api.types.is_integer_dtype(frame.index) or frame.index.has_duplicates:
        raise DataError(f"{path}: the first column must number the tracks, each once")
    return frame


def write_xmc(data: MultiLabelDataset, folder: Path) -> None:
    """Write ``train.txt``, of training and validation tracks, and ``test.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, splits in (("train", (data.train, data.validation)), ("test", (data.test,))):
        with (folder / f"{name}.txt").open("w") as file:
            file.write(f"{sum(map(len, splits))} {splits[0].x.shape[1]} {data.classes}\n")
            for split in splits:
                for i, row in enumerate(split.x):
                    labels = split.y.indices[split.y.indptr[i] : split.y.indptr[i + 1]]
                    features = " ".join(f"{at}:{value:.6g}" for at, value in enumerate(row) if value)
                    file.write(f"{','.join(map(str, labels))} {features}\n")


if __name__ == "__main__":
    write_xmc(load_fma(Path(sys.argv[1])), Path(sys.argv[2]))
