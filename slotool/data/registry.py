"""From a data set's name, or its folder, to its reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slotool.data.adapters.digits import load_digits
from slotool.data.adapters.fma import has_fma, load_fma
from slotool.data.adapters.idx import has_fashion_mnist, load_fashion_mnist
from slotool.data.adapters.xmc import find_files, load_xmc
from slotool.data.dataset import Dataset, MultiLabelDataset
from slotool.data.tabular import SUFFIXES, is_tabular, load_tabular
from slotool.errors import DataError

DATA_DIR_VARIABLE = "SLOTOOL_DATA_DIR"
# Where extreme-classification sets lie in the data folder, each in a folder of its name.
XMC_FOLDER = "xmc"


def load_dataset(name: str = "auto", folder: str | Path | None = None) -> Dataset:
    """The data set called ``name`` (see ``DATASETS``), or in the file ``name`` (see ``load_tabular``); ``auto`` is
    ``default_dataset()``.

    ``folder`` is where IDX files lie, by default ``$SLOTOOL_DATA_DIR``. Nothing is downloaded.
    Raises ``DataError`` for an unknown name, or files that are missing, torn or inconsistent.
    """
    if name == "auto":
        name = default_dataset()
    searched = Path(folder) if folder else data_folder()
    if name in DATASETS:
        return DATASETS[name](searched)
    if is_tabular(name):
        return load_tabular(name)
    if _multilabel_folder(name, searched):
        raise DataError(
            f"{name} has any number of labels per example; here only sets of one class per example can be used: "
            f"{', '.join(DATASETS)}"
        )
    files = ", ".join(SUFFIXES)
    raise DataError(f"no data set called {name!r}; there are {', '.join(DATASETS)}, or give a file ({files})")


def load_multilabel(name: str, folder: str | Path | None = None) -> MultiLabelDataset:
    """The multi-label set called ``name``: a folder ``xmc/<name>`` or ``<name>`` of ``folder``, or any folder's path.

    It holds ``train.txt`` and ``test.txt`` in the Extreme Classification Repository's format (see ``xmc.load_xmc``),
    or FMA's ``features.csv`` and ``tracks.csv``. ``folder``: by default ``$SLOTOOL_DATA_DIR``. Nothing is downloaded.
    Raises ``DataError`` when there is no such set, naming file and line where it is damaged.
    """
    if name in DATASETS or name == "auto":
        raise DataError(f"{name} has one class per example; a set of any number of labels per example is needed")
    searched = Path(folder) if folder else data_folder()
    found = _multilabel_folder(name, searched)
    if found is None:
        where = f"{searched} holds {', '.join(multilabel_names(searched)) or 'none'}" if searched else "it is not set"
        raise DataError(
            f"no multi-label data set {name!r}: it is neither a folder with train.txt and test.txt (or features.csv "
            f"and tracks.csv), nor a name in ${DATA_DIR_VARIABLE} ({where})"
        )
    path, source = found
    return load_fma(path, source) if has_fma(path) else load_xmc(path, source)


def multilabel_names(folder: Path) -> list[str]:
    """The names by which ``load_multilabel`` finds sets in ``folder``."""
    below = [path for parent in (folder / XMC_FOLDER, folder) if parent.is_dir() for path in sorted(parent.iterdir())]
    return [path.name for path in below if _is_multilabel(path)]


def default_dataset() -> str:
    """``fashion-mnist`` when its files lie in ``$SLOTOOL_DATA_DIR``, else ``digits``, which needs none."""
    return "fashion-mnist" if has_fashion_mnist(data_folder()) else "digits"


def data_folder() -> Path | None:
    """``$SLOTOOL_DATA_DIR`` when it is set."""
    value = os.environ.get(DATA_DIR_VARIABLE)
    return Path(value) if value else None


def _multilabel_folder(name: str, searched: Path | None) -> tuple[Path, str] | None:
    """The folder, and what names it again from anywhere: the name in the data folder, else the whole path."""
    if searched and name:
        for path in (searched / XMC_FOLDER / name, searched / name):
            if _is_multilabel(path):
                return path, name
    path = Path(name)
    return (path, str(path.resolve())) if name and _is_multilabel(path) else None


def _is_multilabel(path: Path) -> bool:
    return path.is_dir() and (has_fma(path) or find_files(path) is not None)


DATASETS: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": lambda folder: load_digits(),
    "fashion-mnist": load_fashion_mnist,
}
