"""Data sets: digits (offline default), IDX files (Fashion-MNIST), Parquet, CSV and npz files; multi-label: XMC text
files, FMA's tables."""

from slotool.data.columns import Columns, Inputs, concatenate
from slotool.data.dataset import Dataset, LabelSets, MultiLabelDataset, MultiLabelSplit
from slotool.data.registry import DATASETS, default_dataset, load_dataset, load_multilabel

__all__ = [
    "DATASETS",
    "Columns",
    "Dataset",
    "Inputs",
    "LabelSets",
    "MultiLabelDataset",
    "MultiLabelSplit",
    "concatenate",
    "default_dataset",
    "load_dataset",
    "load_multilabel",
]
