"""Folder of images by class: ``folder/CLASS/*.png`` or ``folder/SPLIT/CLASS/*.png``; unlabelled ``folder/*.png``.

Images are decoded when taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.columns import Ragged
from slotool.data.options import DataOptions
from slotool.data.table import SPLIT_OF, ColumnSource, Field
from slotool.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_IMAGE_BYTES = 64 << 20
IMAGE, LABEL = "image", "label"


class ImageFolderAdapter(DataAdapter):
    name = "images"
    reads = "a folder of images by class, CLASS/*.png or *.jpg, perhaps below train, validation and test"

    def recognises(self, location: Location) -> bool:
        """True if images lie in the folder, or one or two folders below it."""
        if not location.path.is_dir():
            return False
        below = _folders(location.path)
        deeper = (folder for name in below for folder in _folders(name))
        return any(next(_images(folder), None) is not None for folder in (location.path, *below, *deeper))

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        folders = _folders(location.path)
        if folders and all(folder.name in SPLIT_OF for folder in folders):
            return ImageFolder(location, {folder: SPLIT_OF[folder.name] for folder in folders})
        return ImageFolder(location, {location.path: ""})


class ImageFolder(ColumnSource):
    """Columns ``image`` and, for images in folders of classes, ``label``. ``parts``: split by folder, or "".

    Raises ``DataError`` naming an image beside folders of classes.
    """

    def __init__(self, location: Location, parts: dict[Path, str]):
        self.source, self.name, self.splits = str(location.path), location.text, {}
        classes = sorted({folder.name for part in parts for folder in _folders(part)})
        loose = [path for part in parts for path in _images(part)]
        if loose and classes:
            raise DataError(f"{loose[0]}: this image lies beside the folders of classes ({', '.join(classes[:5])})")
        number = {name: i for i, name in enumerate(classes)}
        self._files: list[str] = []
        labels: list[int] = []
        for part, split in parts.items():
            first = len(self._files)
            for folder in _folders(part):
                images = list(_images(folder))
                if not images:
                    raise DataError(f"{folder}: this class folder holds no image ({', '.join(SUFFIXES)})")
                self._files += images
                labels += [number[folder.name]] * len(images)
            if split:
                before = self.splits.get(split, np.empty(0, np.int64))
                self.splits[split] = np.concatenate([before, np.arange(first, len(self._files))])
        self._files += loose
        self._labels = np.array(labels, dtype=np.int64)
        self.fields = {IMAGE: Field(np.dtype(np.object_), is_image=True)}
        if classes:
            self.fields[LABEL] = Field(np.dtype(np.int64), class_names=tuple(classes))

    def __len__(self) -> int:
        return len(self._files)

    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        return {column: self._labels[rows] if column == LABEL else self._bodies(rows) for column in columns}

    def row_name(self, row: int) -> str:
        return os.path.relpath(self._files[row], self.source)

    def _bodies(self, rows: np.ndarray) -> np.ndarray:
        bodies = np.empty(len(rows), dtype=np.object_)
        for at, row in enumerate(rows.tolist()):
            try:
                with open(self._files[row], "rb") as file:
                    bodies[at] = file.read(MAX_IMAGE_BYTES + 1)
            except OSError as error:
                raise DataError(f"{self._files[row]}: cannot be read ({error.strerror})") from error
            if len(bodies[at]) > MAX_IMAGE_BYTES:
                raise DataError(f"{self._files[row]}: more than {MAX_IMAGE_BYTES >> 20} MiB, too large for an image")
        return bodies


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, by name, without hidden ones."""
    if not path.is_dir():
        return []
    return sorted(below for below in path.iterdir() if below.is_dir() and not below.name.startswith((".", "__")))


def _images(folder: Path) -> Iterator[str]:
    """Yield the paths of its images, by name; other files are none of the data."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.name.lower().endswith(SUFFIXES))
    return (str(folder / name) for name in names if not name.startswith("."))
