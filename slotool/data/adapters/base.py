"""Interface of readers of data sets."""

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
    """Location of a data set.

    ``text``: as given, without a label column. ``path``: as a path, in the data folder if absent elsewhere.
    ``data_folder``: ``$SLOTOOL_DATA_DIR``, or another.
    """

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
        """True if a cheap look shows that this adapter reads it; used if name, suffix and scheme are ambiguous."""
        return False

    @abstractmethod
    def open(self, location: Location, options: DataOptions) -> Any:
        """Return a ``ColumnSource``, to be read by ``options``, or a complete ``Dataset`` or ``MultiLabelDataset``.

        Raises ``DataError`` naming what is missing or damaged.
        """
