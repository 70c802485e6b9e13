"""What a reader of data sets is: how it recognises what it reads, and how it opens it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slotool.data.dataset import Dataset, MultiLabelDataset
from slotool.data.options import DataOptions
from slotool.data.table import ColumnSource

Opened = ColumnSource | Dataset | MultiLabelDataset


@dataclass(frozen=True)
class Location:
    """Where a data set is. ``text``: as it was given, without a label column behind it. ``path``: that as a
    path, of the data folder where it is not there itself. ``data_folder``: ``$SLOTOOL_DATA_DIR``, or another."""

    text: str
    path: Path
    data_folder: Path | None = None


class DataAdapter(ABC):
    """Opens data sets of one kind.

    ``name``: also the prefix that chooses this adapter for anything, ``name:location``. ``reads``: what it reads, for
    help. ``known``: data sets it has by name. ``suffixes``: of files, in small letters. ``schemes``: of URLs.
    """

    name: str
    reads: str
    known: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()

    def recognises(self, location: Location) -> bool:
        """Whether this adapter reads what lies there, by a look that is cheap. Asked where name, suffix and scheme
        decide nothing; by default no."""
        return False

    @abstractmethod
    def open(self, location: Location, options: DataOptions) -> Any:
        """Return a ``ColumnSource``, from which ``options`` are met later; or a ``Dataset`` or ``MultiLabelDataset``
        that leaves nothing to choose. Raises ``DataError`` naming what is missing or damaged."""
