"""The conformance suite of data sets.

A new data set needs one class in a test file::

    class TestMine(DatasetConformance):
        make = staticmethod(load_mine)

Plain asserts, and no pytest import here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from slotool.data import Columns, Dataset
from slotool.data.columns import RaggedColumns
from slotool.data.dataset import LabelSets, Split


class DatasetConformance:
    """``make``: a function without arguments that loads the data set; it is called twice for all tests of a class."""

    make: Callable[[], Dataset]
    _loaded: ClassVar[dict[type, Dataset]] = {}

    def dataset(self) -> Dataset:
        """Return the data set, loaded once."""
        if type(self) not in self._loaded:
            self._loaded[type(self)] = type(self).make()
        return self._loaded[type(self)]

    def test_every_split_has_examples_and_a_label_for_each(self) -> None:
        data = self.dataset()
        for name, split in data.splits.items():
            assert len(split) > 0, f"{name} is empty"
            assert len(split.x) == len(split.y) == len(split)
            if data.target == "class":
                assert split.y.dtype == np.int64, f"{name}: classes are {split.y.dtype}, expected int64"
                assert split.y.shape == (len(split),)
                assert 0 <= split.y.min() <= split.y.max() < data.classes
            elif data.target == "sets":
                assert isinstance(split.y, LabelSets)
                assert not len(split.y.indices) or 0 <= split.y.indices.min() <= split.y.indices.max() < data.classes
            elif data.target == "numbers":
                assert split.y.dtype == np.float64
                assert np.isfinite(split.y).all()

    def test_inputs_of_all_splits_are_of_one_type_and_shape(self) -> None:
        data = self.dataset()
        first = columns_of(data.train)
        for name, split in data.splits.items():
            columns = columns_of(split)
            assert list(columns) == list(first)
            for key, array in columns.items():
                assert array.shape[1:] == first[key].shape[1:], f"{name}: column {key}"
                assert array.dtype == first[key].dtype
                assert array.dtype.kind != "f" or np.isfinite(array).all(), f"{name}: NaN or infinite in {key}"
        if isinstance(data.train.x, np.ndarray):
            assert data.train.x.dtype == np.float32
            assert data.input_shape == data.train.x.shape[1:]

    def test_it_has_a_name_and_one_for_each_class(self) -> None:
        data = self.dataset()
        assert data.name.strip()
        assert len(data.labels) == data.classes
        assert len(set(data.labels)) == data.classes
        assert all(isinstance(label, str) and label.strip() for label in data.labels)
        assert data.classes > 1 or data.target not in ("class", "sets")

    def test_every_class_has_training_examples(self) -> None:
        data = self.dataset()
        if data.target == "class":
            assert set(data.train.y.tolist()) == set(range(data.classes))

    def test_what_scores_was_not_trained_on(self) -> None:
        """Fail if half of a split is also in the training split; a few equal examples occur by chance."""
        data = self.dataset()
        train = set(rows_of(data.train))
        for name in ("validation", "test"):
            rows = rows_of(data.splits[name])
            repeated = sum(row in train for row in rows)
            assert repeated < 0.5 * len(rows), f"{repeated} of {len(rows)} {name} examples are in train too"

    def test_it_is_the_same_whenever_it_is_loaded(self) -> None:
        again = type(self).make()
        for name, split in self.dataset().splits.items():
            assert rows_of(again.splits[name]) == rows_of(split)
            assert labels_of(again.splits[name]) == labels_of(split)

    def test_chosen_examples_come_in_their_order(self) -> None:
        split = self.dataset().train
        last_and_first = split.take(np.array([len(split) - 1, 0]))
        rows, labels = rows_of(split), labels_of(split)
        assert rows_of(last_and_first) == [rows[-1], rows[0]]
        assert labels_of(last_and_first) == [labels[-1], labels[0]]


def columns_of(split: Split) -> dict[str, np.ndarray]:
    """Return inputs of one length by name, an array as ``input``; stored examples are all read."""
    x = split.x[:]
    columns = x.arrays if isinstance(x, Columns) else x.columns if isinstance(x, RaggedColumns) else {"input": x}
    return {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}


def rows_of(split: Split) -> list[bytes]:
    """Return each example's inputs as bytes: equal for equal examples."""
    whole = split.x[:]
    if isinstance(whole, np.ndarray):
        return [_content(row) for row in whole]
    parts = [whole[i : i + 1].arrays.values() for i in range(len(split))]
    return [b"|".join(map(_content, part)) for part in parts]


def labels_of(split: Split) -> list[bytes]:
    """Return each example's label as bytes."""
    y = split.y
    return [_content(y.of(i) if isinstance(y, LabelSets) else np.asarray(y[i])) for i in range(len(split))]


def _content(values: np.ndarray) -> bytes:
    return repr(values.tolist()).encode() if values.dtype == object else np.ascontiguousarray(values).tobytes()
