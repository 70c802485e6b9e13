"""What every table is: rows that satisfy a schema, and how they came to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from slotool.tables.schema import Schema


class Table:
    """Rows of ``schema``, checked; ``provenance`` says how they came to be, ``source`` what errors call the table.

    Build one with ``load`` (Parquet or CSV) or ``of`` (rows as mappings). A subclass that requires more than its
    schema can says so in ``_checked``. Raises ``TableError`` naming source, row and column.
    """

    schema: ClassVar[Schema]

    def __init__(self, rows: pd.DataFrame, provenance: Mapping[str, Any] | None = None, source: str | None = None):
        self.source = source or f"{self.schema.name} table"
        self.rows = self._checked(self.schema.validate(rows, self.source), self.source)
        self.provenance = dict(provenance or {})

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        """The rows, completed or put in order. Raises ``TableError``."""
        return rows

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any] | None = None) -> Self:
        """A table of these rows; columns left out take their defaults, and others are kept as they are."""
        return cls(cls.schema.frame_of(rows), provenance)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read Parquet or CSV. Raises ``TableError``."""
        frame, provenance = cls.schema.load(Path(path))
        return cls(frame, provenance, source=str(path))

    @classmethod
    def load_all(cls, paths: Sequence[str | Path]) -> Self:
        """The rows of several files, one after another, as one table. Raises ``TableError``."""
        tables = [cls.load(path) for path in paths]
        if len(tables) == 1:
            return tables[0]
        rows = pd.concat([table.rows for table in tables], ignore_index=True)
        return cls(rows, {str(path): table.provenance for path, table in zip(paths, tables, strict=True)})

    def save(self, path: str | Path) -> None:
        """Write Parquet or, under a name that ends in ``.csv``, CSV without provenance; atomically."""
        self.schema.save(self.rows, Path(path), self.provenance)

    def __len__(self) -> int:
        return len(self.rows)
