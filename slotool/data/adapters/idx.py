"""Images of digits and their like: the IDX format (MNIST, Fashion-MNIST), plain or gzip, and scikit-learn's digits."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.columns import Ragged
from slotool.data.options import DataOptions
from slotool.data.table import SPLITS, ArrayTable, ColumnSource, Field
from slotool.errors import DataError

FASHION_MNIST_LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Maximum size of the validation split, and its share of the training images.
VALIDATION_IMAGES = 5_000
PARTS = ("train", "t10k")
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array of an IDX file, with the shape its header states. Raises ``DataError``."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE:
        raise DataError(f"{path}: not an IDX file of unsigned bytes")
    header = 4 + 4 * raw[3]
    if len(raw) < header:
        raise DataError(f"{path}: cut short within its header")
    shape = struct.unpack(f">{raw[3]}I", raw[4:header])
    expected = header + math.prod(shape)
    if len(raw) != expected:
        raise DataError(f"{path}: {len(raw)} bytes, but its header promises {expected}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


class IdxAdapter(DataAdapter):
    name, known = "idx", ("fashion-mnist",)
    reads = "a folder of the four IDX files of MNIST and its successors (train-images-idx3-ubyte[.gz] …)"

    def recognises(self, location: Location) -> bool:
        return location.path.is_dir() and _complete(location.path)

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """Read images as float32 [n, 1, height, width] in [0, 1]; the training file's tail is the validation split."""
        if location.text not in self.known:
            return IdxTable(location.path, location.text)
        located = _fashion_mnist_folder(location.data_folder)
        if located is None:
            folder = location.data_folder
            where = f"{folder} (or {folder}/fashion-mnist)" if folder else "SLOTOOL_DATA_DIR, which is not set"
            raise DataError(f"no Fashion-MNIST files (train-images-idx3-ubyte[.gz] …) in {where}")
        return IdxTable(located, location.text, FASHION_MNIST_LABELS)


class IdxTable(ColumnSource):
    """Columns ``x`` and ``label``; pixels are scaled when they are read."""

    def __init__(self, folder: Path, name: str, class_names: tuple[str, ...] = ()):
        self.source, self.name = str(folder), name
        parts = [_images_and_labels(folder, part) for part in PARTS]
        (images, labels), (test_images, test_labels) = parts
        held_out = min(VALIDATION_IMAGES, len(images) // 10)
        if not held_out or images.shape[1:] != test_images.shape[1:]:
            raise DataError(f"{folder}: {len(images)} training images are too few, or test images are of another size")
        ends = np.cumsum([0, len(images) - held_out, held_out, len(test_images)])
        self.splits = {split: np.arange(ends[i], ends[i + 1]) for i, split in enumerate(SPLITS)}
        self._images, self._labels = (images, test_images), np.concatenate([labels, test_labels])
        names = class_names or tuple(map(str, range(int(self._labels.max()) + 1)))
        self.fields = {
            "x": Field(np.dtype(np.float32), (1, *images.shape[1:])),
            "label": Field(self._labels.dtype, class_names=names),
        }

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, columns: Sequence[str], rows: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        return {name: self._labels[rows] if name == "label" else self._pixels(rows) for name in columns}

    def _pixels(self, rows: np.ndarray) -> np.ndarray:
        first, second = self._images
        pixels = np.empty((len(rows), 1, *first.shape[1:]), dtype=np.float32)
        in_first = rows < len(first)
        pixels[in_first, 0] = first[rows[in_first]]
        pixels[~in_first, 0] = second[rows[~in_first] - len(first)]
        pixels /= np.float32(255.0)
        return pixels


def has_fashion_mnist(folder: Path | None) -> bool:
    """True if the four files lie in ``folder`` or its ``fashion-mnist`` subfolder."""
    return folder is not None and _fashion_mnist_folder(folder) is not None


def _fashion_mnist_folder(folder: Path | None) -> Path | None:
    candidates = (folder, folder / "fashion-mnist") if folder else ()
    return next((candidate for candidate in candidates if _complete(candidate)), None)


def _complete(folder: Path) -> bool:
    return all(_idx_path(folder, part, kind) for part in PARTS for kind in ("images", "labels"))


def _idx_path(folder: Path, part: str, kind: str) -> Path | None:
    axes = 3 if kind == "images" else 1
    names = (f"{part}-{kind}{sign}idx{axes}-ubyte{end}" for sign in "-." for end in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _images_and_labels(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images_path, labels_path = _idx_path(folder, part, "images"), _idx_path(folder, part, "labels")
    assert images_path is not None and labels_path is not None  # noqa: PT018  (found by _complete)
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1:
        raise DataError(f"{images_path}: expected images of two dimensions and labels of none")
    if len(images) != len(labels):
        raise DataError(f"{images_path}: {len(images)} images but {len(labels)} labels")
    return images, labels.astype(np.int64)


SPLIT_SEED = 0


class DigitsAdapter(DataAdapter):
    name, known = "digits", ("digits",)
    reads = "scikit-learn's 1,797 images of digits, 8×8, in [0, 1]"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """Return 1,077 train, 360 validation, 360 test images, stratified by class; the split never changes."""
        from sklearn import datasets
        from sklearn.model_selection import train_test_split

        images, labels = datasets.load_digits(return_X_y=True)
        x = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        y = labels.astype(np.int64)
        rows = np.arange(len(y))
        train, rest = train_test_split(rows, test_size=0.4, stratify=y, random_state=SPLIT_SEED)
        validation, test = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=SPLIT_SEED)
        splits = dict(zip(SPLITS, (train, validation, test), strict=True))
        return ArrayTable("digits", {"x": x, "label": y}, splits, class_names={"label": "0123456789"})
