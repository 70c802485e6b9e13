"""The IDX format (as used by MNIST and Fashion-MNIST), plain or gzip."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from slotool.data.dataset import Dataset, Split
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
VALIDATION_IMAGES = 5_000
_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of an IDX file, with the shape its header states. Raises ``DataError``."""
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
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(raw) != expected:
        raise DataError(f"{path}: {len(raw)} bytes, but its header promises {expected}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def has_fashion_mnist(folder: Path | None) -> bool:
    """Whether the four files lie in ``folder`` or its ``fashion-mnist`` subfolder."""
    return folder is not None and _fashion_mnist_folder(folder) is not None


def load_fashion_mnist(folder: Path | None) -> Dataset:
    """55,000 train, 5,000 validation (the tail of the training file) and 10,000 test images. Raises ``DataError``."""
    found = _fashion_mnist_folder(folder) if folder else None
    if found is None:
        where = f"{folder} (or {folder}/fashion-mnist)" if folder else "SLOTOOL_DATA_DIR, which is not set"
        raise DataError(f"no Fashion-MNIST files (train-images-idx3-ubyte[.gz] …) in {where}")
    x, y = _images_and_labels(found, "train")
    x_test, y_test = _images_and_labels(found, "t10k")
    if len(x) <= VALIDATION_IMAGES:
        raise DataError(f"{found}: only {len(x)} training images; {VALIDATION_IMAGES} are held out for validation")
    return Dataset(
        "fashion-mnist",
        Split(x[:-VALIDATION_IMAGES], y[:-VALIDATION_IMAGES]),
        Split(x[-VALIDATION_IMAGES:], y[-VALIDATION_IMAGES:]),
        Split(x_test, y_test),
        classes=10,
        labels=FASHION_MNIST_LABELS,
    )


def _fashion_mnist_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / "fashion-mnist"):
        if all(_idx_path(candidate, part, kind) for part in ("train", "t10k") for kind in ("images", "labels")):
            return candidate
    return None


def _idx_path(folder: Path, part: str, kind: str) -> Path | None:
    name = f"{part}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _images_and_labels(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images_path, labels_path = _idx_path(folder, part, "images"), _idx_path(folder, part, "labels")
    assert images_path is not None and labels_path is not None  # noqa: PT018  (found by _fashion_mnist_folder)
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.ndim != 1:
        raise DataError(f"{images_path}: expected images of two dimensions and labels of none")
    if len(images) != len(labels):
        raise DataError(f"{images_path}: {len(images)} images but {len(labels)} labels")
    return images[:, None].astype(np.float32) / np.float32(255.0), labels.astype(np.int64)
