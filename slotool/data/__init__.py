"""Data sets: scikit-learn's digits (offline default) and IDX files (Fashion-MNIST)."""

from slotool.data.dataset import Dataset
from slotool.data.registry import DATASETS, default_dataset, load_dataset

__all__ = ["DATASETS", "Dataset", "default_dataset", "load_dataset"]
