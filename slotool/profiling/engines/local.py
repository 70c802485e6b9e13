"""This machine, one item after the other: a second measurement at the same time would disturb the first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slotool.profiling.engines.base import Engine
from slotool.profiling.measurers import measurer_for
from slotool.profiling.plan import Item, Settings


class LocalEngine(Engine):
    """Measures in worker processes of this one."""

    def __init__(self, settings: Settings):
        self._measurer = measurer_for(settings)

    def rows(self, items: Iterator[Item]) -> Iterator[list[dict[str, Any]]]:
        return map(self._measurer.rows, items)

    def close(self) -> None:
        self._measurer.close()
