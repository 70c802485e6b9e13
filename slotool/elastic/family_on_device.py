"""A family whose versions are on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from slotool.elastic.model import ElasticModel
from slotool.elastic.slo_nn.inputs import check_rows, sparse_rows
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import InputError
from slotool.graphs.torch_module import GraphModule
from slotool.tables import OperatingPoint
from slotool.transfers import Link, moved

Check = Callable[[], None] | None


class DeviceFamily(ElasticModel):
    """``family`` answered by ``networks``, a version's by point, whose weights are copied to the device of ``link``.

    Of a family of sparse inputs they are chains of dense layers, else modules.
    """

    def __init__(self, family: ElasticModel, networks: Mapping[OperatingPoint, GraphModule | MLP], link: Link):
        self._link, self.device = link, link.name
        self.name, self.input_shape, self.classes = family.name, family.input_shape, family.classes
        self.points, self.sparse = family.points, family.sparse
        self._networks: dict[OperatingPoint, Callable[[Any, Check], torch.Tensor]] = {
            point: _SparseChain(family.name, network, link) if isinstance(network, MLP) else _Module(network, link)
            for point, network in networks.items()
        }
        self._cancellation_check: Check = None

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        """float32 [n, classes] from float32 [n, *input_shape], or where ``sparse`` from CSR too."""
        self.require(point)
        with torch.inference_mode():
            logits = self._networks[point](x, self._cancellation_check)
        found: np.ndarray = self._link.to_host(logits)[0]
        return found

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        self._cancellation_check = check


class _Module:
    def __init__(self, module: GraphModule, link: Link):
        self._module, self._link = moved(module, link), link

    def __call__(self, x: Any, check: Check) -> torch.Tensor:
        logits: torch.Tensor = self._module(self._link.to_device(x), between=check)
        return logits


class _DeviceLayer:
    """Weights and bias of one layer, float32, held once: by rows, or by columns where inputs are ``sparse``, which need
    but the columns of their features."""

    def __init__(self, layer: DenseLayer, link: Link, *, sparse: bool = False):
        self._link, self.units, self.inputs = link, layer.units, layer.inputs
        self.is_sparse = sparse
        stored = layer.weights.T if sparse else layer.weights
        self._stored, self.bias = (link.to_device(np.ascontiguousarray(array)) for array in (stored, layer.bias))

    @property
    def weights(self) -> torch.Tensor:
        """float32 [units, inputs]; a view."""
        return self._stored.T if self.is_sparse else self._stored

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """w·x + b of every node: float32 [n, units] from [n, inputs]."""
        return torch.addmm(self.bias, x, self.weights.T)

    def product_of_rows(self, rows: Any) -> torch.Tensor:
        """The same of a CSR matrix of the host, whose indices must be below ``inputs``: float32 [n, units]. Of a layer
        that is ``sparse``."""
        starts, end = rows.indptr[:-1].astype(np.int64), int(rows.indptr[-1])
        parts = (rows.indices[:end].astype(np.int64), starts, rows.data[:end].astype(np.float32, copy=False))
        indices, offsets, values = map(self._link.to_device, parts)
        summed = functional.embedding_bag(indices, self._stored, offsets, mode="sum", per_sample_weights=values)
        return summed + self.bias


class _SparseChain:
    """Dense layers with ReLU between them, whose inputs come as CSR matrices or as arrays."""

    def __init__(self, name: str, mlp: MLP, link: Link):
        self._name, self._link = name, link
        self._layers = [_DeviceLayer(layer, link, sparse=not at) for at, layer in enumerate(mlp.layers)]

    def __call__(self, x: Any, check: Check) -> torch.Tensor:
        first, *others = self._layers
        if isinstance(x, np.ndarray):
            values = first.product(self._link.to_device(x.reshape(len(x), first.inputs)))
        else:
            values = first.product_of_rows(self._checked(x))
        for layer in others:
            if check is not None:
                check()
            values = layer.product(values.relu_())
        return values

    def _checked(self, x: Any) -> Any:
        """What is not checked here is an address on the device."""
        rows = sparse_rows(self._name, x, self._layers[0].inputs)
        if rows.shape[1] != self._layers[0].inputs:
            raise InputError(f"{self._name} takes {self._layers[0].inputs} features, not {rows.shape[1]}")
        check_rows(rows)
        return rows
