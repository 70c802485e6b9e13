"""Network under a Node Activator: a chain of dense layers with ReLU between them, as NumPy arrays; int8 weights."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from slotool.errors import InputError


@dataclass(frozen=True)
class DenseLayer:
    """``weights``: float32 [units, inputs], one contiguous row per node; ``bias``: float32 [units]."""

    name: str
    weights: np.ndarray
    bias: np.ndarray

    @property
    def inputs(self) -> int:
        return int(self.weights.shape[1])

    @property
    def units(self) -> int:
        return len(self.bias)

    def check(self) -> None:
        """Raise ``InputError`` where weights and bias are not of one layer; compiled code goes by their shapes."""
        rows = self.weights.ndim == 2 and self.bias.shape == self.weights.shape[:1] and self.weights.size
        if not rows or self.weights.dtype != np.float32 or self.bias.dtype != np.float32:
            raise InputError(
                f"operator {self.name!r}: weights {self.weights.dtype} {self.weights.shape} and bias {self.bias.dtype} "
                f"{self.bias.shape} are not those of a layer, float32 [nodes, inputs] and [nodes]"
            )

    def pre_activations(self, inputs: Any, nodes: np.ndarray | None = None) -> np.ndarray:
        """Return w·x + b of all or these ``nodes``, float32 [batch, nodes], from [batch, inputs], an array or CSR."""
        if nodes is None:
            weights = self.weights.T if isinstance(inputs, np.ndarray) else self._columns
            return inputs @ weights + self.bias
        return inputs @ self.weights[nodes].T + self.bias[nodes]

    def activated(self, values: np.ndarray) -> np.ndarray:
        """Return pre-activations after ReLU: float32 [batch, units]; 0 for −inf."""
        return np.maximum(values, 0.0)

    @cached_property
    def _columns(self) -> np.ndarray:
        """Weights by columns, float32 [inputs, units], contiguous: sparse products copy other layouts at each call."""
        return np.ascontiguousarray(self.weights.T)


@dataclass(frozen=True)
class MLP:
    """Layers of which all but the last are followed by ReLU; the last gives the logits.

    ``input_shape`` is that of one example, flattened before the first layer. ``partial``: the end of such a chain.
    Raises ``InputError`` when there is no ReLU layer, shapes do not chain, or a weight is not a finite number.
    """

    input_shape: tuple[int, ...]
    layers: tuple[DenseLayer, ...]
    partial: bool = False

    def __post_init__(self) -> None:
        if len(self.layers) < 2 and not self.partial:
            raise InputError("the network has no ReLU layer, so there is no node whose work can be saved")
        if not all(isinstance(size, Integral) and size > 0 for size in self.input_shape):
            raise InputError(f"inputs of shape {self.input_shape}: every size must be a whole number above 0")
        width = math.prod(map(int, self.input_shape))
        for layer in self.layers:
            layer.check()
            if layer.inputs != width:
                raise InputError(
                    f"operator {layer.name!r}: weights {layer.weights.shape} and bias {layer.bias.shape} "
                    f"do not fit the {width} values that come in"
                )
            if not (np.isfinite(layer.weights).all() and np.isfinite(layer.bias).all()):
                raise InputError(f"operator {layer.name!r}: a weight is NaN or infinite")
            width = layer.units

    @property
    def classes(self) -> int:
        return self.layers[-1].units

    @cached_property
    def widest(self) -> int:
        """Largest number of outputs per example of any layer."""
        return max(layer.units for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights and biases."""
        return sum(layer.weights.nbytes + layer.bias.nbytes for layer in self.layers)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over shapes and values of all weights: what tables are tied to."""
        digest = hashlib.sha256()
        for layer in self.layers:
            digest.update(f"{layer.weights.shape}".encode())
            digest.update(layer.weights.tobytes())
            digest.update(layer.bias.tobytes())
        return digest.hexdigest()

    def logits(self, x: Any) -> np.ndarray:
        """Return the whole network: float32 [batch, classes] from [batch, inputs], an array or CSR."""
        for layer in self.layers[:-1]:
            x = layer.activated(layer.pre_activations(x))
        return self.layers[-1].pre_activations(x)


# Steps of a quantized input; a spread of less than the least is none.
INPUT_STEPS, MIN_SPREAD = np.float32(255), np.float32(1e-30)


@dataclass(frozen=True)
class Int8Weights:
    """``rows``: int8 [units, inputs], ``scale``: float32 [units]; a weight is row · scale."""

    rows: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, layer: DenseLayer) -> Int8Weights:
        """Return the nearest steps of each row's largest weight ÷ 127."""
        scale = np.abs(layer.weights).max(axis=1) / np.float32(127.0)
        rows = np.empty(layer.weights.shape, dtype=np.int8)
        for start in range(0, layer.units, 8_192):
            part = slice(start, start + 8_192)
            rows[part] = np.rint(layer.weights[part] / np.where(scale[part] > 0, scale[part], 1.0)[:, None])
        return cls(rows, scale)

    @property
    def sums(self) -> np.ndarray:
        """Row sums, float32 [units], the factor of the zero point of a query with negative values."""
        return self.rows.sum(axis=1, dtype=np.float32)


def quantized_inputs(x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs as ``steps`` · ``step`` + ``least``: float32 [n, inputs] of integers 0 to 255, and twice [n, 1].

    ``x``: float32 [n, inputs], an array or CSR. ``least`` is 0 without negative values. The numbers equal those of
    ``kernels.int8.quantize_query``.
    """
    x = x if isinstance(x, np.ndarray) else x.toarray()
    least, most = (extreme(x, axis=1, keepdims=True, initial=np.float32(0)) for extreme in (np.min, np.max))
    spread = most - least
    enough = spread > MIN_SPREAD
    per_step = np.divide(INPUT_STEPS, spread, out=np.zeros_like(spread), where=enough)
    steps = np.floor((x - least) * per_step + np.float32(0.5))
    return steps, np.where(enough, spread / INPUT_STEPS, np.float32(0)), least
