"""What every ranker does: put similar inputs of one layer into the same bucket, at little cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np


class Ranker(ABC):
    """Maps the inputs of one layer to one bucket in each of ``tables`` hash tables of ``buckets`` buckets."""

    name: ClassVar[str]
    tables: int
    buckets: int

    @classmethod
    @abstractmethod
    def fit(
        cls,
        activations: np.ndarray,
        pre_activations: np.ndarray,
        *,
        tables: int,
        bits: int,
        rng: np.random.Generator,
    ) -> Ranker:
        """Learn from training examples; same generator state, same ranker.

        ``activations``: float32 [n, units], what the layer answers when nothing before it was dropped;
        ``pre_activations``: float32 [m, units], its w·x + b on inputs as they come at inference, already thinned by
        the layers before. Raises ``InputError`` when the layer cannot carry ``bits`` bits.
        """

    @abstractmethod
    def keys(self, pre_activations: np.ndarray) -> np.ndarray:
        """int64 [n, tables]: the bucket of each input, from float32 [n, units]; reads only ``computed_nodes``."""

    @property
    @abstractmethod
    def computed_nodes(self) -> np.ndarray:
        """int64 [h], unique: nodes whose dot products the key needs; they are reused as the nodes' outputs."""

    @abstractmethod
    def tensors(self) -> dict[str, np.ndarray]:
        """All that was learnt, as arrays."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Ranker:
        """Inverse of ``tensors``."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def bucket_entropy(keys: np.ndarray, buckets: int) -> float:
    """Entropy of the bucket occupancy in bits, mean over tables; 0 means that a table tells no inputs apart.

    ``keys``: int [n, tables].
    """
    entropies = []
    for column in keys.T:
        share = np.bincount(column, minlength=buckets) / len(column)
        share = share[share > 0]
        entropies.append(float(-(share * np.log2(share)).sum()))
    return max(0.0, float(np.mean(entropies)))
