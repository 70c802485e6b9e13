"""Labels that are a model's own numbers of classes, where a data set holds only some of its classes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from slotool.data.dataset import Dataset, LabelSets
from slotool.errors import InputError


def numbered(data: Any, classes: int) -> Any:
    """``data`` with labels that number a model's ``classes`` classes, as they are where it has as many.

    A data set numbers its classes by the order of their names. Where it lacks some of a model's, as texts lack most
    words of a vocabulary, these names must be the model's numbers. Without classes it stays as it is. Raises
    ``InputError`` where they are no such numbers, and for several labels per example.
    """
    if data.classes in (0, classes):
        return data
    if not isinstance(data, Dataset) or isinstance(data.train.y, LabelSets):
        raise InputError(f"the network knows {classes} classes, and {data.name} has {data.classes}")
    numbers = [int(name) if re.fullmatch(r"\d{1,9}", name) else -1 for name in data.labels]
    if not all(0 <= number < classes for number in numbers):
        strange = next(name for name, number in zip(data.labels, numbers, strict=True) if not 0 <= number < classes)
        raise InputError(
            f"the network has {classes:,} classes, and {data.name} has {data.classes:,} labels, not all of them "
            f"numbers from 0 to {classes - 1:,}: {strange[:40]!r}"
        )
    of = np.array(numbers, dtype=np.int64)
    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    made = {name: replace(split, y=of[split.y]) for name, split in splits.items()}
    return replace(data, **made, classes=classes, labels=tuple(map(str, range(classes))))
