"""Arguments as objects or as their files, one of a thing or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

FilePath = str | Path
Paths = FilePath | Sequence[FilePath]


class Loadable(Protocol):
    @classmethod
    def load(cls, path: Any) -> Self: ...


Kind = TypeVar("Kind", bound=Loadable)
Number = TypeVar("Number", int, float)


def loaded(kind: type[Kind], source: FilePath | Kind) -> Kind:
    """Return ``source`` itself where it is a ``kind`` already, else what its file holds."""
    return source if isinstance(source, kind) else kind.load(Path(str(source)))


def paths_of(sources: FilePath | Iterable[FilePath]) -> list[Path]:
    """Return one path or several, as a list."""
    return [Path(sources)] if isinstance(sources, str | Path) else [Path(source) for source in sources]


def name_of(source: Any) -> str:
    """Return the path of ``source``; of an object, the name of its class."""
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def as_list(names: str | Sequence[str]) -> list[str]:
    """Return the names in a sequence, or in one text with commas."""
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


def numbers_in(numbers: Number | Sequence[Number]) -> list[Number]:
    """Return the numbers of a sequence, or one number alone, as a list."""
    return [numbers] if isinstance(numbers, int | float) else list(numbers)
