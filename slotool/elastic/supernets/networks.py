"""The networks that ``train supernet`` makes elastic: a residual convolutional one, and a transformer on patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotool.data import Dataset
from slotool.elastic.supernets.layers import EFFECTS
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Shape


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
    """A residual network of bottleneck blocks (He et al. 2016), as Once-for-all makes elastic (Cai et al. 2020).

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
    """A transformer on image patches (Dosovitskiy et al. 2021) whose layers normalise first; answers by the mean token.

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
    """Two stages; for images of 16 pixels and more deeper ones, after a stem that makes them a quarter as high."""
    large = data.input_shape[-1] >= 16
    sizes: dict[str, Any] = {"channels": (32, 64), "blocks": (4, 5) if large else (2, 3), "ratio": 0.5, "stem": 16}
    kernel, stride = (5, 4) if large else (3, 1)
    return resnet(data.input_shape, data.classes, **sizes, stem_kernel=kernel, stem_stride=stride)


def transformer_for(data: Dataset) -> OperatorGraph:
    """Patches of a quarter (or, from 16 pixels, a seventh) of the image's side, four layers of four heads."""
    side = data.input_shape[-1]
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
