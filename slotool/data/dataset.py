"""One shape for every data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Split:
    """``x``: float32 [n, *input_shape], ``y``: int64 [n] class numbers."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A labelled image set in three disjoint splits.

    ``train`` fits weights and tables, ``validation`` chooses and calibrates, ``test`` scores and is used for nothing
    else. Pixels are scaled to [0, 1]; ``input_shape`` is (channels, height, width).
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int
    labels: tuple[str, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])
