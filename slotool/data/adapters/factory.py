"""Data sets made by code: ``module:factory`` of the user's, which is run, and entry points ``slotool.datasets``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.columns import Columns
from slotool.data.dataset import Dataset, MultiLabelDataset
from slotool.data.options import DataOptions
from slotool.data.table import ArrayTable, ColumnSource
from slotool.errors import DataError, SlotoolError
from slotool.printable import reason


class FactoryAdapter(DataAdapter):
    name = "factory"
    reads = "module:factory, a function of yours that returns arrays by name, (x, y), a ColumnSource or a Dataset"

    def recognises(self, location: Location) -> bool:
        module, colon, factory = location.text.rpartition(":")
        # mk.py:kind is a file and a label column, not attribute py of a package mk.
        return (
            bool(colon)
            and not Path(module).is_file()
            and all(part.isidentifier() for part in (*module.split("."), *factory.split(".")))
        )

    def open(self, location: Location, options: DataOptions) -> Any:
        """Call the factory without arguments and return the result."""
        module, _, factory = location.text.rpartition(":")
        value: Any = _imported(module, location.text)
        for part in factory.split("."):
            if not hasattr(value, part):
                raise DataError(f"{location.text}: module {module} has no {factory}")
            value = getattr(value, part)
        try:
            returned = value()
        except (Exception, SystemExit) as error:
            raise DataError(f"{location.text} raised {type(error).__name__}: {reason(error)}") from error
        return opened(location.text, returned)


def opened(source: str, returned: Any) -> ColumnSource | Dataset | MultiLabelDataset:
    """Return the result of a function called ``source`` as an adapter does. Raises ``DataError`` for other types."""
    if isinstance(returned, ColumnSource | Dataset | MultiLabelDataset):
        return returned
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = {"x": returned[0], "y": returned[1]}
    if isinstance(returned, Columns):
        returned = returned.arrays
    if isinstance(returned, Mapping) and returned and all(isinstance(name, str) for name in returned):
        arrays = {name: np.asarray(array) for name, array in returned.items()}
        if all(array.ndim > 0 and array.dtype.kind in "fiubSUO" for array in arrays.values()):
            return ArrayTable(source, arrays)
    kind = type(returned).__name__
    raise DataError(f"{source} returned {kind}; arrays by name, (x, y), a ColumnSource or a Dataset are expected")


def _imported(module: str, source: str) -> Any:
    """Return the module, from the current folder or installed."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise DataError(f"{source}: importing {module} raised {type(error).__name__}: {reason(error)}") from error
    finally:
        sys.path.remove(folder)


class PluginAdapter(DataAdapter):
    """Adapter of an installed package, called ``name``.

    ``value``: a function without arguments, which returns what a factory may, or a ``DataAdapter`` of data sets called
    ``name:location``.
    """

    reads = "a data set of an installed package"

    def __init__(self, name: str, value: Callable[[], Any]):
        self.name, self._value = name, value

    @property
    def takes_location(self) -> bool:
        return isinstance(self._value, type) and issubclass(self._value, DataAdapter)

    def recognises(self, location: Location) -> bool:
        """True if a reader of files has the suffix of this one."""
        suffixes = getattr(self._value, "suffixes", ()) if self.takes_location else ()
        return bool(suffixes) and location.path.is_file() and location.text.lower().endswith(tuple(suffixes))

    def open(self, location: Location, options: DataOptions) -> Any:
        """Raise ``DataError`` also for whatever else the package's code raises."""
        try:
            value = self._value()
            return value.open(location, options) if self.takes_location else opened(self.name, value)
        except SlotoolError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {reason(error)}"
            raise DataError(f"data set {self.name!r}, of a plugin, failed: {why}") from error
