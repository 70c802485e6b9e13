"""Assembly of a data set from columns: labels, splits, and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slotool.data.columns import Ragged
from slotool.data.dataset import Dataset, LabelSets, Split
from slotool.data.encoded_images import ImageFormat
from slotool.data.options import DataOptions, ImageOptions, Tensor
from slotool.data.stored import StoredExamples, TensorPlan, require_castable
from slotool.data.table import ANY_LENGTH, SPLIT_OF, SPLITS, TEST, TRAIN, VALIDATION, ColumnSource
from slotool.data.targets import Targets, targets_of
from slotool.errors import DataError, InputError
from slotool.printable import name_list, row_name
from slotool.tables.labels import label_text

# Default names of the label column.
LABEL_NAMES = ("label", "labels", "class", "target", "y")
SPLIT_COLUMN = "split"
# Names of a column or array of all features, for a model without named tensors.
FEATURES = "x"
# Shares of train and validation for rows without a split; the rest is test.
SHARES = (0.6, 0.2)
# Share of the training rows for a split that files with splits lack.
SHARE_OF_TRAIN = {TEST: 0.2, VALIDATION: 0.1}
SPLIT_SEED = 0
ROWS_AT_ONCE = 1_000
FLOAT32 = np.dtype(np.float32)


def assemble(table: ColumnSource, options: DataOptions, *, stored: bool = False) -> Dataset:
    """Return the data set in ``table``, read by ``options``; ``stored`` leaves examples in their files.

    With ``stored`` each ``x`` is a ``StoredExamples``. Raises ``DataError`` naming file, column and row.
    """
    if not len(table):
        raise DataError(f"{table.source}: it has no rows")
    label, kept = _label_column(table, options), {name: _further_column(table, name) for name in options.keep}
    targets = targets_of(table, label, options.target, options.classes) if label else _no_targets(table, options)
    plans, as_array = _plans(table, options, label)
    rows = _split_rows(table, targets.labelled, used={*options.inputs, label})
    splits = {}
    for name, chosen in rows.items():
        x = StoredExamples(table, plans, chosen, as_array=as_array)
        y = targets.y.take(chosen) if isinstance(targets.y, LabelSets) else targets.y[chosen]
        splits[name] = Split(x if stored else x.load(), y, chosen)
    return Dataset(
        table.name, splits[TRAIN], splits[VALIDATION], splits[TEST], classes=len(targets.names), labels=targets.names,
        target=options.target, label=label, kept=kept, features=_features(table, plans),
    )  # fmt: skip


def _further_column(table: ColumnSource, name: str) -> np.ndarray:
    """Return the text of a column to keep, of numbers too: object [rows]."""
    field = table.fields.get(name)
    if field is None:
        raise DataError(f"{table.source}: no column is called {name!r}; there are {name_list(table.fields)}")
    if field.is_image or field.unreadable or field.shape:
        raise DataError(f"{table.source}: column {name!r} holds {field}; a column to keep holds text or numbers")
    values = np.asarray(table.read([name], np.arange(len(table)))[name]).tolist()
    names = field.class_names
    texts = ((names[x] if names else x.decode(errors="replace") if isinstance(x, bytes) else x) for x in values)
    return np.array([text if isinstance(text, str) else label_text(text) for text in texts], dtype=object)


def _label_column(table: ColumnSource, options: DataOptions) -> str:
    """Return the column with the labels; "" where there is none and none is needed."""
    named = [name for name, field in table.fields.items() if field.class_names]
    usual = [name for name in table.fields if name == options.usual_label] or named
    free = [name for name in LABEL_NAMES if name in table.fields and name not in options.not_labels]
    candidates = [options.label] if options.label else usual or free
    if len(candidates) == 1 and candidates[0] in table.fields:
        return candidates[0]
    if not (candidates or options.needs_labels):
        return ""
    what = f"no column is called {options.label!r}" if options.label else "which column holds the labels is unclear"
    raise DataError(
        f"{table.source}: {what}; write {Path(table.name).name}:COLUMN, there are {name_list(table.fields)}"
    )


def _no_targets(table: ColumnSource, options: DataOptions) -> Targets:
    """Return targets of examples without labels."""
    return Targets(np.full(len(table), -1, dtype=np.int64), options.classes, np.ones(len(table), dtype=bool))


def _plans(table: ColumnSource, options: DataOptions, label: str) -> tuple[dict[str, TensorPlan], bool]:
    """Return the plan of each tensor, and True if examples are one array rather than ``Columns``."""
    groups, tensors = _groups(table, options, label), {tensor.name: tensor for tensor in options.tensors}
    for column in [column for group in groups.values() for column in group]:
        if column not in table.fields:
            raise DataError(f"{table.source}: no column is called {column!r}; there are {name_list(table.fields)}")
        if table.fields[column].unreadable:
            field = table.fields[column]
            raise DataError(f"{table.source}: column {column!r} holds {field}; features are numbers, text or images")
    if options.features:
        groups = {name: _in_order(table, options.features, group) for name, group in groups.items()}
    as_array = len(groups) == 1 and _is_one_array(table, options, *next(iter(groups.items())))
    plans = {name: _plan(table, options, name, tensors.get(name), group, as_array) for name, group in groups.items()}
    return plans, as_array


def _groups(table: ColumnSource, options: DataOptions, label: str) -> dict[str, list[str]]:
    """Return columns grouped by their tensor."""
    split = {SPLIT_COLUMN} if SPLIT_COLUMN in table.fields else set()
    remaining = [name for name in table.fields if name not in {label, *split, *options.inputs, *options.keep}]
    groups: dict[str, list[str]] = {tensor.name: [] for tensor in options.tensors}
    for column, tensor in options.inputs.items():
        groups.setdefault(tensor, []).append(column)
    if not groups:
        return _all_features(table, remaining, label)
    for name, group in groups.items():
        if not group and name in remaining:
            group.append(name)
    missing = [name for name, group in groups.items() if not group]
    if missing and len(groups) == 1:
        (only,) = _all_features(table, remaining, label).values() if _is_one_group(table, remaining) else (remaining,)
        return {missing[0]: only}
    if missing:
        raise DataError(
            f"{table.source}: no column is called as input {missing[0]!r}; say which it is with "
            f"--input COLUMN={missing[0]}; there are {name_list(remaining)}"
        )
    return groups


def _in_order(table: ColumnSource, features: Sequence[str], columns: list[str]) -> list[str]:
    """Return ``columns`` in the order of the model's ``features``; an array of all features has no names to compare."""
    if not all(_is_number(table, column) for column in columns):
        return columns
    missing = [name for name in features if name not in columns]
    unknown = [name for name in columns if name not in features]
    if missing or unknown:
        wrong = {"missing": missing, "unknown": unknown}
        what = "; ".join(f"{problem} columns: {name_list(names)}" for problem, names in wrong.items() if names)
        raise DataError(f"{table.source}: {what}; the model's columns are {name_list(features)}")
    return list(features)


def _features(table: ColumnSource, plans: dict[str, TensorPlan]) -> tuple[str, ...]:
    """Return the names of the columns of numbers that make up the only tensor; () where there are others."""
    columns = [column for plan in plans.values() for column in plan.columns]
    return tuple(columns) if len(plans) == 1 and all(_is_number(table, column) for column in columns) else ()


def _is_one_group(table: ColumnSource, names: Sequence[str]) -> bool:
    return FEATURES in names or all(_is_number(table, name) for name in names)


def _all_features(table: ColumnSource, names: list[str], label: str) -> dict[str, list[str]]:
    """Return all columns in one tensor where each is a number, else each by itself; ``FEATURES`` where there is one."""
    if not names:
        raise DataError(f"{table.source}: it has no feature beside {label}")
    if FEATURES in names and table.fields[FEATURES].shape:
        return {FEATURES: [FEATURES]}
    if all(_is_number(table, name) for name in names):
        return {FEATURES: names}
    return {name: [name] for name in names}


def _is_number(table: ColumnSource, name: str) -> bool:
    field = table.fields[name]
    return not field.unreadable and field.shape == () and field.dtype.kind in "fiub"


def _is_one_array(table: ColumnSource, options: DataOptions, name: str, columns: list[str]) -> bool:
    """True if the only tensor is floating-point, passed as a bare float32 array; never FP64, which that would round."""
    first = table.fields[columns[0]]
    if options.tensors:
        (tensor,) = options.tensors
        floating = tensor.datatype.startswith(("FP", "BF")) and tensor.datatype != "FP64"
        return floating and not _ragged(table, columns, fixed=ANY_LENGTH not in tensor.shape[1:])
    if first.unreadable or (first.dtype.kind not in "fiub" and not first.is_image):
        return False
    meant = name == FEATURES or first.is_image or first.dtype.kind == "f" or first.shape == ()
    return meant and not _ragged(table, columns, fixed=False)


def _ragged(table: ColumnSource, columns: Sequence[str], fixed: bool) -> bool:
    """True if examples have different lengths; where the file does not say and no tensor ``fixed`` it, all are read."""
    unknown = [column for column in columns if ANY_LENGTH in table.fields[column].shape]
    return not fixed and any(not _one_length(table, column) for column in unknown)


def _one_length(table: ColumnSource, column: str) -> bool:
    shapes = set()
    for start in range(0, len(table), ROWS_AT_ONCE):
        read = table.read([column], np.arange(start, min(start + ROWS_AT_ONCE, len(table))))[column]
        if isinstance(read, Ragged):
            return False
        shapes.add(read.shape[1:])
    return len(shapes) == 1


def _plan(
    table: ColumnSource, options: DataOptions, name: str, tensor: Tensor | None, columns: list[str], as_array: bool
) -> TensorPlan:
    field = table.fields[columns[0]]
    needs = f"input {name!r} takes {tensor.datatype}{list(tensor.shape)}" if tensor else "numbers are expected"
    if len(columns) > 1 and not all(_is_number(table, column) for column in columns):
        odd = next(column for column in columns if not _is_number(table, column))
        raise DataError(
            f"{table.source}: column {odd!r} holds {table.fields[odd]}, features are numbers; leave it out, or name "
            "the columns wanted with --input COLUMN=TENSOR"
        )
    if field.is_image or (field.dtype.kind == "O" and tensor and tensor.dtype.kind in "fiu" and len(tensor.shape) == 4):
        return _image_plan(table, options.images, tensor, columns[0], as_array)
    if options.images != ImageOptions():
        raise DataError(f"{table.source}: column {columns[0]!r} holds {field}, no images: image options have no effect")
    dtype = FLOAT32 if as_array else tensor.dtype if tensor else field.dtype
    for column in columns:
        require_castable(table, column, dtype, needs)
    shape = tuple(tensor.shape[1:]) if tensor else (1,) if as_array and field.shape == () else None
    if tensor and len(columns) > 1 and shape not in ((len(columns),), (ANY_LENGTH,)):
        raise DataError(f"{table.source}: {len(columns)} columns become [{len(columns)}], {needs}")
    return TensorPlan(tuple(columns), dtype, shape if tensor or len(columns) == 1 else None)


def _image_plan(
    table: ColumnSource, options: ImageOptions, tensor: Tensor | None, column: str, as_array: bool
) -> TensorPlan:
    first = np.asarray(table.read([column], np.arange(1))[column])
    try:
        form = ImageFormat.of(options, tensor, first[0])
    except InputError as error:
        raise DataError(f"{table.source}: column {column!r}: {error}") from None
    return TensorPlan((column,), FLOAT32 if as_array else form.dtype, image=form)


def _split_rows(table: ColumnSource, labelled: np.ndarray, used: set[str]) -> dict[str, np.ndarray]:
    """Labelled rows of each split, ascending."""
    if SPLIT_COLUMN in table.fields and SPLIT_COLUMN not in used:
        rows = _by_column(table)
    elif table.splits:
        rows = {split: table.splits.get(split, np.empty(0, np.int64)) for split in SPLITS}
        rows = _drawn_from_train({split: candidates[labelled[candidates]] for split, candidates in rows.items()})
    else:
        ends = np.cumsum([round(len(table) * share) for share in SHARES])
        parts = np.split(np.random.default_rng(SPLIT_SEED).permutation(len(table)), ends)
        rows = dict(zip(SPLITS, map(np.sort, parts), strict=True))
    rows = {split: candidates[labelled[candidates]] for split, candidates in rows.items()}
    if not any(map(len, rows.values())):
        raise DataError(f"{table.source}: no row has a label")
    return rows


def _by_column(table: ColumnSource) -> dict[str, np.ndarray]:
    values = table.read([SPLIT_COLUMN], np.arange(len(table)))[SPLIT_COLUMN]
    named = [v.decode(errors="replace") if isinstance(v, bytes) else str(v) for v in np.asarray(values).tolist()]
    splits = np.array([SPLIT_OF.get(name, "") for name in named])
    if (splits == "").any():
        at = int((splits == "").argmax())
        raise DataError(f"{table.source}: {row_name(at)} has split {named[at][:40]!r}, expected {', '.join(SPLITS)}")
    return {split: np.flatnonzero(splits == split) for split in SPLITS}


def _drawn_from_train(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a split that is not there is drawn from the training rows, always alike."""
    if all(len(rows[split]) for split in SHARE_OF_TRAIN):
        return rows
    generator, train = np.random.default_rng(SPLIT_SEED), rows[TRAIN]
    order, size = generator.permutation(len(train)), len(train)
    for split, share in SHARE_OF_TRAIN.items():
        if not len(rows[split]) and size:
            drawn, order = np.split(order, [round(share * size)])
            rows[split] = np.sort(train[drawn])
    return {**rows, TRAIN: np.sort(train[order])}
