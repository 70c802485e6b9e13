"""What functions of slotool return: a document, the tables that a person reads of it, and a pandas frame."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from slotool.commands.display import Part, html_text, plain_text

if TYPE_CHECKING:
    import pandas as pd

DOCUMENT_VERSION = 1
# Exit code of a verdict on measured times that a disturbed machine leaves open; outputs are written.
NOT_DECIDED = 4


class Result(ABC):
    """What a function found. A subclass holds it typed, and says once how it reads as a document and as tables.

    Printing it shows the tables of the command line; a notebook shows them as HTML. ``document`` is what the command
    prints with ``--json``, and ``frame()`` its rows.
    """

    schema: ClassVar[str]
    """Name of the document, without ``slotool/``."""
    rows_key: ClassVar[str | None] = None
    """Key of the document's list that ``frame`` takes; None: the document is one row."""

    @abstractmethod
    def findings(self) -> Mapping[str, Any]:
        """The document's own keys; NumPy values and NaN may be among them."""

    @abstractmethod
    def shown(self) -> Sequence[Part]:
        """What a person reads instead of the document."""

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences on what should not be missed."""
        return ()

    @property
    def notes(self) -> Sequence[str]:
        """Remarks that stand below what is shown."""
        return ()

    @property
    def exit_code(self) -> int:
        """Exit code of the command that prints this; 1 where its verdict is negative."""
        return 0

    def judge(self) -> None:  # noqa: B027  (most results have no verdict)
        """Raise ``PromiseBroken`` or ``RunError`` if the verdict is negative or missing."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON document: ``schema``, ``schema_version`` and the keys that docs/reference/json lists."""
        body = {"schema": f"slotool/{self.schema}", "schema_version": DOCUMENT_VERSION, **self.findings()}
        return {name: plain(value) for name, value in body.items()}

    def frame(self) -> pd.DataFrame:
        """The document's rows as a pandas frame, one column a key; named rows have their names as the index."""
        import pandas as pd

        rows = [self.document] if self.rows_key is None else self.document[self.rows_key]
        return pd.DataFrame.from_dict(rows, orient="index") if isinstance(rows, dict) else pd.DataFrame(rows)

    def __repr__(self) -> str:
        return plain_text(self._read())

    def _repr_html_(self) -> str:
        return html_text(self._read())

    def _read(self) -> list[Part]:
        return [*(f"warning: {sentence}" for sentence in self.warnings), *self.shown(), *self.notes]


class Verdict(Result):
    """Result that is a verdict, or is none where nothing speaks against what was done."""

    @property
    @abstractmethod
    def verdict(self) -> str | None:
        """Reason for a negative or open verdict; None for a positive one."""

    @property
    @abstractmethod
    def decided(self) -> bool:
        """True if the measurements are stable enough for a verdict."""

    @property
    def exit_code(self) -> int:
        """1 for a negative verdict, 4 for an open one."""
        return 0 if self.verdict is None else 1 if self.decided else NOT_DECIDED


def plain(value: Any) -> Any:
    """NumPy scalars and arrays as JSON's own types; NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
