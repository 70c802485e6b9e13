"""What holds for a data set of every adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.data import ADAPTERS, Dataset, load_dataset
from slotool.data.stored import StoredExamples
from tests.data.dataset_cases import CASES, CLASSES, PIXELS, Case, N


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def both(case: Case, folder: Path) -> tuple[Dataset, Dataset]:
    """In memory, and left in its files."""
    name = case.write(folder)
    return load_dataset(name, **case.options), load_dataset(name, **case.options, stored=True)


def test_three_disjoint_splits_of_finite_numbers_and_known_classes(case: Case, tmp_path: Path) -> None:
    data, _ = both(case, tmp_path)
    assert data.input_shape == case.input_shape
    assert len(data.labels) == data.classes >= 3
    for split in data.splits.values():
        assert len(split) == len(split.x) > 0
        assert (split.x.dtype, split.y.dtype) == (np.float32, np.int64)
        assert split.x.flags.writeable
        assert np.isfinite(split.x).all()
        assert 0 <= split.y.min() <= split.y.max() < data.classes
    rows = [row.tobytes() for split in data.splits.values() for row in split.x]
    assert len(rows) == (1797 if case.adapter == "digits" else N)
    assert len(set(rows)) >= len(rows) - 5  # of the digits, a few occur twice


def test_a_set_left_in_its_files_holds_the_same(case: Case, tmp_path: Path) -> None:
    loaded, stored = both(case, tmp_path)
    assert (stored.labels, stored.input_shape) == (loaded.labels, loaded.input_shape)
    for name, split in loaded.splits.items():
        x = stored.splits[name].x
        assert isinstance(x, StoredExamples)
        assert x.shape == split.x.shape
        assert np.array_equal(stored.splits[name].y, split.y)
        backwards = np.arange(len(split))[::-1]
        for rows in (slice(2, 5), slice(0, 0), slice(None), backwards, np.array([3, 3, 0])):
            assert np.array_equal(x[rows], split.x[rows]), rows
            assert x[rows].flags.writeable


def test_it_is_the_same_again_and_by_the_name_of_its_adapter(case: Case, tmp_path: Path) -> None:
    name = case.write(tmp_path)
    first, again = load_dataset(name), load_dataset(name)
    assert np.array_equal(first.train.x, again.train.x)
    if ":" not in name:
        chosen = load_dataset(f"{case.adapter}:{name}")
        assert np.array_equal(chosen.test.x, first.test.x)


def test_every_adapter_has_a_case_or_a_file_of_tests() -> None:
    assert {case.adapter for case in CASES.values()} == ADAPTERS.keys() - {"xmc"}


@pytest.mark.parametrize("name", ["images", "datasets of images"])
def test_pixels_are_those_of_the_files(tmp_path: Path, name: str) -> None:
    data, _ = both(CASES[name], tmp_path)
    assert data.labels == CLASSES
    known = {pixels.tobytes() for pixels in PIXELS}
    for x in np.concatenate([split.x for split in data.splits.values()]):
        assert np.array_equal(x[0], x[2])
        assert (x[0] * 255).round().astype(np.uint8).tobytes() in known
