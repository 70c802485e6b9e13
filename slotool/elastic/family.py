"""A family: separately trained networks of growing cost, a point each; a lone network is a family of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from slotool import devices, strict_json
from slotool.artifacts import Artifact, create_artifact
from slotool.elastic.model import ElasticModel
from slotool.elastic.slo_nn import importers
from slotool.elastic.slo_nn.inputs import check_rows, sparse_rows
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import ArtifactError, GraphError, InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.tables import FULL, OperatingPoint
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
        """Return the product of a CSR matrix on the host by a ``sparse`` layer, float32 [n, units].

        Its column indices must be below ``inputs``.
        """
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
        """Return sparse rows whose indices are checked: on the device an index is an address."""
        rows = sparse_rows(self._name, x, self._layers[0].inputs)
        if rows.shape[1] != self._layers[0].inputs:
            raise InputError(f"{self._name} takes {self._layers[0].inputs} features, not {rows.shape[1]}")
        check_rows(rows)
        return rows


VERSIONS_FILE = "versions.json"
WEIGHTS_FILE = "weights.safetensors"
# Of a call of no more floating-point operations torch takes most of the time to set out: up to four times what NumPy
# takes for all of it.
SMALL_FLOPS = 2_000_000


@dataclass(frozen=True)
class Version:
    """One trained network. ``scores``: e.g. validation_accuracy and test_accuracy, each held out from training.

    ``sparse``: its inputs come as CSR matrices.
    """

    name: str
    module: GraphModule
    scores: Mapping[str, float] = field(default_factory=dict)
    sparse: bool = False

    @classmethod
    def of_mlp(cls, name: str, mlp: MLP, *, sparse: bool = False) -> Version:
        """A version whose module is ``mlp``."""
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

    def forward(self, x: np.ndarray, check: Callable[[], None] | None = None) -> np.ndarray:
        """Logits of ``x``, float32 [n, *input_shape]. ``check``: called now and then; what it raises goes through."""
        if len(x) * self._flops <= SMALL_FLOPS and self._dense is not None:
            if check is not None:
                check()
            return self._dense.logits(x.reshape(len(x), self._dense.layers[0].inputs))
        with torch.inference_mode():
            logits: np.ndarray = self.module(torch.from_numpy(x), between=check).numpy()
            return logits

    @cached_property
    def _flops(self) -> int:
        return self.graph.flops

    @cached_property
    def _dense(self) -> MLP | None:
        try:
            return self.mlp
        except InputError:
            return None


class Family(ElasticModel):
    """Versions of one classifier, cheapest (fewest FLOPs) first.

    Points are ``version=<name>``; a family of one has the single point ``full``.
    Raises ``InputError`` when the versions do not share input and output shapes.
    """

    def __init__(self, name: str, versions: Sequence[Version]):
        if not versions:
            raise InputError(f"{name}: a family needs at least one version")
        self.name = name
        self.versions = tuple(sorted(versions, key=lambda version: version.graph.flops))
        shapes = {(version.graph.input_shape, version.graph.output_shape) for version in self.versions}
        if len(shapes) > 1 or len(self.versions[0].graph.output_shape) != 1:
            raise InputError(f"{name}: versions must share one input shape and one list of classes, not {shapes}")
        self.input_shape = self.versions[0].graph.input_shape
        self.classes = self.versions[0].graph.output_shape[0]
        self.sparse = self.versions[0].sparse
        alone = len(self.versions) == 1
        self._at = {FULL if alone else OperatingPoint.of(version=v.name): v for v in self.versions}
        for version in self.versions:
            version.module.eval()
        self.points = tuple(self._at)
        self._cancellation_check: Callable[[], None] | None = None

    def forward(self, x: Any, point: OperatingPoint) -> np.ndarray:
        """As ``ElasticModel.forward``; ``x`` may be a CSR matrix too when ``sparse``, and is never made dense."""
        version = self._at.get(point)
        if version is None:
            self.require(point)  # says what there is
        assert version is not None
        if self.sparse and not isinstance(x, np.ndarray):
            return version.mlp.logits(x)
        return version.forward(x, self._cancellation_check)

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        self._cancellation_check = check

    def on(self, device: str) -> ElasticModel:
        if devices.required(device) == self.device:
            return self
        networks = {point: version.mlp if self.sparse else version.module for point, version in self._at.items()}
        return DeviceFamily(self, networks, Link(device))

    def save(self, path: str | Path, *, config: Mapping[str, Any], seed: int, force: bool = False) -> None:
        """Write the artifact: kind ``network`` for one version, ``family`` for several."""
        kind = "network" if len(self.versions) == 1 else "family"
        with create_artifact(path, kind, config=config, seed=seed, force=force) as bundle:
            bundle.write_json(VERSIONS_FILE, [_version_document(version) for version in self.versions])
            bundle.write_tensors(
                WEIGHTS_FILE,
                {
                    f"{version.name}/{name}": tensor.numpy()
                    for version in self.versions
                    for name, tensor in version.module.state_dict().items()
                },
            )

    @classmethod
    def load(cls, artifact: Artifact) -> Family:
        """Read it back. Raises ``ArtifactError`` when weights and graphs do not belong together."""
        tensors = artifact.weights(WEIGHTS_FILE)
        entries = strict_json.convert(artifact.json(VERSIONS_FILE), list[_Entry])
        return cls(artifact.name, [_load_version(artifact, entry, tensors) for entry in entries])


def _version_document(version: Version) -> dict[str, Any]:
    graph = version.graph
    cost = {"parameters": graph.weights, "flops": graph.flops}
    inputs = {"sparse": True} if version.sparse else {}
    return {"name": version.name, **cost, **inputs, "scores": dict(version.scores), "graph": graph.document()}


@dataclass(frozen=True)
class _Entry:
    """What ``VERSIONS_FILE`` says of a version."""

    name: str
    graph: dict[str, Any]
    scores: dict[str, float]
    sparse: bool = False


def _load_version(artifact: Artifact, entry: _Entry, tensors: Mapping[str, np.ndarray]) -> Version:
    prefix = f"{entry.name}/"
    state = {name.removeprefix(prefix): torch.from_numpy(t) for name, t in tensors.items() if name.startswith(prefix)}
    try:
        module = GraphModule(OperatorGraph.from_document(entry.graph), device="meta")
        module.load_state_dict(state, strict=True, assign=True)
    except (GraphError, RuntimeError) as error:
        raise ArtifactError(f"{artifact.path}: weights of {entry.name} do not fit its graph") from error
    return Version(entry.name, module, entry.scores, entry.sparse)
