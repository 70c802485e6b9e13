"""Declared columns, one loader for Parquet and CSV whose errors name file, row and column, and what every table is."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from slotool import strict_json
from slotool.atomic import whole_file
from slotool.errors import TableError
from slotool.printable import nearest, row_name
from slotool.regular_files import require_regular

Kind = Literal["text", "integer", "number", "flag", "numbers"]
Prepare = Callable[[pd.DataFrame], pd.DataFrame]

_ARROW: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "flag": pa.bool_(),
    "numbers": pa.list_(pa.float64()),
}
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
METADATA_KEY = b"slotool"
LIST_SEPARATOR = ";"
# Maximum number of columns in a file, carried ones included: each is a pandas column.
MAX_COLUMNS = 1_000
MAX_HEADER_CHARACTERS = 100_000
# Similarity of a column's name, as of difflib, from which it is a declared one misspelt: batchsize, thread, lantency_s.
SURELY_MISSPELT = 0.9
# Errors of pyarrow for damaged files; a name that is not UTF-8 is a ValueError.
_NOT_PARQUET = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True)
class Constraint:
    """Condition on every value of a column: ``holds`` maps values to a mask, ``text`` describes it."""

    text: str
    holds: Callable[[np.ndarray], np.ndarray]


# Above it a square is no longer a finite number, and with it no mean or spread of a column.
MAX_NUMBER = 1e100
POSITIVE = Constraint("must be greater than 0", lambda values: values > 0)
NOT_NEGATIVE = Constraint("must not be negative", lambda values: values >= 0)
FINITE = Constraint("must be a finite number", np.isfinite)
AMOUNT = Constraint(
    "must not be negative, infinite or above 1e100", lambda values: (values >= 0) & (values <= MAX_NUMBER)
)
MODERATE = Constraint("must be a finite number of at most 1e100", lambda values: np.abs(values) <= MAX_NUMBER)
NOT_EMPTY = Constraint("must not be empty", lambda texts: np.array([text.strip() != "" for text in texts], dtype=bool))


@dataclass(frozen=True)
class Column:
    """Column of a table. ``default`` fills a column missing from a file; without one the column is required.

    ``measured``: only campaigns write the column; a table without it stays without it, and ``default`` fills the cells
    of rows that lack it. ``alias``: another name in tables from elsewhere. ``remedy``: advice for a missing value.
    ``rounds``: value of several rounds, by its name in ``profiling.rows``. ``heading``: name in the tables that
    ``profile`` prints; empty if it prints none.

    A ``number`` may be missing (NaN) only if ``optional``. ``numbers`` are lists of float64, in CSV joined by ``;``.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    optional: bool = False
    rule: Constraint | None = None
    measured: bool = False
    alias: str | None = None
    remedy: str = ""
    rounds: str = "first"
    heading: str = ""

    @property
    def required(self) -> bool:
        return self.default is None and not self.optional and not self.measured


@dataclass(frozen=True)
class Schema:
    """A named, versioned set of columns. Extra columns in a file are kept as they are, in CSV unless misspelt."""

    name: str
    version: int
    columns: tuple[Column, ...]

    def load(self, path: Path, prepare: Prepare | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Return the rows and provenance of a Parquet or CSV file.

        ``prepare`` changes the cells of a CSV file, all text, before they are checked. Raises ``TableError`` when the
        file is missing, empty, of another schema or version, or breaks a column.
        """
        if path.is_dir():
            raise TableError(f"{path}: a folder, but a table is a file, Parquet or CSV")
        require_regular(path, TableError)
        if path.suffix == ".csv":
            return self._load_csv(path, prepare), {}
        return self._load_parquet(path)

    def save(self, frame: pd.DataFrame, path: Path, provenance: Mapping[str, Any] | None = None) -> None:
        """Write Parquet or, under a name that ends in ``.csv``, CSV, which has no place for ``provenance``.

        ``path`` is at every moment either the old file, the new one, or absent.
        """
        frame = self.validate(frame, str(path))
        with whole_file(path) as partial:
            if path.suffix == ".csv":
                lists = {name: frame[name].map(_csv_cell) for name in frame.columns if frame[name].dtype == object}
                # Quotes keep spaces around text.
                pd.DataFrame({**frame, **lists}).to_csv(partial, index=False, quoting=csv.QUOTE_NONNUMERIC)
            else:
                self._write_parquet(frame, partial, provenance or {})

    def _write_parquet(self, frame: pd.DataFrame, path: Path, provenance: Mapping[str, Any]) -> None:
        kinds = {column.name: column.kind for column in self.columns}
        fields = [
            pa.field(name, _ARROW[kinds[name]] if name in kinds else pa.array(frame[name]).type)
            for name in frame.columns
        ]
        header = {"schema": self.name, "schema_version": self.version, "provenance": dict(provenance)}
        schema = pa.schema(fields, metadata={METADATA_KEY: json.dumps(header).encode()})
        arrays = [pa.array(frame[field.name].tolist(), type=field.type, from_pandas=True) for field in fields]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path, compression="zstd")

    def validate(self, frame: pd.DataFrame, source: str) -> pd.DataFrame:
        """Return the rows with every declared column present, typed and checked, declared columns first.

        Raises ``TableError``.
        """
        called = {c.name: self._name_in(frame, c) for c in self.columns}
        missing = [column for column in self.columns if column.required and called[column.name] not in frame]
        if missing:
            names = ", ".join(f"{c.name} or {c.alias}" if c.alias else c.name for c in missing)
            meanings = "; ".join(column.meaning for column in missing)
            remedies = dict.fromkeys(column.remedy for column in missing if column.remedy)
            parts = [f"column {names} is missing: {meanings}", f"this is no {self.name} table", *remedies]
            raise TableError(f"{source}: {'; '.join(parts)}")
        typed = {
            c.name: _typed(replace(c, name=called[c.name]), frame.get(called[c.name]), len(frame), source)
            for c in self.columns
            if not c.measured or c.name in frame
        }
        declared = self._names | set(called.values())
        extra = frame.loc[:, [name not in declared for name in frame.columns]].reset_index(drop=True)
        return pd.concat([pd.DataFrame(typed), extra], axis=1) if len(extra.columns) else pd.DataFrame(typed)

    def frame_of(self, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """Return rows from mappings; missing keys take the column's default, unknown keys become extra columns."""
        records = list(rows)
        named = dict.fromkeys(key for row in records for key in row)
        defaults = {c.name: c.default for c in self.columns if c.name in named or not (c.measured or c.alias in named)}
        cells = {name: pd.Series([row.get(name, defaults[name]) for row in records], dtype=object) for name in defaults}
        extra = {key: pd.Series([row.get(key) for row in records]) for key in named if key not in defaults}
        return self.validate(pd.DataFrame(cells | extra), self.name)

    @staticmethod
    def _name_in(frame: pd.DataFrame, column: Column) -> str:
        """Return the column's name in a table: its alias only if its name is absent."""
        if column.alias is not None and column.alias in frame and column.name not in frame:
            return column.alias
        return column.name

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)

    def _load_csv(self, path: Path, prepare: Prepare | None) -> pd.DataFrame:
        with path.open(errors="replace") as file:
            header = file.readline(MAX_HEADER_CHARACTERS)
        _require_columns(header.count(",") + 1, len(header) < MAX_HEADER_CHARACTERS, path)
        require_commas(header, path)
        try:
            frame = read_csv(path, skipinitialspace=True)
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            raise TableError(f"{path}: not a CSV table ({_one_line(error)})") from error
        if frame.empty:
            raise TableError(f"{path}: the table has no rows")
        try:
            frame = frame if prepare is None else prepare(frame)
        except TableError as error:
            raise TableError(f"{path}: {error}") from error
        self._require_no_misspelt(frame, path)
        return self.validate(frame, str(path))

    def _require_no_misspelt(self, frame: pd.DataFrame, path: Path) -> None:
        """Raise ``TableError`` for a column that can only be meant as one that the table lacks."""
        # Campaigns write the measured ones, which are left out: the number of a round is no misspelt number of rounds.
        names = [{column.name, column.alias or column.name} for column in self.columns if not column.measured]
        absent = sorted(name for each in names if not each & {*frame.columns} for name in each)
        unknown = frame.columns.difference([*self._names, *absent])
        # A time in another unit is no misspelt one.
        for name in (name for name in unknown if not name.endswith(("_ms", "_us", "_ns"))):
            if (meant := nearest(name, absent, SURELY_MISSPELT)) is not None:
                raise TableError(f"{path}: column {name} is not read; rename it to {meant}, or leave it out")

    def _load_parquet(self, path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
        try:
            names = pq.read_schema(path).names
            _require_columns(len(names), True, path)
            require_distinct(names, path)
            table = pq.read_table(path)
            # Text that is not UTF-8 is noticed here, and not wherever it is first looked at.
            table.validate(full=True)
            frame = table.to_pandas()
        except _NOT_PARQUET as error:
            if path.suffix != ".parquet":
                raise TableError(
                    f"{path}: no table; expected Parquet, or CSV in a file whose name ends in .csv"
                ) from error
            raise TableError(f"{path}: not a readable Parquet file ({_one_line(error)})") from error
        header = read_header(table.schema, path)
        if header and header.get("schema") != self.name:
            kinds = [
                f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind}" for kind in (str(header.get("schema")), self.name)
            ]
            raise TableError(f"{path}: holds {kinds[0]} table, not {kinds[1]} table")
        if (version := header.get("schema_version", self.version)) != self.version:
            raise TableError(
                f"{path}: {self.name} schema version {version}, but this slotool reads version {self.version}"
            )
        if table.num_rows == 0:
            raise TableError(f"{path}: the table has no rows")
        with strict_json.assembling(path, f"a {self.name} table", error=TableError):
            return self.validate(frame, str(path)), dict(header.get("provenance", {}))


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file as text cells, empty ones too, without columns that have no name, such as a frame's index.

    Raises ``TableError`` for two columns of one name, which pandas would rename, for rows longer than the header, whose
    first cells pandas would take for an index, and for a line that is no UTF-8; else as pandas.
    """
    read = {"dtype": str, "keep_default_na": False, **options}
    try:
        names = pd.read_csv(path, header=None, nrows=1, **read).iloc[0].str.strip().tolist()
        require_distinct([name for name in names if name], path)
        frame = pd.read_csv(path, **read)
    except UnicodeDecodeError as error:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            line = next(at for at, text in enumerate(lines, 1) if text.decode(errors="ignore").encode() != text)
        raise TableError(f"{path}: line {line} is no UTF-8; save the file in that encoding") from error
    if not isinstance(frame.index, pd.RangeIndex):
        # pandas compares the first row alone, and raises its own error for others.
        many = f"{row_name(0)} has more cells than the header has columns, {len(names)}"
        raise TableError(f"{path}: {many}; a comma is expected between cells, and a point in numbers")
    named: pd.DataFrame = frame.loc[:, [name != "" for name in names]]
    return named


def require_distinct(names: Sequence[str], path: Path) -> None:
    """Raise ``TableError`` for two columns of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TableError(f"{path}: {Counter(names)[twice[0]]} columns are called {twice[0]!r}; each needs its own name")


def _require_columns(columns: int, whole: bool, path: Path) -> None:
    if columns > MAX_COLUMNS or not whole:
        width = f"{columns} columns" if whole else f"a first line of more than {MAX_HEADER_CHARACTERS} characters"
        raise TableError(f"{path}: {width}, at most {MAX_COLUMNS} columns are read; leave out those it does not need")


def require_commas(header: str, path: Path) -> None:
    """Raise ``TableError`` if something else than a comma separates the columns in a CSV file's first line."""
    other = next((name for sign, name in _OTHER_SEPARATORS.items() if sign in header and "," not in header), None)
    if other is not None:
        raise TableError(f"{path}: {other} between columns; a comma is expected, and a point in numbers")


_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def read_header(schema: pa.Schema, path: Path) -> dict[str, Any]:
    """Return the metadata that slotool wrote into a Parquet file; empty for a foreign file."""
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        return {}
    try:
        header = strict_json.decode(raw)
    except strict_json.JsonError as error:
        raise TableError(f"{path}: its slotool header is not JSON ({error})") from error
    return header if isinstance(header, dict) else {}


def schema_name(path: Path) -> str | None:
    """Return the slotool schema of a Parquet file, or None. Raises ``TableError`` for an unreadable file."""
    try:
        return read_header(pq.read_schema(path), path).get("schema")
    except _NOT_PARQUET as error:
        raise TableError(f"{path}: not a readable Parquet file ({_one_line(error)})") from error


def _typed(column: Column, values: pd.Series | None, rows: int, source: str) -> pd.Series:
    if values is None:
        filler = np.nan if column.default is None and column.kind == "number" else column.default
        values = pd.Series([filler] * rows, dtype=np.float64 if column.kind == "number" else object)
    elif column.measured and column.default is not None and (gone := values.isna()).any():
        values = pd.Series([column.default if no else value for value, no in zip(values, gone, strict=True)])
    series, bad = _CONVERT[column.kind](values.reset_index(drop=True))
    problem = f"is not a {_IN_WORDS[column.kind]}"
    if not bad.any() and column.kind == "number":
        missing = series.isna().to_numpy()
        remedy = f"; {column.remedy}" if column.remedy else ""
        bad, problem = (missing & (not column.optional)), f"is missing or NaN{remedy}"
        if not bad.any() and column.rule is not None:
            bad, problem = ~missing & ~column.rule.holds(series.fillna(1.0).to_numpy()), column.rule.text
    elif not bad.any() and column.rule is not None and column.kind == "integer":
        bad, problem = ~column.rule.holds(series.to_numpy()), column.rule.text
    elif not bad.any() and column.rule is not None and column.kind == "text":
        # Names repeat: a version's on every example, an example's for every version.
        codes, texts = pd.factorize(series)
        bad, problem = ~column.rule.holds(np.asarray(texts, dtype=object))[codes], column.rule.text
    elif not bad.any() and column.rule is not None and column.kind == "numbers":
        bad = np.array([not bool(np.all(column.rule.holds(np.asarray(v)))) for v in series], dtype=bool)
        problem = column.rule.text
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        more = f" (and {int(bad.sum()) - 1} more rows)" if bad.sum() > 1 else ""
        shown = _shown(values.iloc[at] if column.rule is None else _first_bad(column.rule, values.iloc[at]))
        raise TableError(f"{source}: {row_name(at)}, column {column.name}: {shown} {problem}{more}")
    return series


def _first_bad(rule: Constraint, value: Any) -> Any:
    """Return the first number of a list that breaks the rule; any other value unchanged."""
    if not isinstance(value, np.ndarray | list) or (numbers := list_of(value)) is None or rule.holds(numbers).all():
        return value
    return float(numbers[~rule.holds(numbers)][0])


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)[:40]


_IN_WORDS = {
    "integer": "whole number",
    "number": "number",
    "flag": "true or false",
    "numbers": "list of numbers",
    "text": "text",
}


def _as_text(values: pd.Series) -> tuple[pd.Series, np.ndarray]:
    bad = values.isna().to_numpy(dtype=bool)
    # An integer example number must read the same from CSV ("7") and from Parquet (7).
    return values if isinstance(values.dtype, pd.StringDtype) else values.map(str), bad


def _as_number(values: pd.Series) -> tuple[pd.Series, np.ndarray]:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iuf":
        return values.astype(np.float64), np.zeros(len(values), dtype=bool)
    present = ~(values.isna() | values.astype(str).str.strip().str.lower().isin(["", "nan", "none"]))
    numbers = to_numbers(values.where(present))
    return numbers, (present & numbers.isna()).to_numpy(dtype=bool)


def to_numbers(values: pd.Series) -> pd.Series:
    """Return texts or numbers as float64, NaN for what is no number.

    Texts are read by Python: pandas before 3 may be off in the last digit.
    """
    numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
    if pd.api.types.is_numeric_dtype(values):
        return numbers
    read = [float(text) if np.isfinite(number) else number for text, number in zip(values, numbers, strict=True)]
    return pd.Series(read, numbers.index, np.float64)


def _as_integer(values: pd.Series) -> tuple[pd.Series, np.ndarray]:
    numbers = pd.to_numeric(values, errors="coerce").astype(np.float64)
    bad = ~(np.isfinite(numbers.to_numpy()) & (numbers == np.floor(numbers)).to_numpy())
    return numbers.where(~bad, 0).astype(np.int64), bad


def _as_flag(values: pd.Series) -> tuple[pd.Series, np.ndarray]:
    read = [_FLAGS.get(str(value).strip().lower()) for value in values]
    bad = np.array([value is None for value in read], dtype=bool)
    return pd.Series([bool(value) for value in read], dtype=bool), bad


def _as_numbers(values: pd.Series) -> tuple[pd.Series, np.ndarray]:
    read = [list_of(value) for value in values]
    bad = np.array([value is None for value in read], dtype=bool)
    lists = pd.Series([np.empty(0) if value is None else value for value in read], dtype=object)
    return lists, bad


def _csv_cell(cell: Any) -> Any:
    numbers = list_of(cell) if isinstance(cell, np.ndarray | list) else None
    return cell if numbers is None else LIST_SEPARATOR.join(map(repr, numbers.tolist()))


def list_of(value: Any) -> np.ndarray | None:
    """Return a cell's numbers, float64 [n]: of a list, of text with ``;`` between them, or of one number; else None."""
    if isinstance(value, str):
        value = [part for part in value.split(LIST_SEPARATOR) if part.strip()]
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    # A number by itself is a list of one.
    return np.atleast_1d(numbers) if numbers.ndim <= 1 and value is not None else None


_CONVERT: dict[Kind, Callable[[pd.Series], tuple[pd.Series, np.ndarray]]] = {
    "text": _as_text,
    "integer": _as_integer,
    "number": _as_number,
    "flag": _as_flag,
    "numbers": _as_numbers,
}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


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
        """Return the rows, completed or sorted. Raises ``TableError``."""
        return rows

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any] | None = None) -> Self:
        """Return a table of these rows; missing columns take their defaults, unknown ones are kept."""
        return cls(cls.schema.frame_of(rows), provenance)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read Parquet or CSV. Raises ``TableError``."""
        return cls._prepared(path, None)

    @classmethod
    def load_all(cls, paths: Sequence[str | Path], prepare: Prepare | None = None) -> Self:
        """Return the rows of several files in order as one table, ``prepare`` as in ``Schema.load``.

        Raises ``TableError``.
        """
        tables = [cls.load(path) if prepare is None else cls._prepared(path, prepare) for path in paths]
        if len(tables) == 1:
            return tables[0]
        rows = pd.concat([table.rows for table in tables], ignore_index=True)
        return cls(rows, {str(path): table.provenance for path, table in zip(paths, tables, strict=True)})

    @classmethod
    def _prepared(cls, path: str | Path, prepare: Prepare | None) -> Self:
        frame, provenance = cls.schema.load(Path(path), prepare)
        return cls(frame, provenance, source=str(path))

    def save(self, path: str | Path) -> None:
        """Write Parquet or, under a name that ends in ``.csv``, CSV without provenance; atomically."""
        self.schema.save(self.rows, Path(path), self.provenance)

    def __len__(self) -> int:
        return len(self.rows)
