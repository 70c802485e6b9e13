"""The conformance suite of data sets of one class per example.

A new data set needs one class in a test file::

    class TestMine(DatasetConformance):
        make = staticmethod(load_mine)

Plain asserts, and no pytest import here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from slotool.data import Dataset
from slotool.data.dataset import Split


class DatasetConformance:
    """``make``: a function without arguments that loads the data set; it is called twice for all tests of a class."""

    make: Callable[[], Dataset]
    _loaded: ClassVar[dict[type, Dataset]] = {}

    def dataset(self) -> Dataset:
        """The data set, loaded once."""
        if type(self) not in self._loaded:
            self._loaded[type(self)] = type(self).make()
        return self._loaded[type(self)]

    def splits(self) -> dict[str, Split]:
        data = self.dataset()
        return {"train": data.train, "validation": data.validation, "test": data.test}

    def test_every_split_has_examples_and_a_class_for_each(self) -> None:
        for name, split in self.splits().items():
            assert len(split) > 0, f"{name} is empty"
            assert len(split.x) == len(split.y) == len(split)
            assert split.y.dtype == np.int64, f"{name}: classes are {split.y.dtype}, expected int64"
            assert split.y.shape == (len(split),)
            assert split.y.min() >= 0
            assert split.y.max() < self.dataset().classes

    def test_inputs_of_all_splits_are_of_one_type_and_shape(self) -> None:
        first = columns_of(self.dataset().train)
        for name, split in self.splits().items():
            columns = columns_of(split)
            assert list(columns) == list(first)
            for key, array in columns.items():
                assert array.shape[1:] == first[key].shape[1:], f"{name}: column {key}"
                assert array.dtype == first[key].dtype
                assert array.dtype.kind != "f" or np.isfinite(array).all(), f"{name}: NaN or infinite in {key}"
        if isinstance(self.dataset().train.x, np.ndarray):
            assert self.dataset().train.x.dtype == np.float32
            assert self.dataset().input_shape == self.dataset().train.x.shape[1:]

    def test_it_has_a_name_and_one_for_each_class(self) -> None:
        data = self.dataset()
        assert data.name.strip()
        assert len(data.labels) == data.classes
        assert len(set(data.labels)) == data.classes
        assert all(isinstance(label, str) and label.strip() for label in data.labels)

    def test_every_class_has_training_examples(self) -> None:
        assert set(self.dataset().train.y.tolist()) == set(range(self.dataset().classes))

    def test_what_scores_was_not_trained_on(self) -> None:
        """A few equal examples come by themselves; half of a split do not."""
        train = set(rows_of(self.dataset().train))
        for name in ("validation", "test"):
            rows = rows_of(self.splits()[name])
            known = sum(row in train for row in rows)
            assert known < 0.5 * len(rows), f"{known} of {len(rows)} {name} examples are in train too"

    def test_it_is_the_same_whenever_it_is_loaded(self) -> None:
        again = type(self).make()
        for name, split in self.splits().items():
            other = getattr(again, name)
            np.testing.assert_array_equal(other.y, split.y)
            assert rows_of(other) == rows_of(split)

    def test_chosen_examples_come_in_their_order(self) -> None:
        split = self.dataset().train
        rows = np.array([len(split) - 1, 0])
        taken = split.take(rows)
        np.testing.assert_array_equal(taken.y, split.y[rows])
        own = rows_of(split)
        assert rows_of(taken) == [own[-1], own[0]]


def columns_of(split: Split) -> dict[str, np.ndarray]:
    """Its inputs by name: one, called ``input``, where they are one array."""
    return {"input": split.x} if isinstance(split.x, np.ndarray) else dict(split.x.arrays)


def rows_of(split: Split) -> list[bytes]:
    """Each example's inputs as bytes: equal for equal examples."""
    arrays = [np.ascontiguousarray(array) for array in columns_of(split).values()]
    return [b"|".join(_content(array[i]) for array in arrays) for i in range(len(split))]


def _content(values: np.ndarray) -> bytes:
    return repr(values.tolist()).encode() if values.dtype == object else values.tobytes()
