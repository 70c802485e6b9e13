"""Data sets, and readers of them, that installed packages add by an entry point ``slotool.datasets``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.adapters.factory import opened
from slotool.data.options import DataOptions
from slotool.errors import DataError, SlotoolError
from slotool.printable import reason


class PluginAdapter(DataAdapter):
    """``made``, an entry point called ``name``: a function without arguments, which returns what a factory may, or a
    ``DataAdapter``, whose data sets are then given as ``name:location``."""

    reads = "a data set of an installed package"

    def __init__(self, name: str, made: Callable[[], Any]):
        self.name, self._made = name, made

    @property
    def takes_location(self) -> bool:
        return isinstance(self._made, type) and issubclass(self._made, DataAdapter)

    def recognises(self, location: Location) -> bool:
        """True if a reader of files has the suffix of this one."""
        suffixes = getattr(self._made, "suffixes", ()) if self.takes_location else ()
        return bool(suffixes) and location.path.is_file() and location.text.lower().endswith(tuple(suffixes))

    def open(self, location: Location, options: DataOptions) -> Any:
        """Raises ``DataError`` also for whatever else the package's code raises."""
        try:
            made = self._made()
            return made.open(location, options) if self.takes_location else opened(self.name, made)
        except SlotoolError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {reason(error)}"
            raise DataError(f"data set {self.name!r}, of a plugin, failed: {why}") from error
