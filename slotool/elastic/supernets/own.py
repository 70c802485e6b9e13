"""Make a supernet of a network that somebody brings: wrap it, train it, and compare its subnets before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from slotool.data import Dataset
from slotool.elastic.supernets.importing import ImportedNetwork, import_torch
from slotool.elastic.supernets.layers import build
from slotool.elastic.supernets.search import chosen, score
from slotool.elastic.supernets.space import Space, Subnet
from slotool.elastic.supernets.statistics import SubnetNorm, signatures
from slotool.elastic.supernets.supernet import Supernet
from slotool.elastic.supernets.training import Training, train
from slotool.elastic.supernets.wrapping import wrap
from slotool.errors import GraphError, InputError
from slotool.graphs import Effect, GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule


@dataclass(frozen=True)
class OwnNetwork:
    """A network to make a supernet of. ``imported``: its weights, None where it starts at random."""

    graph: OperatorGraph
    imported: ImportedNetwork | None = None

    @classmethod
    def of_module(cls, module: nn.Module, data: Dataset) -> OwnNetwork:
        """``module`` with its weights, for the inputs and classes of ``data``. Raises ``InputError`` naming the layer
        that cannot be part of a supernet."""
        _require_classes(data)
        imported = import_torch(module, data.input_shape, data.classes)
        return cls(imported.graph, imported)

    @classmethod
    def of_graph(cls, graph: OperatorGraph, data: Dataset) -> OwnNetwork:
        """``graph`` with random weights; a softmax at its end is left out, and a dense last layer gets as many units as
        ``data`` has classes. Raises ``InputError`` when it does not fit ``data``, or has an operator that cannot be
        built."""
        _require_classes(data)
        graph = _answering(graph, data.classes)
        if graph.input_shape != data.input_shape or graph.output_shape != (data.classes,):
            raise InputError(
                f"the graph takes inputs {graph.input_shape} and gives {graph.output_shape}, and {data.name} has "
                f"{data.input_shape} and {data.classes} classes"
            )
        try:
            build(graph, {})
        except GraphError as error:
            raise InputError(f"the graph cannot become a supernet: {error}") from error
        return cls(graph)

    def wrapped(self, *, drop: int, shares: Mapping[str, Sequence[float]]) -> Space:
        """Its space of subnets; see ``wrap``."""
        epsilon = self.imported.epsilon if self.imported else {}
        return wrap(self.graph, drop=drop, epsilon=epsilon, **shares)

    def trained(
        self,
        space: Space,
        data: Dataset,
        training: Training | None,
        *,
        checkpoint: Path | None = None,
        device: str = "cpu",
        progress: Callable[[], None] = lambda: None,
    ) -> TrainedSpace:
        """``space`` trained from the network's own weights. ``training`` None: these stay as they came, and the whole
        network answers as it did. Otherwise as ``training.train``."""
        if training is None:
            if self.imported is None or self.imported.fresh:
                raise InputError("a network with layers that start at random is trained for at least 1 epoch")
            return TrainedSpace(self.imported.module(), partial(self.statistics, space))
        start = self.imported.module() if self.imported else None
        module = train(space, data, training, start=start, checkpoint=checkpoint, device=device, progress=progress)
        return TrainedSpace(module, SubnetNorm)

    @property
    def has_attention(self) -> bool:
        return any(operator.op == "MultiHeadAttention" for operator in self.graph.operators)

    @property
    def details(self) -> dict[str, Any]:
        """How many weights were taken over, and which layer starts anew."""
        found = self.imported
        return {"taken_weights": found.taken if found else None, "fresh_layer": (found and found.fresh) or None}

    @property
    def remarks(self) -> list[str]:
        """``details`` as sentences."""
        if self.imported is None:
            return []
        fresh = f"; layer {self.imported.fresh!r} starts anew" if self.imported.fresh else ", all of them"
        return [f"weights taken over: {self.imported.taken:,}{fresh}"]

    def statistics(self, space: Space) -> SubnetNorm:
        """The batch statistics of the whole network as it came."""
        norm, signature_of = SubnetNorm(), signatures(space.narrowed(space.largest))
        for name, (mean, variance) in (self.imported.statistics if self.imported else {}).items():
            norm.add(name, signature_of[name], mean, variance)
        return norm

    def untrained(self, name: str, space: Space, subnets: Sequence[Subnet]) -> Supernet:
        """The network as it came, as a supernet that offers ``subnets``, whose batch statistics must be known."""
        assert self.imported is not None
        return Supernet(name, space, self.imported.module(), self.statistics(space), subnets)


@dataclass(frozen=True)
class TrainedSpace:
    """``module``: the weights; ``statistics``: makes the batch statistics that are known beforehand."""

    module: GraphModule
    statistics: Callable[[], SubnetNorm]


@dataclass(frozen=True)
class MadeSupernet:
    """``before``: test accuracy of each of its subnets with the weights as they came, by subnet; empty where they
    started at random."""

    model: Supernet
    before: Mapping[Subnet, float]


def make(
    name: str,
    network: OwnNetwork,
    space: Space,
    trained: TrainedSpace,
    data: Dataset,
    points: int,
    *,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> MadeSupernet:
    """Choose about ``points`` subnets of the Pareto front of FLOPs and accuracy; ``progress`` is called per subnet
    scored."""
    model = chosen(
        name, space, trained.module, data, points, seed=seed, progress=progress, statistics=trained.statistics
    )
    imported = network.imported
    if imported is None or imported.fresh:
        return MadeSupernet(model, {})
    subnets, x = model.subnets.values(), data.train.x
    known = partial(network.statistics, space)
    return MadeSupernet(model, score(space, imported.module(), x, data.test, subnets, progress, known))


def _require_classes(data: Dataset) -> None:
    if data.target != "class":
        raise InputError(f"{data.name} is labelled by {data.target}; a supernet is trained on one class per example")


def _answering(graph: OperatorGraph, classes: int) -> OperatorGraph:
    """``graph`` without a softmax at its end, whose last dense layer gives so many classes."""
    operators = list(graph.operators)
    while operators[-1].op == "Softmax" and operators[-1].inputs == (operators[-2].name,):
        operators.pop()
    builder = GraphBuilder(graph.kind, graph.name)
    for operator in operators:
        attributes = dict(operator.attributes)
        if operator is operators[-1] and operator.op == "Dense":
            attributes["units"] = classes
            if attributes.get("activation") == "softmax":
                del attributes["activation"]
        stated = None if operator.known else Effect(operator.shape, operator.weights, operator.flops)
        builder.append(operator.name, operator.op, operator.inputs, attributes, stated)
    return builder.graph()
