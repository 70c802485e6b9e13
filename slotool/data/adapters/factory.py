"""``module:factory``: a data set that a function of the user's makes. The module's code is run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.columns import Columns
from slotool.data.dataset import Dataset, MultiLabelDataset
from slotool.data.options import DataOptions
from slotool.data.table import ArrayTable, ColumnSource
from slotool.errors import DataError
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
        """What the factory returns when it is called without arguments."""
        module, _, factory = location.text.rpartition(":")
        made: Any = _imported(module, location.text)
        for part in factory.split("."):
            if not hasattr(made, part):
                raise DataError(f"{location.text}: module {module} has no {factory}")
            made = getattr(made, part)
        try:
            returned = made()
        except (Exception, SystemExit) as error:
            raise DataError(f"{location.text} raised {type(error).__name__}: {reason(error)}") from error
        return opened(location.text, returned)


def opened(source: str, returned: Any) -> ColumnSource | Dataset | MultiLabelDataset:
    """What a function called ``source`` returned, as an adapter gives it. Raises ``DataError`` for anything else."""
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
    """The module, from the current folder or installed."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise DataError(f"{source}: importing {module} raised {type(error).__name__}: {reason(error)}") from error
    finally:
        sys.path.remove(here)
