"""scikit-learn's digits: 1,797 real 8×8 images that come with the library, so nothing is ever downloaded."""

from __future__ import annotations

import numpy as np

from slotool.data.dataset import Dataset, Split

SPLIT_SEED = 0


def load_digits() -> Dataset:
    """1,077 train, 360 validation, 360 test images, stratified by class; the split never changes."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    images, labels = datasets.load_digits(return_X_y=True)
    x = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int64)
    x_train, x_rest, y_train, y_rest = train_test_split(x, y, test_size=0.4, stratify=y, random_state=SPLIT_SEED)
    x_validation, x_test, y_validation, y_test = train_test_split(
        x_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=SPLIT_SEED
    )
    return Dataset(
        "digits",
        Split(x_train, y_train),
        Split(x_validation, y_validation),
        Split(x_test, y_test),
        classes=10,
        labels=tuple("0123456789"),
    )
