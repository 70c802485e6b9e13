"""The base class of everything that has items measured somewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from slotool.profiling.plan import Item


class Engine(ABC):
    """Measures items and hands back their rows as they are finished. Use it as a context manager.

    ``only_here``: it measures in children of this process alone, so that what else this machine does is others' work.
    """

    only_here: ClassVar[bool] = True

    @abstractmethod
    def rows(self, items: Iterator[Item]) -> Iterator[list[dict[str, Any]]]:
        """The rows of each item, in any order.

        Items are drawn one by one, not before there is somewhere free to measure them, for the caller stops giving
        any when its time is up. What the measurer raises goes through. May be called again when it has ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. Safe to call again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
