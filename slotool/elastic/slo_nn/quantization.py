"""int8 weights with a scale each: a quarter of the bytes to fetch for a node that is computed; inputs to match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.mlp import DenseLayer

# Steps of a quantized input; a spread of less than the least is none.
INPUT_STEPS, MIN_SPREAD = np.float32(255), np.float32(1e-30)


@dataclass(frozen=True)
class Int8Weights:
    """``rows``: int8 [units, inputs], ``scale``: float32 [units]; a weight is row · scale."""

    rows: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, layer: DenseLayer) -> Int8Weights:
        """The nearest steps of each row's largest weight ÷ 127."""
        scale = np.abs(layer.weights).max(axis=1) / np.float32(127.0)
        rows = np.empty(layer.weights.shape, dtype=np.int8)
        for start in range(0, layer.units, 8_192):
            part = slice(start, start + 8_192)
            rows[part] = np.rint(layer.weights[part] / np.where(scale[part] > 0, scale[part], 1.0)[:, None])
        return cls(rows, scale)

    @property
    def sums(self) -> np.ndarray:
        """float32 [units]: of each row, what the zero point of a query with negative values is multiplied with."""
        sums: np.ndarray = self.rows.sum(axis=1, dtype=np.float32)
        return sums


def quantized_inputs(x: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs as ``steps`` · ``step`` + ``least``: float32 [n, inputs] whole numbers from 0 to 255, and twice [n, 1].

    ``x``: float32 [n, inputs], an array or CSR. ``least`` is 0 where no value is negative. The very same numbers as
    ``kernels.int8.quantize_query``.
    """
    x = x if isinstance(x, np.ndarray) else x.toarray()
    least, most = (extreme(x, axis=1, keepdims=True, initial=np.float32(0)) for extreme in (np.min, np.max))
    spread = most - least
    enough = spread > MIN_SPREAD
    per_step = np.divide(INPUT_STEPS, spread, out=np.zeros_like(spread), where=enough)
    steps = np.floor((x - least) * per_step + np.float32(0.5))
    return steps, np.where(enough, spread / INPUT_STEPS, np.float32(0)), least
