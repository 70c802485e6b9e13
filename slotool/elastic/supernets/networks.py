"""Networks that supernets are made of: a user's own, with its weights, and those of ``train supernet``.

The latter are a residual convolutional network and a transformer on patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from slotool.data import Dataset
from slotool.elastic.supernets.importing import ImportedNetwork, import_torch
from slotool.elastic.supernets.layers import EFFECTS, build
from slotool.elastic.supernets.plan import SubnetNorm, signatures
from slotool.elastic.supernets.search import chosen, score
from slotool.elastic.supernets.space import Space, Subnet, wrap
from slotool.elastic.supernets.supernet import Supernet
from slotool.elastic.supernets.training import Training, train
from slotool.errors import GraphError, InputError
from slotool.graphs import Effect, GraphBuilder, OperatorGraph
from slotool.graphs.operators import Shape
from slotool.graphs.torch_module import GraphModule


@dataclass(frozen=True)
class OwnNetwork:
    """A network to make a supernet of. ``imported``: its weights, None where it starts at random."""

    graph: OperatorGraph
    imported: ImportedNetwork | None = None

    @classmethod
    def of_module(cls, module: nn.Module, data: Dataset) -> OwnNetwork:
        """Return ``module`` with its weights, for the inputs and classes of ``data``.

        Raises ``InputError`` naming a layer that cannot be part of a supernet.
        """
        _require_classes(data)
        imported = import_torch(module, data.input_shape, data.classes)
        return cls(imported.graph, imported)

    @classmethod
    def of_graph(cls, graph: OperatorGraph, data: Dataset) -> OwnNetwork:
        """Return ``graph`` with random weights and an output for the classes of ``data``.

        A softmax at its end is left out, and a dense last layer resized. Raises ``InputError`` if it does not fit
        ``data``, or has an operator that cannot be built.
        """
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
        """Return the network's space of subnets; see ``wrap``."""
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
        """Train ``space`` from the network's own weights, as ``training.train``; ``training`` None keeps them."""
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
        """Number of weights taken over, and the layer that starts anew."""
        imported = self.imported
        return {
            "taken_weights": imported.taken if imported else None,
            "fresh_layer": (imported and imported.fresh) or None,
        }

    @property
    def remarks(self) -> list[str]:
        """``details`` as sentences."""
        if self.imported is None:
            return []
        fresh = f"; layer {self.imported.fresh!r} starts anew" if self.imported.fresh else ", all of them"
        return [f"weights taken over: {self.imported.taken:,}{fresh}"]

    def statistics(self, space: Space) -> SubnetNorm:
        """Return the batch statistics of the whole network as it came."""
        norm, signature_of = SubnetNorm(), signatures(space.narrowed(space.largest))
        for name, (mean, variance) in (self.imported.statistics if self.imported else {}).items():
            norm.add(name, signature_of[name], mean, variance)
        return norm


@dataclass(frozen=True)
class TrainedSpace:
    """``module``: the weights; ``statistics``: makes the batch statistics that are known beforehand."""

    module: GraphModule
    statistics: Callable[[], SubnetNorm]


@dataclass(frozen=True)
class MadeSupernet:
    """Result of making a supernet. ``before``: test accuracy of its subnets with the original weights, or empty."""

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
    """Choose about ``points`` subnets of the Pareto front of FLOPs and accuracy; call ``progress`` per subnet."""
    model = chosen(
        name, space, trained.module, data, points, seed=seed, progress=progress, statistics=trained.statistics
    )
    imported = network.imported
    if imported is None or imported.fresh:
        return MadeSupernet(model, {})
    subnets, x = model.subnets.values(), data.train.x
    statistics = partial(network.statistics, space)
    return MadeSupernet(model, score(space, imported.module(), x, data.test, subnets, progress, statistics))


def _require_classes(data: Dataset) -> None:
    if data.target != "class":
        raise InputError(f"{data.name} is labelled by {data.target}; a supernet is trained on one class per example")


def _answering(graph: OperatorGraph, classes: int) -> OperatorGraph:
    """Return ``graph`` without a softmax at its end, whose last dense layer gives so many classes."""
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


def resnet(
    input_shape: Shape,
    classes: int,
    *,
    channels: Sequence[int],
    blocks: Sequence[int],
    ratio: float = 0.25,
    stem: int | None = None,
    stem_kernel: int = 3,
    stem_stride: int = 1,
    pooled: bool = False,
) -> OperatorGraph:
    """Return a residual network of bottleneck blocks (He et al. 2016), as Once-for-all makes elastic (Cai et al. 2020).

    ``channels`` and ``blocks``: of each stage; every stage but the first halves the image. ``ratio``: inner channels
    of a block, as a share of its outer ones. ``stem``: channels of the first convolution, by default those of the
    first stage; ``pooled``: a 3×3 max-pooling of stride 2 follows it.
    """
    builder = GraphBuilder("resnet")
    last = builder.add("InputLayer", shape=list(input_shape), name="input")
    last = _convolution(builder, "stem", last, stem or channels[0], stem_kernel, "relu", stride=stem_stride)
    if pooled:
        last = builder.add("MaxPooling2D", last, kernel=3, stride=2, padding=1, name="stem_pool")
    for stage, (outer, count) in enumerate(zip(channels, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            last = _bottleneck(builder, f"stage{stage}_block{block}", last, outer, max(1, round(ratio * outer)), stride)
    last = builder.add("GlobalAveragePooling2D", last, name="pool")
    builder.add("Dense", last, units=classes, name="classes")
    return builder.graph()


def patch_transformer(
    input_shape: Shape, classes: int, *, patch: int, width: int, layers: int, heads: int, hidden: int
) -> OperatorGraph:
    """Return a pre-norm transformer on image patches (Dosovitskiy et al. 2021) that answers by the mean token.

    ``width``: of a token; ``heads``: per layer, each of width ÷ heads; ``hidden``: units of a layer's ReLU network.
    """
    builder = GraphBuilder("transformer")
    last = builder.add("InputLayer", shape=list(input_shape), name="input")
    last = builder.add("Conv2D", last, filters=width, kernel=patch, stride=patch, name="patches")
    last = _stated(builder, "Tokens", last, "tokens")
    last = _stated(builder, "PositionEmbedding", last, "positions")
    for layer in range(layers):
        name = f"layer{layer}"
        inner = builder.add("LayerNormalization", last, name=f"{name}_attention_norm")
        inner = _stated(builder, "MultiHeadAttention", inner, f"{name}_attention", heads=heads, size=width // heads)
        last = builder.add("Add", [inner, last], name=f"{name}_attended")
        inner = builder.add("LayerNormalization", last, name=f"{name}_hidden_norm")
        inner = builder.add("Dense", inner, units=hidden, activation="relu", name=f"{name}_hidden")
        inner = builder.add("Dense", inner, units=width, name=f"{name}_narrow")
        last = builder.add("Add", [inner, last], name=f"{name}_out")
    last = builder.add("LayerNormalization", last, name="norm")
    last = _stated(builder, "GlobalAveragePooling1D", last, "mean")
    builder.add("Dense", last, units=classes, name="classes")
    return builder.graph()


def resnet_for(data: Dataset) -> OperatorGraph:
    """Return two stages; for images of 16 pixels and more deeper ones, after a stem of a quarter of the height."""
    large = data.image_shape[-1] >= 16
    sizes: dict[str, Any] = {"channels": (32, 64), "blocks": (4, 5) if large else (2, 3), "ratio": 0.5, "stem": 16}
    kernel, stride = (5, 4) if large else (3, 1)
    return resnet(data.input_shape, data.classes, **sizes, stem_kernel=kernel, stem_stride=stride)


def transformer_for(data: Dataset) -> OperatorGraph:
    """Return four layers of four heads on patches of a quarter (from 16 pixels: a seventh) of the image's side."""
    side = data.image_shape[-1]
    patch = max(1, side // 7 if side >= 16 else side // 4)
    return patch_transformer(data.input_shape, data.classes, patch=patch, width=64, layers=4, heads=4, hidden=128)


def _bottleneck(builder: GraphBuilder, name: str, last: str, outer: int, inner: int, stride: int) -> str:
    branch = _convolution(builder, f"{name}_reduce", last, inner, 1, "relu")
    branch = _convolution(builder, f"{name}_spatial", branch, inner, 3, "relu", stride=stride)
    branch = _convolution(builder, f"{name}_expand", branch, outer, 1)
    if stride > 1 or builder.shape(last)[0] != outer:
        last = _convolution(builder, f"{name}_shortcut", last, outer, 1, stride=stride)
    return builder.add("ReLU", builder.add("Add", [branch, last], name=f"{name}_add"), name=f"{name}_out")


def _convolution(
    builder: GraphBuilder,
    name: str,
    last: str,
    filters: int,
    kernel: int,
    activation: str | None = None,
    *,
    stride: int = 1,
) -> str:
    window: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": kernel // 2}
    last = builder.add("Conv2D", last, filters=filters, bias=False, name=f"{name}_conv", **window)
    last = builder.add("BatchNormalization", last, name=f"{name}_norm")
    return last if activation is None else builder.add("ReLU", last, name=f"{name}_relu")


def _stated(builder: GraphBuilder, op: str, last: str, name: str, **attributes: Any) -> str:
    return builder.add(op, last, name=name, stated=EFFECTS[op](attributes, [builder.shape(last)]), **attributes)
