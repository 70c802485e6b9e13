"""Kinds of networks, and their common parts. Tokens are (length, width), images (channels, height, width)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slotool.graphs.graph import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Shape


@dataclass(frozen=True)
class Architecture:
    """A kind of network that people use.

    ``sizes``: what each of its sizes may be, smallest first; together they are the search space, and every
    combination is a network. ``build`` appends the whole network to a builder; it takes the sizes by name.
    ``source``: the paper that the kind is from.
    """

    name: str
    source: str
    sizes: Mapping[str, tuple[Any, ...]]
    build: Callable[..., object]

    @property
    def size(self) -> int:
        """Number of different networks."""
        return math.prod(map(len, self.sizes.values()))

    def graph(self, choices: tuple[int, ...]) -> OperatorGraph:
        """Return the network of these choices, one position in each of ``sizes``."""
        builder = GraphBuilder(self.name)
        self.build(
            builder, **{name: values[at] for (name, values), at in zip(self.sizes.items(), choices, strict=True)}
        )
        return builder.graph()


RESOLUTIONS = (96, 128, 160, 192, 224, 256, 288)
CLASSES = (10, 100, 1000)


def add(b: GraphBuilder, first: str, second: str) -> str:
    return b.add("Add", [first, second])


def activated(b: GraphBuilder, last: str, activation: str) -> str:
    return b.add("ReLU", last) if activation == "relu" else b.add("Activation", last, activation=activation)


def normalised(
    b: GraphBuilder, last: str, filters: int, kernel: int, activation: str = "", *, stride: int = 1, groups: int = 1
) -> str:
    """Convolution without bias, batch normalisation, activation; no ``filters``: one for each channel."""
    window: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": kernel // 2, "bias": False}
    if filters:
        last = b.add("Conv2D", last, filters=filters, groups=groups, **window)
    else:
        last = b.add("DepthwiseConv2D", last, **window)
    last = b.add("BatchNormalization", last)
    return activated(b, last, activation) if activation else last


def squeeze_excite(b: GraphBuilder, last: str, squeezed: int, gate: str, activation: str = "relu") -> str:
    """Append each channel times a factor of the means of all channels (Hu et al. 2018)."""
    factor = b.add("GlobalAveragePooling2D", last, keepdims=True)
    factor = b.add("Conv2D", factor, filters=squeezed, kernel=1, activation=activation)
    factor = b.add("Conv2D", factor, filters=b.shape(last)[0], kernel=1, activation=gate)
    return b.add("Multiply", [last, factor])


def pointwise_mlp(b: GraphBuilder, last: str, ratio: int) -> str:
    """Return 1×1 to ``ratio`` times the channels and back."""
    channels = b.shape(last)[0]
    last = b.add("Conv2D", last, filters=ratio * channels, kernel=1, activation="gelu")
    return b.add("Conv2D", last, filters=channels, kernel=1)


def classify_image(b: GraphBuilder, last: str, classes: int) -> None:
    b.add("Dense", b.add("GlobalAveragePooling2D", last), units=classes)


def eightfold(channels: float) -> int:
    """Return the nearest multiple of 8, at least 8, as MobileNets round."""
    return max(8, 8 * round(channels / 8))


def tokens_of(b: GraphBuilder, image: str) -> str:
    """Return an image's places as tokens."""
    channels, height, width = b.shape(image)
    return b.add("Transpose", b.add("Reshape", image, shape=[channels, height * width]), axes=[1, 0])


def image_of(b: GraphBuilder, tokens: str, height: int) -> str:
    """Return the tokens as an image of so many rows."""
    length, width = b.shape(tokens)
    turned = b.add("Transpose", tokens, axes=[1, 0])
    return b.add("Copy", b.add("Reshape", turned, shape=[width, height, length // height]))


def table(b: GraphBuilder, shape: Shape) -> str:
    """Return a trained table, the same for every example."""
    return b.add("Constant", shape=list(shape), weights=math.prod(shape))


def mlp(b: GraphBuilder, last: str, hidden: int, activation: str = "gelu", *, bias: bool = True) -> str:
    width = b.shape(last)[-1]
    last = b.add("Dense", last, units=hidden, activation=activation, bias=bias)
    return b.add("Dense", last, units=width, bias=bias)


def gated_mlp(b: GraphBuilder, last: str, hidden: int) -> str:
    """Append two products, one of them the gate of the other, and one back (Shazeer 2020)."""
    width = b.shape(last)[-1]
    gate = b.add("Dense", last, units=hidden, bias=False, activation="silu")
    value = b.add("Dense", last, units=hidden, bias=False)
    return b.add("Dense", b.add("Multiply", [gate, value]), units=width, bias=False)


def joint_attention(b: GraphBuilder, last: str, heads: int) -> str:
    """Self-attention whose query, key and value are one product; tokens may lie in windows (windows, length, width)."""
    *windows, length, width = b.shape(last)
    joint = b.add("Dense", last, units=3 * width)
    joint = b.add("Reshape", joint, shape=[*windows, length, 3, heads, width // heads])
    outer = len(windows)
    joint = b.add("Transpose", joint, axes=[outer + 1, *range(outer), outer + 2, outer, outer + 3])
    parts = [b.add("Slice", joint, axis=0, start=part, size=1, keepdims=False) for part in range(3)]
    return joined_heads(b, b.add("ScaledDotProductAttention", parts))


def joined_heads(b: GraphBuilder, attended: str) -> str:
    """Append heads (…, heads, length, dim) side by side, as fused attention leaves them in memory, and a product."""
    *windows, heads, length, dim = b.shape(attended)
    outer = len(windows)
    turned = b.add("Transpose", attended, axes=[*range(outer), outer + 1, outer, outer + 2])
    joined = b.add("Reshape", turned, shape=[*windows, length, heads * dim])
    return b.add("Dense", joined, units=heads * dim)


def head_of(b: GraphBuilder, last: str, heads: int, dim: int, *, bias: bool = True) -> str:
    """Return the query, key or value of its own product, as (heads, length, dim)."""
    length = b.shape(last)[0]
    split = b.add("Reshape", b.add("Dense", last, units=heads * dim, bias=bias), shape=[length, heads, dim])
    return b.add("Transpose", split, axes=[1, 0, 2])


def first_token(b: GraphBuilder, last: str) -> str:
    return b.add("Slice", last, axis=0, start=0, size=1, keepdims=False)
