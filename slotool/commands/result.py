"""Results of functions: a dataclass whose fields are the JSON document, the tables on the terminal, and the frame.

::

    @result
    class Training(Result):
        family: Family = unlisted()                # not in the document
        data: str                                  # "data": …
        versions: list[dict[str, Any]]             # "versions": [...], also frame() and the table
        out: Path | None = output("artifact")      # "artifact": …, and "wrote …" below the table

        schema = "train"
        rows_key = "versions"
        columns = (Column("version"), Column("test_accuracy", form=".4f"))
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

from slotool.commands.display import Column, Part, Table, html_text, plain_text, records_table

if TYPE_CHECKING:
    import pandas as pd

DOCUMENT_VERSION = 1
# Exit code of a verdict that measured times leave open; outputs are written.
NOT_DECIDED = 4


Kind = TypeVar("Kind")
_KEY, _WRITTEN = "key", "written"


def unlisted(**settings: Any) -> Any:
    """Declare a field that the document lacks; ``settings`` are those of ``dataclasses.field``."""
    return field(metadata={_KEY: None}, **settings)


def listed(key: str, **settings: Any) -> Any:
    """Declare a field that has another name in the document."""
    return field(metadata={_KEY: key}, **settings)


def output(key: str | None = None, **settings: Any) -> Any:
    """Declare a written file or folder, several, or None; the text ends with a line on each."""
    return field(metadata={_WRITTEN: True} if key is None else {_WRITTEN: True, _KEY: key}, **settings)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field, unlisted, listed, output))
def result(kind: type[Kind]) -> type[Kind]:
    """Make a class of results a frozen dataclass that prints as its tables."""
    return dataclass(frozen=True, repr=False, eq=False)(kind)


class Result(ABC):
    """Return value of a function. A subclass declares its fields, and how its rows read as a table.

    Printing it shows the tables of the command line; a notebook shows them as HTML. ``document`` is what the command
    prints with ``--json``, and ``frame()`` its rows.
    """

    schema: ClassVar[str]
    """Name of the document, without ``slotool/``."""
    rows_key: ClassVar[str | None] = None
    """Key of the document's list that ``frame`` takes; None: the document is one row."""

    columns: ClassVar[Sequence[Column]] = ()
    """Columns of the table of ``records``."""

    def findings(self) -> Mapping[str, Any]:
        """Return keys of the document and values, such as paths, dataclasses, NumPy values and NaN."""
        values = {one.metadata.get(_KEY, one.name): getattr(self, one.name) for one in self._fields}
        values.pop(None, None)
        if self.rows_key is not None and self.rows_key not in values:
            values[self.rows_key] = self.records()
        return values

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return rows of the table: by default the field of the document's key ``rows_key``."""
        key = next(one.name for one in self._fields if one.metadata.get(_KEY, one.name) == self.rows_key)
        return list(getattr(self, key))

    @property
    def title(self) -> str:
        return ""

    def shown(self) -> Sequence[Part]:
        """Return the parts of the text for people: by default the table of ``records``."""
        return [self.table()]

    def table(self) -> Table:
        """Return ``records`` as a table of ``columns``."""
        return records_table(self.title, self.records(), self.columns)

    @property
    def parts(self) -> Sequence[Part]:
        """``shown``, and a line for each file or folder that was written."""
        written = [getattr(self, one.name) for one in self._fields if one.metadata.get(_WRITTEN)]
        paths = [path for value in written for path in (value if isinstance(value, list | tuple) else [value])]
        return [*self.shown(), *(f"wrote {path}" for path in paths if path is not None)]

    @property
    def _fields(self) -> Sequence[Any]:
        return fields(self) if is_dataclass(self) else ()

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences on problems, printed before everything else."""
        return ()

    @property
    def notes(self) -> Sequence[str]:
        """Remarks, printed after everything else."""
        return ()

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 1 for a negative verdict."""
        return 0

    def judge(self) -> None:  # noqa: B027  (most results have no verdict)
        """Raise ``PromiseBroken`` or ``RunError`` if the verdict is negative or missing."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """JSON document: ``schema``, ``schema_version`` and the keys that docs/reference/json lists."""
        body = {"schema": f"slotool/{self.schema}", "schema_version": DOCUMENT_VERSION, **self.findings()}
        return {name: plain(value) for name, value in body.items()}

    def frame(self) -> pd.DataFrame:
        """Return the document's rows as a pandas frame, a column per key; names of rows are the index."""
        import pandas as pd

        rows = [self.document] if self.rows_key is None else self.document[self.rows_key]
        return pd.DataFrame.from_dict(rows, orient="index") if isinstance(rows, dict) else pd.DataFrame(rows)

    def __repr__(self) -> str:
        return plain_text(self._read())

    def _repr_html_(self) -> str:
        return html_text(self._read())

    def _read(self) -> list[Part]:
        return [*(f"warning: {sentence}" for sentence in self.warnings), *self.parts, *self.notes]


class Verdict(Result):
    """Result with a verdict, which may be negative or open."""

    @property
    @abstractmethod
    def verdict(self) -> str | None:
        """Reason for a negative or open verdict; None for a positive one."""

    @property
    @abstractmethod
    def decided(self) -> bool:
        """True if the measurements are stable enough for a verdict."""

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), "verdict": self.verdict, "decided": self.decided}

    @property
    def exit_code(self) -> int:
        """1 for a negative verdict, 4 for an open one."""
        return 0 if self.verdict is None else 1 if self.decided else NOT_DECIDED


def plain(value: Any) -> Any:
    """Convert NumPy values, paths and dataclasses to types of JSON; NaN and infinities become null."""
    if is_dataclass(value) and not isinstance(value, type) and type(value).__str__ is object.__str__:
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
