"""Hashing as for training (Mongoose, Chen et al., ICLR 2021): learnt projections, lists from partial activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.elastic.slo_nn.rankers.ranker import Ranker, check_tables, require_array
from slotool.llvm import without_late_triton

# Besides the nodes whose weights share a bucket with the input, training computes this share of all, drawn at random.
DRAWN_SHARE = 0.05
# Learning: rounds of so many inputs, each of which meets so many nodes, with this margin between the two similarities.
ROUNDS, INPUTS_PER_ROUND, NODES_PER_ROUND, MARGIN, LEARNING_RATE = 60, 256, 512, 0.5, 0.02


@dataclass(eq=False)
class Mongoose(Ranker):
    """Bit i of a key is p·x > threshold for a projection p; thresholds are those of the mean input.

    The baseline of slo-aware-neural-networks, Fig. 4. Projections begin as SimHash's and are learnt from triplets (an
    input, the node that answers it most among those drawn, another of them), so that inputs and the weights of the
    nodes they wake get the same key. Lists add up what such training ever computes: nodes whose own weights have the
    input's key in some table, and a few at random. ``projections``: int8 [tables, bits, inputs], each in steps of its
    own; ``thresholds``: float32 [tables, bits], in those steps.
    """

    name: ClassVar[str] = "mongoose"

    projections: np.ndarray
    thresholds: np.ndarray

    def __post_init__(self) -> None:
        self.tables, bits = self.thresholds.shape
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
        mean = np.asarray(inputs.mean(axis=0), dtype=np.float32).ravel()
        start = rng.normal(size=(tables * bits, layer.inputs)).astype(np.float32)
        learnt = _learn(start, layer, inputs, mean, rng)
        largest = np.abs(learnt).max(axis=1, keepdims=True)
        steps = np.round(learnt * (127.0 / np.where(largest > 0, largest, 1.0))).astype(np.int8)
        thresholds = steps.astype(np.float32) @ mean
        return cls(steps.reshape(tables, bits, layer.inputs), thresholds.reshape(tables, bits))

    def keys(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        return self._coded(inputs @ self._rows.T, self.thresholds)

    def node_keys(self, layer: DenseLayer) -> np.ndarray:
        """Return int64 [units, tables]: the bucket of each node's own weights, about their mean."""
        weights = layer.weights - layer.weights.mean(axis=0)
        return self._coded(weights @ self._rows.T, np.zeros_like(self.thresholds))

    def considered(self, layer: DenseLayer, keys: np.ndarray, activations: Any, rng: np.random.Generator) -> Any:
        """Return the activations of the nodes that share a bucket with the input, or were drawn."""
        nodes = self.node_keys(layer)
        if isinstance(activations, np.ndarray):
            computed = rng.random(activations.shape) < DRAWN_SHARE
            for table in range(self.tables):
                computed |= keys[:, table, None] == nodes[:, table]
            return np.where(computed, activations, np.float32(0.0))
        entries = activations.tocoo()
        computed = rng.random(entries.nnz) < DRAWN_SHARE
        computed |= (keys[entries.row] == nodes[entries.col]).any(axis=1)
        partial = activations.copy()
        partial.data = np.where(computed, partial.data, np.float32(0.0))
        return partial

    def check(self, layer: DenseLayer) -> None:
        super().check(layer)
        tables, bits = self.thresholds.shape
        require_array("projections", self.projections, np.int8, (tables, bits, layer.inputs))
        require_array("thresholds of the keys", self.thresholds, np.float32, (tables, bits))

    @classmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        return tables * bits * (layer.inputs + 4)

    @property
    def _rows(self) -> np.ndarray:
        """Projections as rows, float32 [tables · bits, inputs]."""
        return self.projections.reshape(-1, self.projections.shape[2]).astype(np.float32)

    def _coded(self, values: Any, thresholds: np.ndarray) -> np.ndarray:
        """Return int64 [n, tables] from [n, tables · bits]."""
        above = np.asarray(values).reshape(-1, *thresholds.shape) > thresholds
        return above @ (1 << np.arange(thresholds.shape[1]))


@without_late_triton()
def _learn(
    projections: np.ndarray, layer: DenseLayer, inputs: Any, mean: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return float32 [projections, inputs], by Adam on max(0, margin − s(input, most answering) + s(input, other))."""
    import torch

    learnt = torch.from_numpy(projections.copy()).requires_grad_()
    optimiser = torch.optim.Adam([learnt], lr=LEARNING_RATE)
    weight_mean = layer.weights.mean(axis=0)
    for _ in range(ROUNDS):
        rows = rng.integers(inputs.shape[0], size=min(INPUTS_PER_ROUND, inputs.shape[0]))
        x = inputs[np.sort(rows)]
        x = x if isinstance(x, np.ndarray) else x.toarray()
        nodes = rng.permutation(layer.units)[:NODES_PER_ROUND]
        most = nodes[layer.pre_activations(x, nodes).argmax(axis=1)]
        other = nodes[rng.integers(len(nodes), size=len(x))]
        code, positive, negative = (
            _soft_code(learnt, torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)))
            for part in (x - mean, layer.weights[most] - weight_mean, layer.weights[other] - weight_mean)
        )
        loss = torch.relu(MARGIN - (code * positive).mean(dim=1) + (code * negative).mean(dim=1)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return learnt.detach().numpy()


def _soft_code(projections: Any, vectors: Any) -> Any:
    """Return smoothed signs of normalised vectors, as a vector's length does not change its key."""
    import torch

    unit = torch.nn.functional.normalize(vectors, dim=1)
    return torch.tanh(2.0 * unit @ projections.T)
