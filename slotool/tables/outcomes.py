"""The outcome table: what each service version answered for each example, and what that took."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from slotool.errors import InputError, TableError
from slotool.tables.labels import label_texts
from slotool.tables.schema import AMOUNT, MAX_NUMBER, MODERATE, NOT_EMPTY, Column, Schema, Table, list_of

IMPORT = "slotool import-outcomes makes an outcome table of answers, also where some are missing"
OUTCOME_SCHEMA = Schema(
    "outcome",
    1,
    (
        Column("example", "text", "the example's name or number", rule=NOT_EMPTY),
        Column("version", "text", "service version, or operating point key", rule=NOT_EMPTY),
        Column("error", "number", "0 or 1, or a continuous error such as WER", rule=AMOUNT, remedy=IMPORT),
        Column(
            "confidence",
            "number",
            "the version's own confidence in its answer",
            rule=MODERATE,
            remedy=IMPORT,
        ),
        Column("latency_s", "number", "seconds the version took for this example", rule=AMOUNT, remedy=IMPORT),
        Column(
            "cost",
            "number",
            "price of this answer; machine time in seconds by default",
            optional=True,
            rule=AMOUNT,
        ),
    ),
)

# Columns that may be there too: what the version answered, and what would have been right; seconds of each timed call
# as a list, and as a list of the same length true where other processes disturbed it.
ANSWER, TRUTH, SAMPLES, DISTURBED = "answer", "truth", "samples_s", "disturbed"
OUTCOME_COLUMNS = frozenset([*(column.name for column in OUTCOME_SCHEMA.columns), ANSWER, TRUTH, SAMPLES, DISTURBED])


class OutcomeTable(Table):
    """Rows of ``OUTCOME_SCHEMA``: every version answered every example exactly once.

    ``versions``: names in order of first appearance. ``matrix(column)``: float64 [examples, versions].
    Raises ``TableError`` naming the first example and version that are missing or given twice, or the first example
    whose ``truth`` differs between its versions.
    """

    schema = OUTCOME_SCHEMA

    def __init__(self, rows: pd.DataFrame, provenance: Mapping[str, Any] | None = None, source: str | None = None):
        super().__init__(rows, provenance, source)
        (at_example, examples), (at_version, versions) = (pd.factorize(self.rows[k]) for k in ("example", "version"))
        self.versions: list[str] = versions.tolist()
        self.examples: list[str] = examples.tolist()
        self._cells = at_example, at_version
        self._matrices: dict[str, np.ndarray] = {}
        self._known: dict[str, np.ndarray] = {}
        self._check_complete(source or "outcome table")
        if TRUTH in self.rows:
            self.text(TRUTH)

    def _checked(self, rows: pd.DataFrame, source: str) -> pd.DataFrame:
        labels = {name: label_texts(rows[name]) for name in (ANSWER, TRUTH) if name in rows}
        return rows.assign(cost=rows["cost"].fillna(rows["latency_s"]), **labels)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        frame, provenance = cls.schema.load(Path(path))
        if Path(path).suffix == ".csv":
            frame = frame.assign(**{name: _as_numbers(frame[name]) for name in _further(frame)})
        return cls(frame, provenance, source=str(path))

    def matrix(self, column: str) -> np.ndarray:
        """Return a column as read-only float64 [examples, versions], in the order of ``examples`` and ``versions``."""
        if column not in self._matrices:
            values = np.empty((len(self.examples), len(self.versions)))
            values[self._cells] = self.rows[column].to_numpy(dtype=np.float64)
            values.flags.writeable = False
            self._matrices[column] = values
        return self._matrices[column]

    def index(self, version: str) -> int:
        """Return the column of ``version`` in a ``matrix``. Raises ``InputError`` for an unknown version."""
        if version not in self.versions:
            raise InputError(f"the outcome table has no version {version!r}; it has {', '.join(self.versions)}")
        return self.versions.index(version)

    @cached_property
    def samples(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Seconds of each timed call, float64 [versions, examples, repeats], and a bool mask of disturbed ones.

        None for a table whose examples differ in their number of calls.
        """
        if SAMPLES not in self.rows or DISTURBED not in self.rows:
            return None
        arrays = []
        for name, dtype in ((SAMPLES, np.float64), (DISTURBED, np.bool_)):
            try:
                values = np.stack([np.asarray(list_of(cell), dtype=dtype) for cell in self.rows[name]])
            except (TypeError, ValueError):
                return None
            cells = np.empty((len(self.versions), len(self.examples), *values.shape[1:]), dtype=dtype)
            cells[self._cells[1], self._cells[0]] = values
            arrays.append(cells)
        seconds, disturbed = arrays
        usable = seconds.ndim == 3 and seconds.shape == disturbed.shape and seconds.size and (seconds > 0).all()
        return (seconds, disturbed) if usable else None

    @property
    def knows_answers(self) -> bool:
        """True if the table has a column ``answer``, each version's answer, such as a label."""
        return ANSWER in self.rows

    @property
    def features(self) -> list[str]:
        """Names of the further columns that hold numbers: what is known of a request before any version is asked."""
        return [name for name in _further(self.rows) if pd.api.types.is_numeric_dtype(self.rows[name])]

    def feature(self, name: str) -> np.ndarray:
        """Return a further column by example, float64 [examples].

        Raises ``TableError`` for a column that is missing, not numeric, or differs between versions of one example.
        """
        if name in self._known:
            return self._known[name]
        if name not in self.features:
            names = ", ".join(self.features) or "none"
            raise TableError(f"the outcome table has no column {name!r} of numbers; there are {names}")
        values = self.matrix(name)
        self._require_alike(name, values, "; rules may only look at what is known before: leave the column out")
        if (beyond := ~(np.abs(values[:, 0]) <= MAX_NUMBER)).any():
            at = int(beyond.argmax())
            raise TableError(
                f"{self.source}: column {name!r} of example {self.examples[at]!r} is {values[at, 0]:g}; "
                f"{MODERATE.text.removeprefix('must be ')} is expected"
            )
        self._known[name] = values[:, 0]
        return self._known[name]

    def text(self, name: str) -> np.ndarray:
        """Return a further column by example as ``label_text``, object [examples].

        Raises ``TableError`` for a column that is missing, or differs between versions of one example.
        """
        if name not in self.rows:
            raise TableError(f"the outcome table has no column {name!r}; there are {', '.join(map(str, self.rows))}")
        values = np.empty((len(self.examples), len(self.versions)), dtype=object)
        values[self._cells] = label_texts(self.rows[name]).to_numpy()
        self._require_alike(name, values)
        return np.asarray(values[:, 0])

    def _require_alike(self, name: str, values: np.ndarray, remedy: str = "") -> None:
        """Raise ``TableError`` if versions of one example differ in a column, [examples, versions]."""
        if (differs := (values != values[:, :1]).any(axis=1)).any():
            example = self.examples[int(differs.argmax())]
            raise TableError(
                f"{self.source}: column {name!r} differs between the versions of example {example!r}; one value is "
                f"expected{remedy}"
            )

    @property
    def models(self) -> dict[str, str]:
        """Identity, such as a checksum, of the model of each version, as far as the provenance states it."""
        stated, whole = self.provenance.get("models"), self.provenance.get("artifact_id")
        if not isinstance(stated, Mapping):
            # Tables of artifacts state the whole of it; a family of a user's own files is more than those files.
            stated = {} if self.provenance.get("kind") == "model-family" else dict.fromkeys(self.versions, whole)
        return {name: str(stated[name]) for name in self.versions if isinstance(stated.get(name), str)}

    @classmethod
    def joined(cls, tables: Sequence[OutcomeTable]) -> OutcomeTable:
        """Return one table of the examples of several, such as of several servers, one table after the other.

        Raises ``TableError`` for tables of other models.
        """
        first, *others = tables
        for other in others:
            if other.models != first.models:
                raise TableError(f"{other.source}: outcomes of other models than those in {first.source}")
        if not others:
            return first
        parts = [table.rows.assign(example=f"{at}: " + table.rows["example"]) for at, table in enumerate(tables, 1)]
        return cls(pd.concat(parts, ignore_index=True), first.provenance, first.source)

    def examples_at(self, indices: np.ndarray) -> OutcomeTable:
        """Return the table of the examples at ``indices``, distinct integers into ``examples``."""
        mask = np.isin(self._cells[0], indices)
        return OutcomeTable(self.rows[mask].reset_index(drop=True), self.provenance, self.source)

    def with_text(self, name: str) -> OutcomeTable:
        """Return the table with a further column as text: it groups examples and is no feature. Raises as ``text``."""
        self.text(name)
        return OutcomeTable(self.rows.assign(**{name: label_texts(self.rows[name])}), self.provenance, self.source)

    def with_errors(self, errors: np.ndarray) -> OutcomeTable:
        """Return the table with other errors, float64 [examples, versions]."""
        return OutcomeTable(self.rows.assign(error=errors[self._cells]), self.provenance, self.source)

    def priced(self, per_second: Mapping[str, float]) -> OutcomeTable:
        """Return the table with latency × price per second of the version as costs.

        Raises ``TableError`` for a version without a price, a price without a version, or an invalid price.
        """
        for version in dict.fromkeys([*per_second, *self.versions]):
            if version not in self.versions:
                raise TableError(f"a price for {version!r}, but the table has only {', '.join(self.versions)}")
            if version not in per_second:
                raise TableError(
                    f"version {version!r} has no price; one is needed for each of {', '.join(self.versions)}"
                )
            if not 0 <= per_second[version] < np.inf:
                raise TableError(f"price {per_second[version]:g} of version {version!r} must be a number from 0 up")
        prices = self.rows["version"].map(dict(per_second)).to_numpy(dtype=np.float64)
        return OutcomeTable(self.rows.assign(cost=self.rows["latency_s"] * prices), self.provenance, self.source)

    def priced_by_call(self, per_call: Mapping[str, float]) -> OutcomeTable:
        """Return the table with the price of a call as the cost of each answer; prices of other versions are ignored.

        Raises ``TableError`` for a version without a valid price.
        """
        for version in self.versions:
            if version not in per_call:
                raise TableError(
                    f"version {version!r} has no price; there are prices of {', '.join(per_call) or 'none'}"
                )
            if not 0 <= per_call[version] < np.inf:
                raise TableError(f"price {per_call[version]:g} of version {version!r} must be a number from 0 up")
        prices = self.rows["version"].map(dict(per_call)).to_numpy(dtype=np.float64)
        return OutcomeTable(self.rows.assign(cost=prices), self.provenance, self.source)

    @cached_property
    def sha256(self) -> str:
        """Hash of the content (not of the file): what a rule generated from this table refers to."""
        digest = hashlib.sha256()
        for column in ("error", "confidence", "latency_s", "cost"):
            digest.update(np.ascontiguousarray(self.matrix(column)).tobytes())
        digest.update("\0".join([*self.examples, "", *self.versions]).encode())
        return digest.hexdigest()

    def _check_complete(self, source: str) -> None:
        counts = np.zeros((len(self.examples), len(self.versions)), dtype=np.int64)
        np.add.at(counts, self._cells, 1)
        for wrong, what in ((counts == 0, "is missing"), (counts > 1, "appears more than once")):
            if wrong.any():
                example, version = (int(i) for i in np.argwhere(wrong)[0])
                more = f" (and {int(wrong.sum()) - 1} more such cells)" if wrong.sum() > 1 else ""
                name = self.examples[example]
                other = name.removesuffix(".0") if name.endswith(".0") else f"{name}.0"
                hint = f"; examples {name!r} and {other!r} are two" if other in self.examples else ""
                raise TableError(f"{source}: example {name!r} of version {self.versions[version]!r} {what}{more}{hint}")


def _further(rows: pd.DataFrame) -> list[str]:
    """Return the names of the columns beyond ``OUTCOME_COLUMNS``."""
    return [str(name) for name in rows if name not in OUTCOME_COLUMNS]


def _as_numbers(values: pd.Series) -> pd.Series:
    """Return a further column of a CSV file, which has text only, as numbers if all of it can be parsed."""
    numbers = pd.to_numeric(values, errors="coerce")
    return values if numbers.isna().any() else numbers.astype(np.float64)
