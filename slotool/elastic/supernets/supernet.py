"""A supernet as an elastic model: its points are subnets, and answering at one costs its steps and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slotool import devices, strict_json
from slotool.artifacts import Artifact, create_artifact
from slotool.elastic.model import ElasticModel
from slotool.elastic.supernets.layers import build
from slotool.elastic.supernets.plan import ExecutionPlan, Planner, SubnetNorm, calibrate, signatures
from slotool.elastic.supernets.space import Space, Subnet
from slotool.errors import ArtifactError, GraphError, InputError
from slotool.graphs.torch_module import GraphModule
from slotool.tables import OperatingPoint
from slotool.transfers import Link, moved

KIND = "supernet"
SPACE_FILE = "space.json"
SUBNETS_FILE = "subnets.json"
WEIGHTS_FILE = "weights.safetensors"
STATISTICS_FILE = "statistics.safetensors"
# Examples over which batch statistics are measured, at most.
CALIBRATION_EXAMPLES = 2_000


class Supernet(ElasticModel):
    """Network of which each operating point uses a part.

    ``subnets``: those that can be actuated, one per point, fewest FLOPs first. ``scores``: per point e.g.
    validation_accuracy, as ``Version.scores``. ``device``: of ``module``. Raises ``InputError`` for a subnet outside
    the space or without batch statistics.
    """

    def __init__(
        self,
        name: str,
        space: Space,
        module: GraphModule,
        norm: SubnetNorm,
        subnets: Iterable[Subnet],
        scores: Mapping[Subnet, Mapping[str, float]] | None = None,
        *,
        device: str = devices.CPU,
        precision: str = devices.FLOAT32,
    ):
        self.name, self.space, self.module, self.norm = name, space, module.eval().requires_grad_(False), norm
        self.input_shape = space.graph.input_shape
        (self.classes,) = space.graph.output_shape
        self.scores = dict(scores or {})
        self._cancellation_check: Callable[[], None] | None = None
        self._link = Link(device, precision)
        self.device, self.precision = self._link.name, precision
        self._planner = Planner(self.module, norm)
        self._actuate(subnets)

    def _actuate(self, subnets: Iterable[Subnet]) -> None:
        chosen = sorted({self.space.require(subnet) for subnet in subnets}, key=lambda s: (self.space.flops(s), s))
        if not chosen:
            raise InputError(f"{self.name}: a supernet needs at least one subnet to answer with")
        self.subnets = {self.space.point(subnet): subnet for subnet in chosen}
        self.points = tuple(self.subnets)
        self._plans: dict[OperatingPoint, ExecutionPlan] = {
            point: self._planner.plan(self.space.narrowed(subnet)) for point, subnet in self.subnets.items()
        }

    def forward(self, x: np.ndarray, point: OperatingPoint) -> np.ndarray:
        plan = self._plans.get(point)
        if plan is None:
            self.require(point)
            raise AssertionError("a point without a plan")
        check = self._cancellation_check
        if check is None or not self._link.is_cuda:
            return self._link.run(plan if check is None else partial(plan, check=check), x)[0]
        # A graph is launched as a whole.
        check()
        return self._link.run(plan, x)[0]

    def on(self, device: str, precision: str = devices.FLOAT32) -> ElasticModel:
        """Return the same subnets with the shared weights there once: to go from one to another copies nothing."""
        link = Link(device, precision)
        if (link.name, precision) == (self.device, self.precision):
            return self
        module, subnets = moved(self.module, link), self.subnets.values()
        placed = Supernet(
            self.name, self.space, module, self.norm, subnets, self.scores, device=device, precision=precision
        )
        placed.data_options = self.data_options
        return placed

    def set_cancellation_check(self, check: Callable[[], None]) -> None:
        self._cancellation_check = check

    def require(self, point: OperatingPoint) -> None:
        """Check a point as ``ElasticModel.require``; name another choice of points that would have it."""
        if point not in self.subnets:
            some = ", ".join(str(p) for p in self.points[:4]) + (", …" if len(self.points) > 4 else "")
            raise InputError(f"{self.name} has no operating point {point}; it has {len(self.points)}: {some}")

    def extract(self, subnet: Subnet) -> GraphModule:
        """Return the subnet as an ordinary network: the first part of each weight copied, its own batch statistics."""
        graph = self.space.narrowed(subnet)
        signature_of = signatures(graph)
        alone = build(graph, {name: e for name, e in self.space.epsilon.items() if name in signature_of})
        for operator in graph.operators[1:]:
            layer, whole = alone.of[operator.name], dict(self.module.of[operator.name].named_parameters())
            with torch.no_grad():
                for name, parameter in layer.named_parameters():
                    parameter.copy_(whole[name][tuple(map(slice, parameter.shape))])
            if operator.op == "BatchNormalization":
                inner: Any = getattr(layer, "layer", layer)
                mean, variance = self.norm.of(operator.name, signature_of[operator.name])
                inner.running_mean.copy_(mean)
                inner.running_var.copy_(variance)
        return alone.eval()

    @property
    def weight_bytes(self) -> int:
        """Bytes of the shared weights, without batch statistics."""
        return sum(p.nbytes for p in self.module.parameters())

    def save(
        self,
        path: str | Path,
        *,
        config: Mapping[str, Any],
        seed: int,
        parents: Sequence[Artifact] = (),
        force: bool = False,
    ) -> None:
        """Write the artifact, of kind ``supernet``."""
        rows, index = self.norm.state()
        with create_artifact(path, KIND, config=config, seed=seed, parents=parents, force=force) as bundle:
            bundle.write_json(SPACE_FILE, self.space.document())
            bundle.write_json(
                SUBNETS_FILE,
                {"subnets": [self._entry(point) for point in self.points], "statistics": index},
            )
            parameters = {name: p.detach().cpu().numpy() for name, p in self.module.named_parameters()}
            bundle.write_tensors(WEIGHTS_FILE, parameters)
            bundle.write_tensors(STATISTICS_FILE, rows)

    def _entry(self, point: OperatingPoint) -> dict[str, Any]:
        subnet = self.subnets[point]
        graph = self.space.narrowed(subnet)
        cost = {"parameters": graph.weights, "flops": graph.flops}
        return {"point": point.key, "values": list(subnet), **cost, "scores": dict(self.scores.get(subnet, {}))}

    @classmethod
    def load(cls, artifact: Artifact) -> Supernet:
        """Read it back. Raises ``ArtifactError`` when weights, statistics and space do not belong together."""
        stored = strict_json.convert(artifact.json(SUBNETS_FILE), _Subnets)
        try:
            space = Space.from_document(artifact.json(SPACE_FILE))
            weights = artifact.weights(WEIGHTS_FILE)
            # Before a network of the described size takes memory.
            if space.graph.weights > 2 * sum(array.size for array in weights.values()):
                raise InputError("the network described has more weights than there are")
            module = build(space.graph, space.epsilon)
            _assign(module, weights)
            norm = SubnetNorm.from_state(artifact.weights(STATISTICS_FILE), stored.statistics)
            scores = {entry.values: entry.scores for entry in stored.subnets}
            return cls(artifact.name, space, module, norm, list(scores), scores)
        except ArtifactError:
            raise
        except (GraphError, InputError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{artifact.path}: its weights, statistics and subnets do not belong together ({error})"
            ) from error


@dataclass(frozen=True)
class _Entry:
    values: tuple[int | float, ...]
    scores: dict[str, float]


@dataclass(frozen=True)
class _Subnets:
    """Content of ``SUBNETS_FILE``."""

    subnets: list[_Entry]
    statistics: dict[str, list[tuple[str, int]]]


def measure(space: Space, module: GraphModule, norm: SubnetNorm, subnets: Iterable[Subnet], x: np.ndarray) -> None:
    """Measure the batch statistics that ``subnets`` lack over ``x``, float32 [n, *input_shape], on the module's device.

    Raises ``InputError`` when ``x`` has another shape than the network's inputs.
    """
    if tuple(x.shape[1:]) != space.graph.input_shape or not len(x):
        raise InputError(f"batch statistics need inputs {space.graph.input_shape}, not {tuple(x.shape[1:])}")
    device = next(module.parameters()).device
    batch = torch.from_numpy(x[:CALIBRATION_EXAMPLES]).to(device)
    for subnet in subnets:
        calibrate(space.narrowed(subnet), module, norm, batch)


def _assign(module: GraphModule, tensors: Mapping[str, np.ndarray]) -> None:
    parameters = dict(module.named_parameters())
    if set(parameters) != set(tensors):
        raise InputError("the names of its weights differ")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if tuple(parameter.shape) != tensors[name].shape:
                raise InputError(f"{name} has the shape {list(tensors[name].shape)}, not {list(parameter.shape)}")
            parameter.copy_(torch.from_numpy(tensors[name]))
