"""Data sets by name or path.

Read are digits (the default, offline), IDX, Parquet, CSV, npz, images by class, saved sets of Hugging Face,
module:factory; with many labels: the Extreme Classification Repository's text format.
"""

from slotool.data.columns import Columns, Inputs, concatenate
from slotool.data.dataset import Dataset, LabelSets, MultiLabelDataset, MultiLabelSplit, Split, numbered
from slotool.data.options import DataOptions, DataSource, ImageOptions
from slotool.data.registry import (
    ADAPTERS,
    DATASETS,
    default_dataset,
    has_many_labels,
    load_dataset,
    load_multilabel,
    open_dataset,
)

__all__ = [
    "ADAPTERS",
    "DATASETS",
    "Columns",
    "DataOptions",
    "DataSource",
    "Dataset",
    "ImageOptions",
    "Inputs",
    "LabelSets",
    "MultiLabelDataset",
    "MultiLabelSplit",
    "Split",
    "concatenate",
    "default_dataset",
    "has_many_labels",
    "load_dataset",
    "load_multilabel",
    "numbered",
    "open_dataset",
]
