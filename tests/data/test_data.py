"""Data sets: stable splits, and IDX files that are refused when torn."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from slotool.data import default_dataset, load_dataset
from slotool.data.adapters.idx import read_idx
from slotool.errors import DataError
from slotool.testing.datasets import DatasetConformance


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def test_digits_are_split_without_overlap_and_always_alike() -> None:
    first, second = load_dataset("digits"), load_dataset("digits")
    splits = (first.train, first.validation, first.test)
    assert sum(map(len, splits)) == 1797
    assert first.input_shape == (1, 8, 8)
    assert np.array_equal(first.test.x, second.test.x)
    assert all(set(split.y) == set(range(10)) for split in splits)
    assert min(s.x.min() for s in splits) == 0.0
    assert max(s.x.max() for s in splits) == 1.0


def test_digits_are_the_default_without_a_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLOTOOL_DATA_DIR", raising=False)
    assert default_dataset() == "digits"


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_round_trip(tmp_path: Path, zipped: bool) -> None:
    images = np.arange(24).reshape(2, 3, 4)
    path = tmp_path / ("images.gz" if zipped else "images")
    path.write_bytes(gzip.compress(idx_bytes(images)) if zipped else idx_bytes(images))
    assert np.array_equal(read_idx(path), images)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\1", "not an IDX file of unsigned bytes"),
        (b"\0\0\x08\x03\0\0\0\1", "cut short within its header"),
        (idx_bytes(np.zeros((2, 3)))[:-1], "but its header promises"),
    ],
)
def test_torn_idx_files_are_refused(tmp_path: Path, raw: bytes, sentence: str) -> None:
    path = tmp_path / "torn"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=sentence):
        read_idx(path)


def test_a_torn_gzip_and_an_unknown_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(9)))[:-5])
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "torn.gz")
    with pytest.raises(DataError, match="no data set called 'mnist'"):
        load_dataset("mnist")
    with pytest.raises(DataError, match="no Fashion-MNIST files"):
        load_dataset("fashion-mnist", tmp_path)


def test_fashion_mnist(data_dir: Path) -> None:
    data = load_dataset("fashion-mnist", data_dir)
    assert (len(data.train), len(data.validation), len(data.test)) == (55_000, 5_000, 10_000)
    assert data.input_shape == (1, 28, 28)
    assert np.bincount(data.test.y).tolist() == [1000] * 10


class TestDigits(DatasetConformance):
    make = staticmethod(lambda: load_dataset("digits"))
