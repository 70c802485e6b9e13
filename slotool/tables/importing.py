"""Outcome tables from tables of answers that other tools wrote: a row per answer, or a row per example.

An answer is missing where both its error and its answer are empty: a service that failed. It counts as ``wrong``, as do
answers that abstain, and is less sure than any other, so that every policy asks the next version. It costs what a call
costs.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from slotool.errors import TableError
from slotool.printable import name_list
from slotool.regular_files import read_text, require_regular
from slotool.tables.labels import label_text, label_texts
from slotool.tables.outcomes import ANSWER, TRUTH, OutcomeTable
from slotool.tables.schema import read_csv, require_commas, require_distinct, to_numbers

# Columns of a table of answers, with their default names.
KEYS = ("example", "version", "error", "confidence", "latency_s", "cost", ANSWER, TRUTH)
_AMOUNTS = ("error", "latency_s", "cost")
_OF_ANSWER = ("error", "confidence", "latency_s", "cost", ANSWER)


@dataclass(frozen=True)
class AnswerLayout:
    """Layout of a table of answers.

    ``names``: its names of the columns ``KEYS``, if different. ``versions``: versions of a table with a row per
    example, whose columns are named by ``pattern`` with ``{version}`` and ``{column}``; empty: a row per answer.
    ``abstain``: answers that count as missing. ``wrong``: error of a missing answer. ``keep``: further columns, numbers
    or text of an example.
    """

    names: Mapping[str, str]
    versions: Sequence[str] = ()
    pattern: str = "{version}_{column}"
    abstain: Sequence[str] = ()
    wrong: float = 1.0
    keep: Sequence[str] = ()

    def column(self, key: str) -> str:
        """Return the table's name of the column ``key``."""
        return self.names.get(key, key)


def read_prices(path: Path) -> tuple[dict[str, float], str]:
    """Return the price of a call by version, and the currency or "".

    TOML: ``currency = "USD"`` and ``[prices]`` of numbers or ``{price, per}``; CSV: columns version, price and, if not
    1, per (calls). Raises ``TableError``.
    """
    if path.suffix == ".toml":
        try:
            document = tomllib.loads(read_text(path))
        except (OSError, ValueError) as error:
            raise TableError(f"{path}: not a readable TOML file ({error})") from None
        entries, currency = document.get("prices"), str(document.get("currency", ""))
        if not isinstance(entries, dict):
            raise TableError(f"{path}: no table [prices]; expected lines such as Google = {{price = 1.5, per = 1000}}")
        rows = [(name, *_entry(entry)) for name, entry in entries.items()]
    else:
        frame = _read(path)
        _require(frame, ["version", "price"], path)
        per = frame["per"] if "per" in frame else ["1"] * len(frame)
        rows, currency = list(zip(frame["version"], frame["price"], per, strict=True)), ""
        if (twice := frame["version"].duplicated()).any():
            raise TableError(f"{path}: version {frame['version'][twice].iloc[0]!r} has two prices; give one")
    return {str(name): _price(f"{path}: price of {name!r}", price, per) for name, price, per in rows}, currency


def _entry(entry: object) -> tuple[object, object]:
    return (entry.get("price"), entry.get("per", 1)) if isinstance(entry, dict) else (entry, 1)


def _price(where: str, price: object, per: object) -> float:
    try:
        calls = float(str(per))
        value = float(str(price)) / calls if 0 < calls < np.inf else np.nan
    except ValueError:
        value = np.nan
    if not 0 <= value < np.inf:
        raise TableError(f"{where} is {price} per {per}; expected a number from 0 up per a number of calls")
    return value


def import_outcomes(path: Path, layout: AnswerLayout, prices: Mapping[str, float] | None = None) -> OutcomeTable:
    """Return the outcome table of the answers in ``path`` (CSV, gzipped or not, or Parquet); ``prices``: of a call.

    Raises ``TableError`` naming file, row and column.
    """
    if reserved := [name for name in layout.keep if name in KEYS]:
        raise TableError(f"{reserved[0]!r} is no further column to keep: the table of outcomes has one of this name")
    cells = _read(path)
    long = _by_answer(cells, layout, path) if layout.versions else _renamed(cells, layout, path)
    long = long.assign(**{name: label_texts(long[name]) for name in (ANSWER, TRUTH) if name in long})
    _require_one_truth(long, path)
    rows = pd.DataFrame({"example": long["example"], "version": long["version"]})
    missing = _missing(long, layout)
    rows["error"] = np.where(missing, layout.wrong, _errors(long, missing, path))
    confidence = _numbers(long, "confidence", path)
    if (unknown := np.isnan(confidence) & ~missing).any():
        raise TableError(
            f"{path}: {_where(long, unknown)} has an answer, but no confidence; give each answer a number, such as 0 "
            "for never sure, or leave its error and answer empty too: then it counts as missing"
        )
    rows["confidence"] = less_sure(confidence, missing)
    rows["latency_s"] = np.nan_to_num(
        _known_of_all(_numbers(long, "latency_s", path), "latency_s", long, missing, path)
    )
    rows["cost"] = _known_of_all(_costs(long, prices, path), "cost", long, missing, path)
    if ANSWER in long:
        rows[ANSWER] = np.where(missing, "", long[ANSWER])
    for name in layout.keep:
        rows[name] = values = _further_column(long, name, path)
        if (unknown := (pd.isna(values) | (values == ""))).any():
            raise TableError(f"{path}: {_where(long, unknown)} has no {name}; what is kept is known of every example")
    imported = OutcomeTable(rows, {"imported_from": path.name, "missing_answers": int(missing.sum())}, str(path))
    for name in layout.keep:
        if name in imported.features:
            imported.feature(name)
        else:
            imported.text(name)
    return imported


def _further_column(long: pd.DataFrame, name: str, path: Path) -> np.ndarray:
    """Return a column to keep: float64, or text [rows] if no cell is a number, such as a language."""
    text = long[name].str.strip()
    if pd.to_numeric(text, errors="coerce").isna().all():
        return np.asarray(text.to_numpy(dtype=object))
    return _numbers(long, name, path)


def _require_one_truth(long: pd.DataFrame, path: Path) -> None:
    """Raise ``TableError`` for an example of which versions' rows state different truths."""
    if TRUTH not in long:
        return
    first = long.groupby("example", sort=False)[TRUTH].transform("first")
    if (differs := (long[TRUTH] != first).to_numpy()).any():
        row, other = long[differs].iloc[0], first[differs].iloc[0]
        raise TableError(
            f"{path}: column truth of example {row['example']!r} is {row[TRUTH]!r} for version {row['version']!r} and "
            f"{other!r} for another; one value is expected"
        )


def less_sure(confidence: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return ``confidence`` with missing answers one below all others, so that every policy asks on."""
    confidences = confidence[~missing]
    # One value: ties between missing answers go to the last version, as everywhere.
    return np.where(missing, min(-1.0, confidences.min() - 1.0 if len(confidences) else -1.0), confidence)


def _read(path: Path) -> pd.DataFrame:
    """Read all cells as text, missing ones empty."""
    try:
        require_regular(path, TableError)
        if path.suffix == ".parquet":
            require_distinct(pq.read_schema(path).names, path)
            return pd.read_parquet(path).astype(object).map(lambda cell: "" if pd.isna(cell) else f"{cell}")
        frame = read_csv(path, encoding="utf-8")
    except TableError:
        raise
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise TableError(f"{path}: not a readable table ({' '.join(str(error).split())[:160]})") from None
    if len(frame.columns) == 1:
        require_commas(str(frame.columns[0]), path)
    if frame.empty:
        raise TableError(f"{path}: the table has no rows")
    return frame


def _require(frame: pd.DataFrame, columns: Sequence[str], path: Path, remedy: str = "") -> None:
    if absent := [name for name in columns if name not in frame]:
        raise TableError(f"{path}: no column {absent[0]!r}; there are {name_list(map(str, frame.columns))}{remedy}")


def _renamed(cells: pd.DataFrame, layout: AnswerLayout, path: Path) -> pd.DataFrame:
    remedy = "; say which it is with --columns"
    _require(cells, [layout.column(key) for key in ("example", "version", "confidence")], path, remedy)
    _require(cells, [*layout.names.values(), *layout.keep], path, remedy)
    chosen = {key: cells[layout.column(key)] for key in KEYS if layout.column(key) in cells}
    return pd.DataFrame(chosen | {name: cells[name] for name in layout.keep})


def _by_answer(cells: pd.DataFrame, layout: AnswerLayout, path: Path) -> pd.DataFrame:
    """Return a row per answer of a table with a row per example; without a column of examples they are numbered."""
    if "{version}" not in layout.pattern or "{column}" not in layout.pattern:
        raise TableError(f"pattern {layout.pattern!r} of column names lacks {{version}} or {{column}}")
    _require(cells, [name for key, name in layout.names.items() if key not in _OF_ANSWER], path)
    _require(cells, layout.keep, path)
    example = layout.column("example")
    shared = {"example": cells[example] if example in cells else pd.Series(np.arange(len(cells)).astype(str))}
    shared |= {TRUTH: cells[layout.column(TRUTH)]} if layout.column(TRUTH) in cells else {}
    shared |= {name: cells[name] for name in layout.keep}
    parts = []
    for version in layout.versions:
        called = {
            key: layout.pattern.replace("{column}", layout.column(key)).replace("{version}", version)
            for key in _OF_ANSWER
        }
        _require(cells, [called["confidence"]], path)
        columns = {key: cells[name] for key, name in called.items() if name in cells}
        parts.append(pd.DataFrame({**shared, "version": version, **columns}))
    return pd.concat(parts, ignore_index=True).fillna("")


def _missing(long: pd.DataFrame, layout: AnswerLayout) -> np.ndarray:
    has_answer = np.zeros(len(long), dtype=bool)
    for key in (ANSWER, "error"):
        if key in long:
            has_answer |= (long[key].str.strip() != "").to_numpy()
    abstentions = [label_text(answer) for answer in layout.abstain]
    return ~has_answer | (long[ANSWER].isin(abstentions).to_numpy() if ANSWER in long else False)


def _errors(long: pd.DataFrame, missing: np.ndarray, path: Path) -> np.ndarray:
    """Return the errors in the table, or 1 for answers unlike the truth; NaN for missing answers."""
    if "error" in long:
        errors = _numbers(long, "error", path)
    elif ANSWER in long and TRUTH in long:
        if (unknown := (long[TRUTH].str.strip() == "").to_numpy()).any():
            raise TableError(f"{path}: {_where(long, unknown)} has no truth to compare its answer with")
        errors = (long[ANSWER] != long[TRUTH]).to_numpy(dtype=np.float64)
    else:
        raise TableError(f"{path}: neither a column 'error' nor both 'answer' and 'truth'; name them with --columns")
    if (unknown := np.isnan(errors) & ~missing).any():
        raise TableError(f"{path}: {_where(long, unknown)} has an answer, but no error")
    return errors


def _known_of_all(numbers: np.ndarray, key: str, long: pd.DataFrame, missing: np.ndarray, path: Path) -> np.ndarray:
    """Return ``numbers`` if every answer has one or none has: a gap would count as 0. Raises ``TableError``."""
    unknown = np.isnan(numbers) & ~missing
    if unknown.any() and not np.isnan(numbers).all():
        raise TableError(f"{path}: {_where(long, unknown)} has an answer, but no {key}, which others have")
    return numbers


def _costs(long: pd.DataFrame, prices: Mapping[str, float] | None, path: Path) -> np.ndarray:
    if prices is None:
        return _numbers(long, "cost", path)
    if unpriced := [version for version in dict.fromkeys(long["version"]) if version not in prices]:
        raise TableError(f"version {unpriced[0]!r} has no price; there are prices of {', '.join(prices)}")
    return long["version"].map(dict(prices)).to_numpy(dtype=np.float64)


def _numbers(long: pd.DataFrame, key: str, path: Path) -> np.ndarray:
    """Return a column as float64, NaN where empty; all NaN without the column."""
    if key not in long:
        return np.full(len(long), np.nan)
    text = long[key].str.strip()
    numbers = to_numbers(text.where(text != "")).to_numpy()
    has_text, unlike = (text != "").to_numpy(), ~np.isfinite(numbers)
    negative = (numbers < 0) & (key in _AMOUNTS)
    for wrong, problem in ((unlike & has_text, "is not a finite number"), (negative, "must not be negative")):
        if wrong.any():
            raise TableError(f"{path}: {_where(long, wrong)}, column {key}: {text[wrong].iloc[0][:40]!r} {problem}")
    return numbers


def _where(long: pd.DataFrame, bad: np.ndarray) -> str:
    row = long[bad].iloc[0]
    return f"example {row['example']!r} of version {row['version']!r}"


def prices_of(prices: str | Path | Mapping[str, float] | None) -> tuple[dict[str, float], str]:
    """Return prices of a call by version, or those of a price list, and their currency; none and "" of None."""
    return (dict(prices or {}), "") if prices is None or isinstance(prices, Mapping) else read_prices(Path(prices))
