"""As many nodes, but drawn at random: what every ranker must beat (slo-aware-neural-networks, §5.1, Fig. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker


class RandomOrder(Ranker):
    """One bucket for all inputs, whose list is the layer's nodes in an order drawn once."""

    name: ClassVar[str] = "random"
    max_tables: ClassVar[int] = 1
    informed: ClassVar[bool] = False
    tables, buckets = 1, 1

    @classmethod
    def fit(
        cls,
        layer: DenseLayer,
        inputs: Any,
        activations: Any,
        *,
        tables: int,
        bits: int,
        rng: np.random.Generator,
    ) -> Self:
        return cls()

    def keys(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        return np.zeros((inputs.shape[0], 1), dtype=np.int64)

    def considered(self, layer: DenseLayer, keys: np.ndarray, activations: Any, rng: np.random.Generator) -> Any:
        """Nothing of the activations: the first input alone scores, and at random."""
        order = rng.permutation(layer.units) + 1.0
        first = (np.zeros(layer.units, dtype=np.int64), np.arange(layer.units))
        return csr_matrix((order, first), shape=(len(keys), layer.units))

    def tensors(self) -> dict[str, np.ndarray]:
        return {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Self:
        return cls()

    @classmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        return 0

    def lookup_bytes(self, layer: DenseLayer) -> int:
        return 0
