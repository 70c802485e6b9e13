"""Rankers put similar inputs of one layer into the same bucket, at little cost; and the one that ignores its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.errors import InputError

# A list's row number must fit 16 bits.
MAX_LISTS = 2**16 - 1


class Ranker(ABC):
    """Maps the inputs of one layer to one bucket in each of ``tables`` tables of ``buckets`` buckets.

    ``max_tables``: more tables than these bring this kind of ranker nothing, and are not made. ``informed``: whether
    the bucket hangs on the input at all.
    """

    name: ClassVar[str]
    max_tables: ClassVar[int] = MAX_LISTS
    informed: ClassVar[bool] = True
    tables: int
    buckets: int

    @classmethod
    @abstractmethod
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
        """Learn from training examples; same generator state, same ranker.

        ``inputs``: float32 [m, inputs of the layer], an array or CSR, as they come at inference, already thinned by
        the layers before. ``activations``: float [n, units], an array or CSR: what the layer's nodes are ranked by
        when nothing before it was dropped. A table gets at most 2^``bits`` buckets.
        Raises ``InputError`` when the layer cannot carry them.
        """

    @abstractmethod
    def keys(self, layer: DenseLayer, inputs: Any) -> np.ndarray:
        """Return int64 [n, tables]: the bucket of each input, float32 [n, inputs of the layer], an array or CSR."""

    def considered(self, layer: DenseLayer, keys: np.ndarray, activations: Any, rng: np.random.Generator) -> Any:
        """Return the activations [n, units], an array or CSR, that lists are learnt from: here, all.

        ``keys``: int [n, tables], those inputs' buckets. Same generator state, same result.
        """
        return activations

    @property
    def computed_nodes(self) -> np.ndarray:
        """Ascending nodes whose dot products the key needs, reused as their outputs: int64 [h]."""
        return np.empty(0, dtype=np.int64)

    def check(self, layer: DenseLayer) -> None:
        """Raise ``InputError`` if the fitted values do not fit ``layer``; compiled code does not check them."""
        if self.tables < 1 or self.buckets < 1 or self.tables * self.buckets > MAX_LISTS:
            raise InputError(f"{self.tables} tables of {self.buckets:.3g} buckets, of at most {MAX_LISTS:,} in all")

    def tensors(self) -> dict[str, np.ndarray]:
        """Return all that was learnt, as arrays: by default the fields of the dataclass that a ranker is."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray]) -> Self:
        """Inverse of ``tensors``."""
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    @abstractmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        """About what ``tensors`` of a ranker fitted to ``layer`` take."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors().values())


def check_tables(tables: int, bits: int) -> None:
    """Raise ``InputError`` when tables of so many bits are none, or have more buckets than there can be lists."""
    if bits < 1 or tables < 1 or tables * 2**bits > MAX_LISTS:
        raise InputError(f"{tables} tables of {bits} bits: both must be at least 1, and no more than 65,535 lists")


def require_array(what: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    """Raise ``InputError`` for another type or shape, and for numbers that are not finite."""
    if array.dtype != dtype or array.shape != shape:
        raise InputError(f"{what}: {array.dtype} {array.shape} where {np.dtype(dtype)} {shape} belongs")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{what}: NaN or infinite")


def require_indices(what: str, array: np.ndarray, below: int) -> None:
    """Raise ``InputError`` for anything but whole numbers from 0 to ``below`` − 1."""
    if array.dtype.kind not in "iu":
        raise InputError(f"{what}: {array.dtype} where whole numbers belong")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < below:
        raise InputError(f"{what}: {array.min()} to {array.max()}, but only 0 to {below - 1} are there")


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


@dataclass(eq=False)
class RandomOrder(Ranker):
    """Ranker with one bucket for all inputs, whose list is the layer's nodes in an order drawn once."""

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
        """Return random scores for the first input only, ignoring the activations."""
        order = rng.permutation(layer.units) + 1.0
        first = (np.zeros(layer.units, dtype=np.int64), np.arange(layer.units))
        return csr_matrix((order, first), shape=(len(keys), layer.units))

    @classmethod
    def bytes_needed(cls, layer: DenseLayer, tables: int, bits: int) -> int:
        return 0
