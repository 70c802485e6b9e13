"""Rows of int8 with a scale each: a quarter of the bytes to fetch for a node that is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotool.elastic.activators.mlp import DenseLayer


@dataclass(frozen=True)
class Int8Rows:
    """``rows``: int8 [units, inputs], ``scale``: float32 [units]; a weight is row · scale."""

    rows: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, layer: DenseLayer) -> Int8Rows:
        """The nearest steps of each row's largest weight ÷ 127."""
        scale = np.abs(layer.weights).max(axis=1) / np.float32(127.0)
        rows = np.empty(layer.weights.shape, dtype=np.int8)
        for start in range(0, layer.units, 8_192):
            part = slice(start, start + 8_192)
            rows[part] = np.rint(layer.weights[part] / np.where(scale[part] > 0, scale[part], 1.0)[:, None])
        return cls(rows, scale)

    def layer(self, layer: DenseLayer) -> DenseLayer:
        """``layer`` with its weights as these rows say."""
        return DenseLayer(layer.name, self.rows * self.scale[:, None], layer.bias)
