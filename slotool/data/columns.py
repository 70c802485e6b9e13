"""Examples of several named tensors, as a model of several inputs takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.errors import InputError


class Columns:
    """Named arrays of one length, in the order given: ``arrays["input_ids"][i]`` belongs to example i.

    Indexing by a slice or an array of positions or booleans gives those examples, of every array. Raises ``InputError``
    when there is no array, one has no dimension, or two differ in length.
    """

    __slots__ = ("arrays",)

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        if not arrays:
            raise InputError("examples need at least one named tensor")
        lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length is None:
                raise InputError(f"tensor {name}: a single value, expected one per example")
            if length != lengths[first]:
                raise InputError(f"tensor {name} has {length} examples, {first} has {lengths[first]}")
        self.arrays: dict[str, np.ndarray] = dict(arrays)

    @classmethod
    def unchecked(cls, arrays: dict[str, np.ndarray]) -> Columns:
        """Of arrays that are known to be of one length; ``arrays`` itself is kept. A served request waits for this."""
        columns = cls.__new__(cls)
        columns.arrays = arrays
        return columns

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, rows: slice | np.ndarray) -> Columns:
        return Columns.unchecked({name: array[rows] for name, array in self.arrays.items()})

    def __iter__(self) -> Iterator[str]:
        raise TypeError("Columns are iterated by .arrays (by name) or indexed by rows")

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in self.arrays.items())
        return f"Columns({tensors})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all values; of ``bytes`` objects, of their content."""
        total = 0
        for array in self.arrays.values():
            total += sum(map(len, array.ravel())) if array.dtype.kind == "O" else array.nbytes
        return total

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Equal where examples can be joined in one batch: names, dtypes and shapes of one example."""
        return tuple([(name, array.dtype, array.shape[1:]) for name, array in self.arrays.items()])

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The examples of all parts, one after another. Raises ``InputError`` when their ``batch_key`` differ."""
        if not parts:
            raise InputError("no examples to join")
        for part in parts[1:]:
            if part.batch_key != parts[0].batch_key:
                raise InputError(f"examples of {part!r} cannot be joined with those of {parts[0]!r}")
        return cls({name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].names})


Inputs = np.ndarray | Columns


def only_array(x: Inputs) -> np.ndarray:
    """Return ``x`` itself, or its only column. Raises ``InputError`` where there are several."""
    if not isinstance(x, Columns):
        return x
    if len(x.arrays) > 1:
        raise InputError(f"one tensor is expected, not {', '.join(x.arrays)}")
    return next(iter(x.arrays.values()))


def concatenate(parts: Sequence[Inputs]) -> Inputs:
    """Arrays, or columns, joined along their examples. Raises ``InputError`` when they are of different kinds."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    columns = [part for part in parts if isinstance(part, Columns)]
    if arrays and columns:
        raise InputError("examples of one tensor cannot be joined with examples of several")
    return np.concatenate(arrays) if arrays else Columns.concatenate(columns)
