"""From a data set's name to its reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slotool.data.dataset import Dataset
from slotool.data.digits import load_digits
from slotool.data.idx import has_fashion_mnist, load_fashion_mnist
from slotool.errors import DataError

DATA_DIR_VARIABLE = "SLOTOOL_DATA_DIR"


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
    return "fashion-mnist" if has_fashion_mnist(data_folder()) else "digits"


def data_folder() -> Path | None:
    """``$SLOTOOL_DATA_DIR`` when it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": lambda folder: load_digits(),
    "fashion-mnist": load_fashion_mnist,
}
