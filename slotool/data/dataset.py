"""One shape for every data set, and the table from a name to its reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slotool.errors import DataError

DATA_DIR_VARIABLE = "SLOTOOL_DATA_DIR"


@dataclass(frozen=True)
class Split:
    """``x``: float32 [n, *input_shape], ``y``: int64 [n] class numbers."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A labelled image set in three disjoint splits.

    ``train`` fits weights and tables, ``validation`` chooses and calibrates, ``test`` scores and is used for nothing
    else. Pixels are scaled to [0, 1]; ``input_shape`` is (channels, height, width).
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int
    labels: tuple[str, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])


def load_dataset(name: str = "auto", folder: str | Path | None = None) -> Dataset:
    """The data set called ``name`` (see ``DATASETS``); ``auto`` is ``default_dataset()``.

    ``folder`` is where IDX files lie, by default ``$SLOTOOL_DATA_DIR``. Nothing is downloaded.
    Raises ``DataError`` for an unknown name, or files that are missing, torn or inconsistent.
    """
    if name == "auto":
        name = default_dataset()
    if name not in DATASETS:
        raise DataError(f"no data set called {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name](Path(folder) if folder else data_folder())


def default_dataset() -> str:
    """``fashion-mnist`` when its files lie in ``$SLOTOOL_DATA_DIR``, else ``digits``, which needs none."""
    from slotool.data.idx import has_fashion_mnist

    return "fashion-mnist" if has_fashion_mnist(data_folder()) else "digits"


def data_folder() -> Path | None:
    """``$SLOTOOL_DATA_DIR`` when it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


def _digits(_: Path | None) -> Dataset:
    from slotool.data.digits import load_digits

    return load_digits()


def _fashion_mnist(folder: Path | None) -> Dataset:
    from slotool.data.idx import load_fashion_mnist

    return load_fashion_mnist(folder)


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {"digits": _digits, "fashion-mnist": _fashion_mnist}
