"""A data set that slotool does not have."""

import numpy as np
from sklearn.datasets import load_breast_cancer

from slotool.data import Dataset
from slotool.data.dataset import Split


def breast_cancer():
    """569 tumours by 30 measures of their cells, scaled to [0, 1]: malignant or benign."""
    table = load_breast_cancer()
    x = (table.data - table.data.min(axis=0)) / np.ptp(table.data, axis=0)
    x, y = x.astype(np.float32), table.target.astype(np.int64)
    train, validation, test = np.split(np.random.default_rng(0).permutation(len(y)), [345, 457])
    splits = [Split(x[rows], y[rows]) for rows in (train, validation, test)]
    return Dataset("breast-cancer", *splits, classes=2, labels=tuple(map(str, table.target_names)))
