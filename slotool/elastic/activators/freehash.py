"""FreeHash (slo-aware-neural-networks, Definition 2): the layer's own weights as hash functions, free of charge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from slotool.elastic.activators.ranker import Ranker
from slotool.errors import InputError

# A list's row number must fit 16 bits.
MOST_LISTS = 2**16 - 1


class FreeHash(Ranker):
    """Bit i of a key is w·x + b > threshold of sampled node i; here the threshold is 0, the sign of Eq. 5.

    Nodes are sampled in proportion to the variance of their activations over the training data (§3.4), without
    replacement within a table, and over all tables while enough nodes vary.
    ``nodes``: int64 [tables, bits]; ``thresholds``: float32 [tables, bits].
    """

    name: ClassVar[str] = "freehash"

    def __init__(self, nodes: np.ndarray, thresholds: np.ndarray):
        self.nodes = nodes.astype(np.int64)
        self.thresholds = thresholds.astype(np.float32)
        self.tables, bits = self.nodes.shape
        self.buckets = 2**bits
        self._computed = np.unique(self.nodes)

    @classmethod
    def fit(
        cls,
        activations: np.ndarray,
        pre_activations: np.ndarray,
        *,
        tables: int,
        bits: int,
        rng: np.random.Generator,
    ) -> Self:
        if bits < 1 or tables < 1 or tables * 2**bits > MOST_LISTS:
            raise InputError(f"{tables} tables of {bits} bits: both must be at least 1, and no more than 65,535 lists")
        nodes = _sample(activations.var(axis=0, dtype=np.float64), tables, bits, rng)
        return cls(nodes, cls._thresholds(pre_activations[:, nodes.ravel()]).reshape(nodes.shape))

    @staticmethod
    def _thresholds(pre_activations: np.ndarray) -> np.ndarray:
        return np.zeros(pre_activations.shape[1], dtype=np.float32)

    def keys(self, pre_activations: np.ndarray) -> np.ndarray:
        above = pre_activations[:, self.nodes] > self.thresholds
        return above @ (1 << np.arange(self.nodes.shape[1]))

    @property
    def computed_nodes(self) -> np.ndarray:
        return self._computed

    def tensors(self) -> dict[str, np.ndarray]:
        packed = np.min_scalar_type(int(self.nodes.max()))
        return {"nodes": self.nodes.astype(packed), "thresholds": self.thresholds}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Self:
        return cls(tensors["nodes"], tensors["thresholds"])


class CentredFreeHash(FreeHash):
    """FreeHash with each sampled node's median pre-activation as its threshold, so that every bit halves the inputs.

    The sign alone is nearly constant for a node with a large bias, and then its bit says nothing.
    """

    name: ClassVar[str] = "centred-freehash"

    @staticmethod
    def _thresholds(pre_activations: np.ndarray) -> np.ndarray:
        # Between two training values, never on one: the bit of a seen input must not hang on how its sum was rounded.
        ordered = np.sort(pre_activations, axis=0)
        middle = (len(ordered) - 1) // 2
        return (ordered[middle] + ordered[middle + 1]) / 2 if len(ordered) > 1 else ordered[0] - 1e-3


RANKERS: dict[str, type[FreeHash]] = {kind.name: kind for kind in (FreeHash, CentredFreeHash)}


def _sample(variance: np.ndarray, tables: int, bits: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [tables, bits] nodes, drawn in proportion to ``variance``."""
    varying = int(np.count_nonzero(variance))
    if varying < bits:
        raise InputError(f"{bits} bits, but only {varying} of the layer's {len(variance)} nodes ever vary; use fewer")
    probability = variance / variance.sum()
    if varying >= tables * bits:
        return rng.choice(len(variance), size=(tables, bits), replace=False, p=probability)
    return np.stack([rng.choice(len(variance), size=bits, replace=False, p=probability) for _ in range(tables)])
