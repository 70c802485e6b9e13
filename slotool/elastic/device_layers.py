"""Dense layers on a device, computed by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.elastic.activators.mlp import DenseLayer
from slotool.transfers import Link


class DeviceLayer:
    """Weights and bias of one layer, float32, held once: by rows, or by columns where inputs are ``sparse``, which need
    but the columns of their features."""

    def __init__(self, layer: DenseLayer, link: Link, *, sparse: bool = False):
        self._link, self.units, self.inputs = link, layer.units, layer.inputs
        self.is_sparse = sparse
        stored = layer.weights.T if sparse else layer.weights
        self._stored, self.bias = (link.to_device(np.ascontiguousarray(array)) for array in (stored, layer.bias))

    @property
    def weights(self) -> Tensor:
        """float32 [units, inputs]; a view."""
        return self._stored.T if self.is_sparse else self._stored

    @property
    def columns(self) -> Tensor:
        """float32 [inputs, units], contiguous. Of a layer that is ``sparse``."""
        return self._stored

    def product(self, x: Tensor) -> Tensor:
        """w·x + b of every node: float32 [n, units] from [n, inputs]."""
        return torch.addmm(self.bias, x, self.weights.T)

    def product_of_rows(self, rows: Any) -> Tensor:
        """The same of a CSR matrix of the host, whose indices must be below ``inputs``: float32 [n, units]. Of a layer
        that is ``sparse``."""
        starts, end = rows.indptr[:-1].astype(np.int64), int(rows.indptr[-1])
        parts = (rows.indices[:end].astype(np.int64), starts, rows.data[:end].astype(np.float32, copy=False))
        indices, offsets, values = map(self._link.to_device, parts)
        summed = functional.embedding_bag(indices, self._stored, offsets, mode="sum", per_sample_weights=values)
        return summed + self.bias

    def of_nodes(self, x: Tensor, nodes: Tensor) -> Tensor:
        """w·x + b of the same ``nodes``, int64 [k], for all of ``x``: float32 [n, k]."""
        return torch.addmm(self.bias[nodes], x, self.weights[nodes].T)

    def of_own_nodes(self, x: Tensor, nodes: Tensor) -> Tensor:
        """w·x + b of the nodes of each input, int64 [n, k]: float32 [n, k]."""
        return torch.baddbmm(self.bias[nodes][:, :, None], self.weights[nodes], x[:, :, None])[:, :, 0]
