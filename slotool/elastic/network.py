"""Networks of slotool's own: models whose operators it runs itself, with PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from slotool import devices
from slotool.elastic.model import INPUT, LOGITS
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.inputs import check_rows, sparse_rows
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.models.model import Model
from slotool.models.signature import FREE, Signature, TensorSpec
from slotool.tables import FULL, OperatingPoint
from slotool.transfers import Link, moved

Check = Callable[[], None] | None
# Below so many floating-point operations a call is mostly torch's overhead: up to four times what NumPy
# takes for all of it.
SMALL_FLOPS = 2_000_000


@dataclass(eq=False)
class Network(Model):
    """Trained network: float32 ``input`` to ``logits``, scores of classes.

    ``scores``: e.g. validation_accuracy and test_accuracy, each held out from training. ``sparse``: it accepts CSR
    matrices too. ``link``: to its device; ``chain``: its layers there, for sparse inputs.
    """

    name: str
    module: GraphModule
    scores: Mapping[str, float] = field(default_factory=dict)
    sparse: bool = False
    link: Link | None = None
    chain: SparseChain | None = None

    checks_inputs = True

    def __post_init__(self) -> None:
        self.module.eval()
        if self.link is not None:
            self.device, self.precision = self.link.name, self.link.precision
        self._check: Check = None
        inputs = TensorSpec(INPUT, "FP32", (FREE, *self.graph.input_shape))
        self.signature = Signature((inputs,), (TensorSpec(LOGITS, "FP32", (FREE, *self.graph.output_shape)),))

    @classmethod
    def of_mlp(cls, name: str, mlp: MLP, *, sparse: bool = False) -> Network:
        """Return a network whose module is ``mlp``."""
        builder = GraphBuilder("mlp")
        last = builder.add("InputLayer", shape=list(mlp.input_shape))
        if len(mlp.input_shape) > 1:
            last = builder.add("Flatten", last)
        arrays: dict[str, np.ndarray] = {}
        for at, layer in enumerate(mlp.layers):
            activation: dict[str, Any] = {"activation": "relu"} if at < len(mlp.layers) - 1 else {}
            last = builder.add("Dense", last, units=layer.units, name=f"dense_{at + 1}", **activation)
            arrays |= {f"{last}.weight": layer.weights, f"{last}.bias": layer.bias}
        module = GraphModule(builder.graph(), device="meta")
        state = {name: torch.from_numpy(arrays[name.removeprefix("layers.")]) for name in module.state_dict()}
        module.load_state_dict(state, strict=True, assign=True)
        return cls(name, module.eval().requires_grad_(False), sparse=sparse)

    @property
    def graph(self) -> OperatorGraph:
        return self.module.graph

    @cached_property
    def mlp(self) -> MLP:
        """The network as NumPy layers. Raises ``InputError`` when it is no chain of dense layers with ReLU."""
        state = {name: tensor.numpy() for name, tensor in self.module.state_dict().items()}
        return importers.from_graph(self.graph, state)

    def run(self, inputs: Mapping[str, np.ndarray], point: OperatingPoint = FULL) -> dict[str, np.ndarray]:
        return {LOGITS: self.forward(inputs[INPUT])}

    def forward(self, x: Any) -> np.ndarray:
        """Return logits, float32 [n, classes], of ``x``: float32 [n, *input_shape], or CSR where ``sparse``."""
        if self.link is not None:
            return self._forward_on(self.link, x)
        if self.sparse and not isinstance(x, np.ndarray):
            return self.mlp.logits(x)
        if len(x) * self._flops <= SMALL_FLOPS and self._dense is not None:
            if self._check is not None:
                self._check()
            return self._dense.logits(x.reshape(len(x), self._dense.layers[0].inputs))
        with torch.inference_mode():
            return self.module(torch.from_numpy(x), between=self._check).numpy()

    def _forward_on(self, link: Link, x: Any) -> np.ndarray:
        if self.chain is not None:
            with torch.inference_mode():
                return link.to_host(self.chain(x, self._check))[0]
        if self._check is not None:
            self._check()
        return link.run(self.module, x)[0]

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        # Looking for a zero among the bytes takes a quarter of the time of ``all``.
        if b"\0" in np.isfinite(inputs[INPUT]).tobytes():
            raise InputError(f"input {INPUT}: it holds NaN or infinity")

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        """Set the check, as of ``ElasticModel``."""
        self._check = check

    def on(self, device: str, precision: str = devices.FLOAT32) -> Network:
        """Return the network with its weights copied to ``device``."""
        if (devices.required(device), precision) == (self.device, self.precision):
            return self
        link = Link(device, precision)
        if self.sparse and link.dtype != torch.float32:
            raise InputError(f"{self.name} takes sparse inputs, which are computed in float32, not in {precision}")
        if self.sparse:
            return replace(self, link=link, chain=SparseChain(self.name, self.mlp, link))
        return replace(self, module=moved(self.module, link), link=link)

    @cached_property
    def _flops(self) -> int:
        return self.graph.flops

    @cached_property
    def _dense(self) -> MLP | None:
        try:
            return self.mlp
        except InputError:
            return None


class SparseChain:
    """Dense layers with ReLU between them on a device, whose inputs come as CSR matrices or as arrays.

    The first layer is held by columns: a sparse input needs but the columns of its features.
    """

    def __init__(self, name: str, mlp: MLP, link: Link):
        self._name, self._link, self._inputs = name, link, mlp.layers[0].inputs
        first, *others = mlp.layers
        self._columns, self._bias = link.to_device(np.ascontiguousarray(first.weights.T)), link.to_device(first.bias)
        self._others = [
            tuple(link.to_device(np.ascontiguousarray(array)) for array in (layer.weights, layer.bias))
            for layer in others
        ]

    def __call__(self, x: Any, check: Check) -> torch.Tensor:
        if isinstance(x, np.ndarray):
            rows = self._link.to_device(x.reshape(len(x), self._inputs))
            return self._rest(torch.addmm(self._bias, rows, self._columns), check)
        rows = self._checked(x)
        starts, end = rows.indptr[:-1].astype(np.int64), int(rows.indptr[-1])
        parts = (rows.indices[:end].astype(np.int64), starts, rows.data[:end].astype(np.float32, copy=False))
        features, offsets, values = map(self._link.to_device, parts)
        return self.of_features(features, offsets, values, check)

    def of_features(
        self, features: torch.Tensor, starts: torch.Tensor, values: torch.Tensor, check: Check = None
    ) -> torch.Tensor:
        """Return logits, float32 [n, classes], of sparse inputs.

        ``features``: int64 [entries], below the number of inputs, with ``values`` float32; ``starts``: int64 [n], begin
        of each input.
        """
        summed = functional.embedding_bag(features, self._columns, starts, mode="sum", per_sample_weights=values)
        return self._rest(summed + self._bias, check)

    def _rest(self, values: torch.Tensor, check: Check) -> torch.Tensor:
        for weights, bias in self._others:
            if check is not None:
                check()
            values = functional.linear(values.relu_(), weights, bias)
        return values

    def _checked(self, x: Any) -> Any:
        """Return sparse rows whose indices are checked: on the device an index is an address."""
        rows = sparse_rows(self._name, x, self._inputs)
        check_rows(rows)
        return rows
