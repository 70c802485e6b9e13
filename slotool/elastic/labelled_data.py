"""Labelled data of a user's in the form that versions of a service take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slotool.data import Dataset, DataSource, numbered
from slotool.data.adapters.factory import opened as opened_data
from slotool.data.assembly import assemble
from slotool.data.options import DataOptions, ImageOptions
from slotool.data.registry import open_dataset
from slotool.data.table import ColumnSource
from slotool.elastic.versions import ModelVersion, common_signature, with_names
from slotool.errors import ArgumentError, InputError
from slotool.models import Classification, Model, Task
from slotool.models.signature import FREE
from slotool.printable import name_list

# Location of data that came as arrays, in an artifact.
IN_MEMORY = "data in memory"


def labelled_data(
    opened: Sequence[tuple[ModelVersion, Model]],
    task: Task,
    data: str | DataSource | tuple[Any, Any],
    inputs: Mapping[str, str] | None,
    images: ImageOptions | None,
    keep: Sequence[str] = (),
) -> tuple[Dataset, DataOptions, Any]:
    """Return the data set in the form that versions take, how it is read, and where it is, for an artifact.

    Args:
        opened: Versions with their models.
        task: Task of the versions.
        data: Name or source of a data set, or (features, labels) with as many labels as rows of features.
        inputs: Tensor by column of the data set, where names differ.
        images: Conversion of images to tensors.
        keep: Columns that are kept beside the examples, as text.

    Raises:
        InputError: Data set and versions have other classes.
        ArgumentError: ``data`` in memory is no such pair.
    """
    signature = common_signature([(version.name, model) for version, model in opened])
    requested = DataOptions(
        None, task.target, dict(inputs or {}), signature.inputs, images or ImageOptions(), keep=tuple(keep)
    )
    requested = with_names(requested, opened)
    options = requested if isinstance(data, tuple) else requested.of_source(DataSource.of(data))
    source = IN_MEMORY if isinstance(data, tuple) else DataSource.of(data).document()
    dataset = _open(data, options)
    if isinstance(task, Classification) and task.scores != "labels" and not options.classes:
        shape = signature.output(task.output).shape
        dataset = numbered(dataset, shape[1]) if len(shape) == 2 and shape[1] != FREE else dataset
    if options.classes and tuple(dataset.labels) != options.classes:  # a data set that is no table
        actual, expected = name_list(dataset.labels), name_list(options.classes)
        raise InputError(f"{dataset.name} has the classes {actual}; the models know {expected}")
    return dataset, options, source


def _open(data: Any, options: DataOptions) -> Dataset:
    """Return the data set that ``data`` names or holds."""
    if not isinstance(data, tuple):
        return open_dataset(data, options, stored=True)
    if len(data) != 2 or len(data[0]) != len(data[1]):
        raise ArgumentError("data", "(features, labels) are expected, with as many labels as rows of features")
    x, y = data
    frame = {str(name): np.asarray(x[name]) for name in x.columns} if hasattr(x, "columns") else {"features": x}
    label = next(name for name in ("label", "label_", "label__") if name not in frame)
    table = opened_data(IN_MEMORY, {**frame, label: y})
    assert isinstance(table, ColumnSource)  # of arrays by name
    return assemble(table, replace(options, label=label))
