"""Data sets: examples in three splits, with one label each or several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from slotool.data.columns import Columns, RaggedColumns, concatenated, described
from slotool.data.stored import StoredExamples
from slotool.errors import ArgumentError, DataError, InputError
from slotool.machine import usable_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Name of all splits together, in commands.
ALL = "all"
# Share of free memory for the examples of one data set.
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class Split:
    """Examples and what is right of each.

    ``x``: float32 [n, *input_shape] where a model has one floating-point input, else ``Columns`` (``RaggedColumns``
    where lengths differ); of a set that stays in its files ``StoredExamples``, whose slices are one of these.
    ``y``: int64 [n] class numbers, float64 [n, ...] numbers, ``LabelSets``, or ``bytes`` objects [n] of text.
    ``rows``: which row of the file each example is, from 0: int64 [n]; None where that is not known.
    """

    x: Any
    y: Any
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, examples: np.ndarray) -> Split:
        """Return these examples in this order."""
        y = self.y.take(examples) if isinstance(self.y, LabelSets) else self.y[examples]
        return Split(self.x[examples], y, None if self.rows is None else self.rows[examples])


@dataclass(frozen=True)
class Dataset:
    """Labelled examples in three disjoint splits.

    ``train`` fits weights and tables, ``validation`` chooses and calibrates, ``test`` scores and is used for nothing
    else. ``target``: what labels are: class, numbers, sets or text. ``classes``: how many there are, ``labels``: their
    names; none of numbers and text. ``label``: the column they come from, "" where they have none.
    ``source``: what ``load_dataset`` takes to load it again, as JSON. ``kept``: further columns, text by row of
    the file. ``features``: names of the columns of numbers that examples are made of, in order; () of one array.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int
    labels: tuple[str, ...]
    target: str = "class"
    label: str = ""
    source: Any = ""
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    features: tuple[str, ...] = ()

    @property
    def origin(self) -> dict[str, Any]:
        """Entries in the configuration of an artifact that is made with it; ``features`` order columns of a table."""
        return {"data": self.source or self.name, **({"features": list(self.features)} if self.features else {})}

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example. Raises ``DataError`` if examples are not one floating-point tensor."""
        if not isinstance(self.train.x, Columns | RaggedColumns):
            return tuple(self.train.x.shape[1:])
        present = ", ".join(f"{name} ({described(column)})" for name, column in _columns(self.train.x).items())
        raise DataError(
            f"{self.name}: one tensor of floating-point numbers is needed here, its examples have {present}; "
            "leave columns out, or name those wanted with --input COLUMN=TENSOR"
        )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one example: [channels, height, width]. Raises ``DataError`` if examples are no images."""
        if len(shape := self.input_shape) == 3:
            return shape
        raise DataError(
            f"{self.name}: images of [channels, height, width] are needed here, its examples have shape {list(shape)}; "
            "a network for tables is made by: slotool train mlp"
        )

    def loaded_if_small(self) -> Dataset:
        """Return the set, with examples in memory if they need at most ``MEMORY_SHARE`` of free memory."""
        stored = [split.x for split in self.splits.values() if isinstance(split.x, StoredExamples) and len(split)]
        if sum(x.nbytes for x in stored) > MEMORY_SHARE * usable_memory():
            return self
        train, validation, test = (Split(_loaded(split.x), split.y) for split in self.splits.values())
        return replace(self, train=train, validation=validation, test=test)

    @property
    def everything(self) -> Split:
        """The examples of all splits, one split after the other."""
        parts = [split for split in self.splits.values() if len(split)]
        xs, ys = [part.x for part in parts], [part.y for part in parts]
        y = LabelSets.concatenate(ys) if isinstance(ys[0], LabelSets) else np.concatenate(ys)
        rows_of_parts = [part.rows for part in parts if part.rows is not None]
        rows = np.concatenate(rows_of_parts) if len(rows_of_parts) == len(parts) else None
        if isinstance(xs[0], np.ndarray):
            return Split(np.concatenate(xs), y, rows)
        return Split(StoredExamples.joined(xs) if isinstance(xs[0], StoredExamples) else concatenated(xs), y, rows)

    @property
    def splits(self) -> dict[str, Split]:
        """Splits by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def examples(self, split: str) -> Split:
        """Return the split called so, or all examples for ``ALL``. Raises ``ArgumentError`` for another name."""
        if split == ALL:
            return self.everything
        return _named(self.splits, split, (ALL,))


@dataclass(frozen=True)
class LabelSets:
    """The labels of n examples: example i has ``indices[indptr[i] : indptr[i + 1]]``, ascending, each once.

    ``indptr``: int64 [n + 1], ``indices``: int32.
    """

    indptr: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> np.ndarray:
        """Number of labels of each example, int64 [n]."""
        return np.diff(self.indptr)

    def of(self, example: int) -> np.ndarray:
        """Return the labels of one example: int32."""
        return self.indices[self.indptr[example] : self.indptr[example + 1]]

    def take(self, examples: np.ndarray) -> LabelSets:
        """Return the label sets of ``examples`` (int [m]) in this order."""
        counts = self.counts[examples]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        at = np.arange(indptr[-1]) + np.repeat(self.indptr[examples] - indptr[:-1], counts)
        return LabelSets(indptr, self.indices[at])

    @classmethod
    def concatenate(cls, parts: Sequence[LabelSets]) -> LabelSets:
        """Return the labels of the examples of ``parts``, one part after the other."""
        counts = np.concatenate([part.counts for part in parts])
        return cls(np.concatenate([[0], np.cumsum(counts)]), np.concatenate([part.indices for part in parts]))

    def matrix(self, classes: int) -> np.ndarray:
        """Return the mask of labels by example, bool [n, classes]."""
        present = np.zeros((len(self), classes), dtype=bool)
        present[np.repeat(np.arange(len(self)), self.counts), self.indices] = True
        return present

    def contain(self, answers: np.ndarray) -> np.ndarray:
        """Return the mask of answers, int [n, k], that are labels of their example: bool [n, k]."""
        if not len(self.indices):
            return np.zeros(answers.shape, dtype=bool)
        width = max(int(self.indices.max()), int(answers.max(initial=0))) + 1
        pairs = np.repeat(np.arange(len(self)) * width, self.counts) + self.indices
        queries = np.arange(len(self))[:, None] * width + answers
        candidates = pairs[np.minimum(np.searchsorted(pairs, queries), len(pairs) - 1)]
        contained: np.ndarray = candidates == queries
        return contained


@dataclass(frozen=True)
class MultiLabelSplit:
    """``x``: float32 [n, features], a SciPy CSR matrix or, where features are dense, an array; ``y``: their labels."""

    x: csr_matrix | np.ndarray
    y: LabelSets

    def __len__(self) -> int:
        return len(self.y)

    def take(self, examples: np.ndarray) -> MultiLabelSplit:
        """Return these examples in this order."""
        return MultiLabelSplit(self.x[examples], self.y.take(examples))


def first_examples(split: Any, limit: int | None) -> Any:
    """Return a split's first ``limit`` examples, or all."""
    return split if limit is None else split.take(np.arange(min(limit, len(split))))


@dataclass(frozen=True)
class MultiLabelDataset:
    """Examples with any number of labels each, in three disjoint splits that mean what ``Dataset``'s mean.

    ``classes``: how many labels there are. ``source``: what ``load_multilabel`` takes to load it again. ``unlabelled``:
    examples left out because no answer to them could be right.
    """

    name: str
    train: MultiLabelSplit
    validation: MultiLabelSplit
    test: MultiLabelSplit
    classes: int
    source: Any
    unlabelled: int = 0

    @property
    def origin(self) -> dict[str, Any]:
        """Entries in the configuration of an artifact that is made with it."""
        return {"data": self.source or self.name}

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (int(self.train.x.shape[1]),)

    def examples(self, split: str) -> MultiLabelSplit:
        """Return the split called so. Raises ``ArgumentError`` for another name."""
        return _named({"train": self.train, "validation": self.validation, "test": self.test}, split)

    @property
    def sparse(self) -> bool:
        """True if the splits' ``x`` are CSR matrices."""
        return not isinstance(self.train.x, np.ndarray)


_Part = TypeVar("_Part", Split, MultiLabelSplit)


def _named(splits: Mapping[str, _Part], split: str, others: Sequence[str] = ()) -> _Part:
    if split not in splits:
        raise ArgumentError("split", f"{split!r} is none of {', '.join((*others, *splits))}")
    return splits[split]


def _loaded(x: Any) -> Any:
    return x.load() if isinstance(x, StoredExamples) else x


def _columns(x: Columns | RaggedColumns) -> dict[str, Any]:
    return dict(x.arrays if isinstance(x, Columns) else x.columns)


def numbered(data: Any, classes: int) -> Any:
    """Return ``data`` with labels that number a model's ``classes`` classes, as they are where it has as many.

    A data set numbers its classes by the order of their names. Where it lacks some of a model's, as texts lack most
    words of a vocabulary, these names must be the model's numbers. Without classes it stays as it is. Raises
    ``InputError`` where they are no such numbers, and for several labels per example.
    """
    if data.classes in (0, classes):
        return data
    if not isinstance(data, Dataset) or isinstance(data.train.y, LabelSets):
        raise InputError(f"the network knows {classes} classes, and {data.name} has {data.classes}")
    numbers = [int(name) if re.fullmatch(r"\d{1,9}", name) else -1 for name in data.labels]
    if not all(0 <= number < classes for number in numbers):
        strange = next(name for name, number in zip(data.labels, numbers, strict=True) if not 0 <= number < classes)
        raise InputError(
            f"the model has {classes:,} classes, and {data.name} has {data.classes:,} labels, not all of them numbers "
            f"from 0 to {classes - 1:,}: {strange[:40]!r}; add an example of each class, or label examples by these "
            "numbers; for a model that predicts numbers the task is regression"
        )
    of = np.array(numbers, dtype=np.int64)
    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    renumbered = {name: replace(split, y=of[split.y]) for name, split in splits.items()}
    return replace(data, **renumbered, classes=classes, labels=tuple(map(str, range(classes))))
