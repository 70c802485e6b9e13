"""What a layer of a random CNN may be: the paper's plain convolution, and the blocks that well-known networks are of.

A block takes the builder, the operator before it, its number of channels and what says its stride (nothing, or
``{"stride": 2}``), and returns its last operator. Normalised ones have no bias, as their originals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slotool.graphs.graph import GraphBuilder

Stride = Mapping[str, Any]
Block = Callable[[GraphBuilder, str, int, Stride], str]


def plain(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """A 3×3 convolution with ReLU (inference-latency-prediction, §3.2)."""
    return builder.add("Conv2D", last, filters=channels, kernel=3, padding="same", activation="relu", **stride)


def residual(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Two convolutions with a shortcut, which is one of 1×1 where shapes differ (He et al. 2016)."""
    second = builder.add("Conv2D", plain(builder, last, channels, stride), filters=channels, kernel=3, padding="same")
    if stride or _channels(builder, last) != channels:
        last = builder.add("Conv2D", last, filters=channels, kernel=1, padding="same", **stride)
    return builder.add("ReLU", builder.add("Add", [second, last]))


def depthwise(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """A convolution per channel, then one of 1×1 across them (Howard et al. 2017)."""
    spatial = builder.add("DepthwiseConv2D", last, kernel=3, padding="same", activation="relu", **stride)
    return builder.add("Conv2D", spatial, filters=channels, kernel=1, activation="relu")


def bottleneck(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """1×1 to a quarter of the channels, 3×3, 1×1 back, all normalised, with a shortcut (He et al. 2016)."""
    inner = _normalised(builder, last, max(1, channels // 4), 1, "relu", stride)
    inner = _normalised(builder, inner, max(1, channels // 4), 3, "relu")
    inner = _normalised(builder, inner, channels, 1)
    if stride or _channels(builder, last) != channels:
        last = _normalised(builder, last, channels, 1, None, stride)
    return builder.add("ReLU", builder.add("Add", [inner, last]))


def inverted(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """1×1 to four times the channels, 5×5 depthwise, squeeze and excitation, 1×1 (Sandler 2018, Tan and Le 2019)."""
    before = _channels(builder, last)
    wide = _normalised(builder, last, 4 * before, 1, "silu")
    wide = builder.add("DepthwiseConv2D", wide, kernel=5, padding="same", bias=False, **stride)
    wide = builder.add("Activation", builder.add("BatchNormalization", wide), activation="silu")
    squeezed = builder.add("GlobalAveragePooling2D", wide, keepdims=True)
    squeezed = builder.add("Conv2D", squeezed, filters=max(1, before // 4), kernel=1, activation="silu")
    squeezed = builder.add("Conv2D", squeezed, filters=4 * before, kernel=1, activation="sigmoid")
    narrow = _normalised(builder, builder.add("Multiply", [wide, squeezed]), channels, 1)
    return narrow if stride or before != channels else builder.add("Add", [narrow, last])


def dense(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Its own channels concatenated with its input's (Huang et al. 2017); a stride is a pooling in front."""
    if stride:
        last = builder.add("AveragePooling2D", last, kernel=2, padding="same")
    new = builder.add("ReLU", builder.add("BatchNormalization", last))
    new = _normalised(builder, new, 4 * channels, 1, "relu")
    new = builder.add("Conv2D", new, filters=channels, kernel=3, padding="same", bias=False)
    return builder.add("Concatenate", [last, new])


def separable(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """A separable 3×3 convolution, normalised (Chollet 2017)."""
    both = builder.add("SeparableConv2D", last, filters=channels, kernel=3, padding="same", bias=False, **stride)
    return builder.add("ReLU", builder.add("BatchNormalization", both))


def branches(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """1×1, 1×7 after 7×1, and pooling, side by side (Szegedy et al. 2016)."""
    short = _normalised(builder, last, channels, 1, "relu", stride)
    long = _normalised(builder, last, channels, 1, "relu", stride)
    long = _normalised(builder, _normalised(builder, long, channels, (7, 1), "relu"), channels, (1, 7), "relu")
    pooled = builder.add("AveragePooling2D", last, kernel=3, padding="same", stride=2 if stride else 1)
    return builder.add("Concatenate", [short, long, _normalised(builder, pooled, channels, 1, "relu")])


def convnext(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """7×7 depthwise, layer normalisation, 1×1 to four times the channels and back, scaled (Liu et al. 2022)."""
    if stride or _channels(builder, last) != channels:
        kernel = 2 if stride else 1
        last = builder.add("Conv2D", last, filters=channels, kernel=kernel, padding="same", **stride)
    inner = builder.add("DepthwiseConv2D", last, kernel=7, padding="same")
    inner = builder.add("Conv2D", builder.add("LayerNormalization", inner), filters=4 * channels, kernel=1)
    inner = builder.add("Conv2D", builder.add("Activation", inner, activation="gelu"), filters=channels, kernel=1)
    return builder.add("Add", [builder.add("LayerScale", inner), last])


def _channels(builder: GraphBuilder, operator: str) -> int:
    return builder.shape(operator)[0]


def _normalised(
    builder: GraphBuilder,
    last: str,
    channels: int,
    kernel: int | tuple[int, int],
    activation: str | None = None,
    stride: Stride | None = None,
) -> str:
    """Convolution without bias, batch normalisation, activation."""
    size = kernel if isinstance(kernel, int) else list(kernel)
    last = builder.add("Conv2D", last, filters=channels, kernel=size, padding="same", bias=False, **(stride or {}))
    last = builder.add("BatchNormalization", last)
    if activation == "relu":
        return builder.add("ReLU", last)
    return builder.add("Activation", last, activation=activation) if activation else last


# The paper's own first.
BLOCKS: dict[str, Block] = {
    block.__name__: block
    for block in (plain, residual, depthwise, bottleneck, inverted, dense, separable, branches, convnext)
}
