"""Two-level k-means over a layer's inputs: a learnt partition in place of a hash (after Learning to Screen)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from slotool.elastic.slo_nn.mlp import DenseLayer, quantized_inputs
from slotool.elastic.slo_nn.rankers.ranker import MAX_LISTS, Ranker, require_array
from slotool.errors import InputError

# The coarse centroids are found from at most so many examples; they are few.
COARSE_SAMPLE = 20_000
COARSE_ITERATIONS, FINE_ITERATIONS = 15, 10
# A fine cluster of fewer examples than this is not made.
MIN_IN_CLUSTER = 12
# Inputs quantized at a time.
CHUNK = 8_192
# Offset of a place that holds no centroid: never the nearest.
NOWHERE = np.float32(-3e38)


# Probe one list: those of the two nearest fine clusters, interleaved, hold the full network's label no more often
# (tate-16k, 3,000 test examples, tables of 16,384: 97.4 % at 64 nodes, one list 97.5 %; 98.6 % each at 128).
@dataclass(eq=False)
class Clusters(Ranker):
    """Table by clusters: the nearest of few coarse centroids, then the nearest of the fine ones below it.

    "Nearest" is the largest c·x − ½‖c‖². Centroids are int8 with a scale each, inputs are quantized to 255 steps: the
    partition is learnt from, and looked up with, the quantized ones. ``coarse``: int8 [c, d], ``coarse_scale``: float32
    [c]; ``fine``: int8 [c, f, d], ``fine_scale``: float32 [c, f]; ``sizes``: uint16 [c], number of centroids in the f
    places of each coarse cluster.
    """

    name: ClassVar[str] = "clusters"
    max_tables: ClassVar[int] = 1

    coarse: np.ndarray
    coarse_scale: np.ndarray
    fine: np.ndarray
    fine_scale: np.ndarray
    sizes: np.ndarray

    def __post_init__(self) -> None:
        self.tables = 1
        self.buckets = self.fine.shape[0] * self.fine.shape[1]

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
        if bits < 1 or 2**bits > MAX_LISTS:
            raise InputError(f"{bits} bits: at least 1, and no more than 65,535 lists")
        first, second = 2 ** (bits // 2), 2 ** (bits - bits // 2)
        sample = np.sort(rng.permutation(inputs.shape[0])[:COARSE_SAMPLE])
        coarse, coarse_scale = _quantized(_centres(inputs[sample], first, COARSE_ITERATIONS, rng))
        nearest = _nearest(inputs, coarse, coarse_scale)
        fine = np.zeros((len(coarse), second, layer.inputs), dtype=np.int8)
        scale = np.zeros((len(coarse), second), dtype=np.float32)
        sizes = np.ones(len(coarse), dtype=np.uint16)
        for at in range(len(coarse)):
            members = np.flatnonzero(nearest == at)
            if len(members):
                count = max(1, min(second, len(members) // MIN_IN_CLUSTER))
                centres, found_scale = _quantized(_centres(inputs[members], count, FINE_ITERATIONS, rng))
                sizes[at] = len(centres)
                fine[at, : len(centres)], scale[at, : len(centres)] = centres, found_scale
        return cls(coarse, coarse_scale, fine, scale, sizes)

    def keys(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        nearest = _nearest(inputs, self.coarse, self.coarse_scale)
        keys: np.ndarray = nearest * self.fine.shape[1]
        for at in np.unique(nearest):
            members, size = np.flatnonzero(nearest == at), self.sizes[at]
            keys[members] += _nearest(inputs[members], self.fine[at, :size], self.fine_scale[at, :size])
        return keys[:, None]

    @cached_property
    def coarse_offset(self) -> np.ndarray:
        """Offset −½‖c‖², float32 [c]."""
        return _offset(self.coarse, self.coarse_scale)

    @cached_property
    def fine_offset(self) -> np.ndarray:
        """Offset −½‖c‖², float32 [c, f]; far below all for an empty place."""
        occupied = np.arange(self.fine.shape[1]) < self.sizes[:, None]
        return np.where(occupied, _offset(self.fine, self.fine_scale), NOWHERE)

    def check(self, layer: DenseLayer) -> None:
        super().check(layer)
        if self.fine.ndim != 3:
            raise InputError(f"fine centroids {self.fine.shape}, which are not [coarse, fine, inputs]")
        coarse, fine, _ = self.fine.shape
        require_array("coarse centroids", self.coarse, np.int8, (coarse, layer.inputs))
        require_array("scales of coarse centroids", self.coarse_scale, np.float32, (coarse,))
        require_array("fine centroids", self.fine, np.int8, (coarse, fine, layer.inputs))
        require_array("scales of fine centroids", self.fine_scale, np.float32, (coarse, fine))
        require_array("sizes of coarse clusters", self.sizes, np.uint16, (coarse,))
        if not 1 <= self.sizes.min() <= self.sizes.max() <= fine:
            raise InputError(f"coarse clusters of {self.sizes.min()} to {self.sizes.max()} fine ones, of {fine} places")

    @classmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        return ((1 << bits // 2) + (1 << bits)) * (layer.inputs + 4)


def _centres(inputs: Any, count: int, iterations: int, rng: np.random.Generator) -> np.ndarray:
    """Return float32 [≤ count, d]: centres of k-means clusters. On one thread, because several add up in any order."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    seed = int(rng.integers(2**31))
    if count >= inputs.shape[0]:
        return inputs if isinstance(inputs, np.ndarray) else inputs.toarray()
    if count == 1:
        return np.asarray(inputs.mean(axis=0), dtype=np.float32).reshape(1, -1)
    with threadpool_limits(1):
        kmeans = KMeans(count, n_init=1, max_iter=iterations, random_state=seed).fit(inputs)
    return kmeans.cluster_centers_.astype(np.float32)


def _quantized(centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 [c, d] and float32 [c]: the centres in steps of their own scale, each once."""
    scale = np.abs(centres).max(axis=1) / 127.0
    steps = np.round(centres / np.where(scale > 0, scale, 1.0)[:, None]).astype(np.int8)
    distinct = np.sort(np.unique(np.column_stack([steps, scale]), axis=0, return_index=True)[1])
    return steps[distinct], scale[distinct].astype(np.float32)


def _offset(centres: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return -0.5 * ((centres.astype(np.float32) * scale[..., None]) ** 2).sum(axis=-1)


def _nearest(inputs: Any, centres: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return int64 [n]: the number of the nearest centre."""
    rows = centres.astype(np.float32)
    sums, offset = rows.sum(axis=1), _offset(centres, scale)
    nearest = np.empty(inputs.shape[0], dtype=np.int64)
    for start in range(0, len(nearest), CHUNK):
        steps, step, least = quantized_inputs(inputs[start : start + CHUNK])
        # Sums of whole numbers, so in any order the same; then as ``kernels.int8`` has it.
        values = (steps @ rows.T * step + least * sums) * scale + offset
        nearest[start : start + CHUNK] = values.argmax(axis=1)
    return nearest
