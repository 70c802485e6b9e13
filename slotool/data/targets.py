"""Labels as a task wants them: classes, numbers, sets of classes or text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.columns import Ragged, described
from slotool.data.dataset import LabelSets
from slotool.data.table import ColumnSource, Field
from slotool.errors import DataError
from slotool.printable import name_list


@dataclass(frozen=True)
class Targets:
    """Targets of all rows: ``y`` as in ``Split``; ``names`` of the classes; ``labelled``: bool mask of rows."""

    y: Any
    names: tuple[str, ...]
    labelled: np.ndarray


def targets_of(table: ColumnSource, column: str, kind: str, classes: tuple[str, ...] = ()) -> Targets:
    """Return the labels in ``column`` as ``kind``: class, numbers, sets or text; classes in the order of ``classes``.

    Raises ``DataError`` naming the row of one that cannot be read so.
    """
    rows = np.arange(len(table))
    values, field = table.read([column], rows)[column], table.fields[column]
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.shape[1] == 1 and kind != "sets":
        values = values[:, 0]
    if isinstance(values, np.ndarray) and values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        raise table.trouble(column, int(bad.argmax()), "the label is no finite number")
    _require_named(table, column, values, field)
    kind = _fitting(values) if kind == "any" else kind
    if kind == "class":
        _require_labels(table, column, values)
    targets = {"class": _classes, "numbers": _numbers, "sets": _sets, "text": _texts}[kind](values, field)
    if targets is None:
        allowed = {
            "class": "one class per example is expected",
            "numbers": "numbers are expected",
            "sets": "a list of classes per example, or numbers 0 and 1 per class, are expected",
            "text": "text is expected",
        }[kind]
        others = "; the model's task says what labels are" if kind == "class" else ""
        raise DataError(f"{table.source}: label column {column!r} holds {described(values)}, {allowed}{others}")
    return _in_order(table, column, targets, classes) if classes and targets.names else targets


def _require_named(table: ColumnSource, column: str, values: Any, field: Field) -> None:
    """Raise ``DataError`` naming a row whose class number is beyond the names of the column's classes."""
    if field.class_names and isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        beyond = values >= len(field.class_names)
        if beyond.any():
            at = int(beyond.argmax())
            what = f"class {values[at]}, but there are names for {len(field.class_names)}"
            raise table.trouble(column, at, what)


def _require_labels(table: ColumnSource, column: str, values: np.ndarray | Ragged) -> None:
    """Raise ``DataError`` naming a row whose label is empty: text in CSV has no other missing value."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "O" and values.ndim == 1:
        missing = values == b""
        if missing.any():
            raise table.trouble(column, int(missing.argmax()), "it has no value")


def _fitting(values: np.ndarray | Ragged) -> str:
    """Return the most likely kind of labels of these values."""
    if isinstance(values, Ragged) or (values.ndim == 2 and values.dtype.kind != "f"):
        return "sets"
    whole = values.dtype.kind != "f" or bool((values == np.round(values)).all())
    return "class" if values.ndim == 1 and whole else "numbers"


def _in_order(table: ColumnSource, column: str, targets: Targets, classes: tuple[str, ...]) -> Targets:
    """Return targets renumbered by the names of ``classes``."""
    numbers = np.array(_numbers_of(targets.names, classes), dtype=np.int64)
    if isinstance(targets.y, LabelSets):
        rows, old = np.repeat(np.arange(len(targets.y)), targets.y.counts), targets.y.indices
    else:
        rows, old = np.flatnonzero(targets.labelled), targets.y[targets.labelled]
    if (numbers[old] < 0).any():
        at = int((numbers[old] < 0).argmax())
        what = f"class {targets.names[old[at]][:40]!r}, which the model does not know; it knows {name_list(classes)}"
        raise table.trouble(column, int(rows[at]), what)
    if not isinstance(targets.y, LabelSets):
        y = np.where(targets.labelled, numbers[targets.y], -1)
        return Targets(y, classes, targets.labelled)
    order = np.lexsort((numbers[old], rows))
    return Targets(LabelSets(targets.y.indptr, numbers[old][order].astype(np.int32)), classes, targets.labelled)


def _numbers_of(names: Sequence[str], classes: Sequence[str]) -> list[int]:
    """Return the number of each name's class, or -1; numbers are equal in any notation: 1, 1.0."""
    keys: Callable[[str], Any] = str
    if not set(names) <= set(classes):
        keys = _number_if_one
    number = {keys(name): i for i, name in enumerate(classes)}
    return [number.get(keys(name), -1) for name in names]


def _number_if_one(name: str) -> Any:
    try:
        return float({"True": "1", "False": "0"}.get(name, name))
    except ValueError:
        return name


def _classes(values: Any, field: Field) -> Targets | None:
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        return None
    if field.class_names and values.dtype.kind in "iu":
        y = values.astype(np.int64)
        return Targets(y, field.class_names, (y >= 0) & (y < len(field.class_names)))
    classes, y = np.unique(values, return_inverse=True)
    return Targets(y.astype(np.int64), _names(classes), np.ones(len(y), dtype=bool))


def _numbers(values: Any, field: Field) -> Targets | None:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        return None
    return Targets(values.astype(np.float64), (), np.ones(len(values), dtype=bool))


def _texts(values: Any, field: Field) -> Targets | None:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "O" or values.ndim != 1:
        return None
    return Targets(values, (), np.ones(len(values), dtype=bool))


def _sets(values: Any, field: Field) -> Targets | None:
    if isinstance(values, np.ndarray) and values.ndim != 2:
        return None
    if isinstance(values, np.ndarray) and _is_indicator(values):
        rows, labels = np.nonzero(values)
        counts, width = np.bincount(rows, minlength=len(values)), values.shape[1]
        names = field.class_names or tuple(map(str, range(width)))
    else:
        rows, labels, names = _listed(values, field)
        counts = np.bincount(rows, minlength=len(values))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return Targets(LabelSets(indptr, labels.astype(np.int32)), names, np.ones(len(values), dtype=bool))


def _listed(values: Any, field: Field) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the row and label of each listed class, ascending, each once; names of the classes."""
    if isinstance(values, Ragged):
        flat, rows = values.values, np.repeat(np.arange(len(values)), values.lengths)
    else:
        flat, rows = values.reshape(-1), np.repeat(np.arange(len(values)), values.shape[1])
    if field.class_names and flat.dtype.kind in "iu":
        names, labels = field.class_names, flat.astype(np.int64)
    else:
        classes, labels = np.unique(flat, return_inverse=True)
        names = _names(classes)
    pairs = np.unique(np.stack([rows, labels], axis=1), axis=0) if len(flat) else np.empty((0, 2), np.int64)
    return pairs[:, 0], pairs[:, 1], names


def _is_indicator(values: np.ndarray) -> bool:
    return values.dtype == np.bool_ or (values.dtype.kind in "iuf" and bool(np.isin(values, (0, 1)).all()))


def _names(classes: np.ndarray) -> tuple[str, ...]:
    return tuple(c.decode(errors="replace") if isinstance(c, bytes) else str(c) for c in classes.tolist())
