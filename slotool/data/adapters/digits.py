"""scikit-learn's digits: 1,797 real 8×8 images that come with the library, so nothing is ever downloaded."""

from __future__ import annotations

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.options import DataOptions
from slotool.data.table import SPLITS, ArrayTable, ColumnSource

SPLIT_SEED = 0


class DigitsAdapter(DataAdapter):
    name, known = "digits", ("digits",)
    reads = "scikit-learn's 1,797 images of digits, 8×8, in [0, 1]"

    def open(self, location: Location, options: DataOptions) -> ColumnSource:
        """1,077 train, 360 validation, 360 test images, stratified by class; the split never changes."""
        from sklearn import datasets
        from sklearn.model_selection import train_test_split

        images, labels = datasets.load_digits(return_X_y=True)
        x = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
        y = labels.astype(np.int64)
        rows = np.arange(len(y))
        train, rest = train_test_split(rows, test_size=0.4, stratify=y, random_state=SPLIT_SEED)
        validation, test = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=SPLIT_SEED)
        splits = dict(zip(SPLITS, (train, validation, test), strict=True))
        return ArrayTable("digits", {"x": x, "label": y}, splits, class_names={"label": "0123456789"})
