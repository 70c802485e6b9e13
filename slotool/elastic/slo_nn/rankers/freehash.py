"""FreeHash (slo-aware-neural-networks, Definition 2): the layer's own weights as hash functions, free of charge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker, check_tables, require_array, require_indices
from slotool.errors import InputError


@dataclass(eq=False)
class FreeHash(Ranker):
    """Bit i of a key is w·x + b > threshold of sampled node i; here the threshold is 0, the sign of Eq. 5.

    Nodes are sampled in proportion to the variance of their activations over the training data (§3.4), without
    replacement within a table, and over all tables while enough nodes vary.
    ``nodes``: int64 [tables, bits]; ``thresholds``: float32 [tables, bits].
    """

    name: ClassVar[str] = "freehash"

    nodes: np.ndarray
    thresholds: np.ndarray

    def __post_init__(self) -> None:
        require_indices("nodes that the keys read", self.nodes, np.iinfo(np.int64).max)
        self.nodes, self.thresholds = self.nodes.astype(np.int64), self.thresholds.astype(np.float32)
        self.tables, bits = self.nodes.shape
        self.buckets = 2**bits

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
        check_tables(tables, bits)
        nodes = _sample(_variance(activations), tables, bits, rng)
        return cls(nodes, cls._thresholds(layer.pre_activations(inputs, nodes.ravel())).reshape(nodes.shape))

    @staticmethod
    def _thresholds(pre_activations: np.ndarray) -> np.ndarray:
        return np.zeros(pre_activations.shape[1], dtype=np.float32)

    def keys(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        values = layer.pre_activations(inputs, self.computed_nodes)
        above = values[:, self.positions] > self.thresholds
        return above @ (1 << np.arange(self.nodes.shape[1]))

    @cached_property
    def computed_nodes(self) -> np.ndarray:
        return np.unique(self.nodes)

    @cached_property
    def positions(self) -> np.ndarray:
        """Position of each of ``nodes`` in ``computed_nodes``, int64 [tables, bits]."""
        return np.searchsorted(self.computed_nodes, self.nodes)

    def check(self, layer: DenseLayer) -> None:
        super().check(layer)
        require_indices("nodes that the keys read", self.nodes, layer.units)
        require_array("thresholds of the keys", self.thresholds, np.float32, self.nodes.shape)

    def tensors(self) -> dict[str, np.ndarray]:
        return {**super().tensors(), "nodes": self.nodes.astype(np.min_scalar_type(int(self.nodes.max())))}

    @classmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        return tables * bits * (np.min_scalar_type(layer.units - 1).itemsize + 4)


class CentredFreeHash(FreeHash):
    """FreeHash with each sampled node's median pre-activation as its threshold, so that every bit halves the inputs.

    The sign alone is nearly constant for a node with a large bias: its bit would carry no information.
    """

    name: ClassVar[str] = "centred-freehash"

    @staticmethod
    def _thresholds(pre_activations: np.ndarray) -> np.ndarray:
        # Between two training values, never on one: the bit of a seen input must not hang on how its sum was rounded.
        ordered = np.sort(pre_activations, axis=0)
        middle = (len(ordered) - 1) // 2
        return (ordered[middle] + ordered[middle + 1]) / 2 if len(ordered) > 1 else ordered[0] - 1e-3


def _variance(activations: Any) -> np.ndarray:
    """Return float64 [units], of an array or CSR [n, units]."""
    if isinstance(activations, np.ndarray):
        return activations.var(axis=0, dtype=np.float64)
    mean = np.asarray(activations.mean(axis=0, dtype=np.float64)).ravel()
    square = np.asarray(activations.multiply(activations).mean(axis=0, dtype=np.float64)).ravel()
    return np.maximum(square - mean**2, 0.0)


def _sample(variance: np.ndarray, tables: int, bits: int, rng: np.random.Generator) -> np.ndarray:
    """Return int64 [tables, bits] nodes, drawn in proportion to ``variance``."""
    varying = int(np.count_nonzero(variance))
    if varying < bits:
        raise InputError(f"{bits} bits, but only {varying} of the layer's {len(variance)} nodes ever vary; use fewer")
    probability = variance / variance.sum()
    if varying >= tables * bits:
        return rng.choice(len(variance), size=(tables, bits), replace=False, p=probability)
    return np.stack([rng.choice(len(variance), size=bits, replace=False, p=probability) for _ in range(tables)])
