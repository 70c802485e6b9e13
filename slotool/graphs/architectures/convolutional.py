"""Convolutional networks in four stages, as those that classify photographs."""

from __future__ import annotations

from slotool.graphs.architectures.parts import (
    CLASSES,
    RESOLUTIONS,
    Architecture,
    activated,
    add,
    classify_image,
    eightfold,
    normalised,
    pointwise_mlp,
    squeeze_excite,
)
from slotool.graphs.graph import GraphBuilder


def resnet(
    b: GraphBuilder,
    *,
    resolution: int,
    width: int,
    depths: tuple[int, ...],
    block: str,
    excite: int,
    activation: str,
    classes: int,
) -> None:
    """Append a 7×7 convolution and pooling, then stages of two 3×3 convolutions or bottlenecks, with shortcuts.

    ``block``: ``basic``, ``bottleneck``, or the latter in groups of so many channels, as ``grouped-16``. ``excite``:
    the squeeze of its channel attention, 0 for none.
    """
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    last = normalised(b, last, width, 7, activation, stride=2)
    last = b.add("MaxPooling2D", last, kernel=3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for position in range(depth):
            stride = 2 if stage and not position else 1
            last = _residual(b, last, width << stage, block, stride, excite, activation)
    classify_image(b, last, classes)


def _residual(b: GraphBuilder, last: str, width: int, block: str, stride: int, excite: int, activation: str) -> str:
    before = b.shape(last)[0]
    if block == "basic":
        wide = width
        inner = normalised(b, last, width, 3, activation, stride=stride)
        inner = normalised(b, inner, width, 3)
        if excite:
            inner = squeeze_excite(b, inner, max(8, width // excite), "sigmoid")
    else:
        group = int(block.partition("-")[2] or 0)
        middle = -(-width // group) * group if group else width
        wide = middle if group else 4 * width
        inner = normalised(b, last, middle, 1, activation)
        inner = normalised(b, inner, middle, 3, activation, stride=stride, groups=middle // group if group else 1)
        if excite:
            inner = squeeze_excite(b, inner, max(8, middle // excite), "sigmoid")
        inner = normalised(b, inner, wide, 1)
    if stride > 1 or before != wide:
        last = normalised(b, last, wide, 1, stride=stride)
    return activated(b, add(b, inner, last), activation)


def mobilenet(
    b: GraphBuilder,
    *,
    resolution: int,
    width: float,
    depth: float,
    expansion: int,
    kernel: int,
    excite: int,
    activation: str,
    classes: int,
) -> None:
    """Seven groups of inverted bottlenecks: 1×1 to ``expansion`` times the channels, depthwise, 1×1 back."""
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    last = normalised(b, last, eightfold(32 * width), 3, activation, stride=2)
    for filters, repeats, stride in ((16, 1, 1), (24, 2, 2), (40, 2, 2), (80, 3, 2), (112, 3, 1), (192, 4, 2)):
        for position in range(max(1, round(repeats * depth))):
            step = stride if not position else 1
            wide = expansion if filters > 16 else 1
            last = _inverted(b, last, eightfold(filters * width), wide, kernel, step, excite, activation)
    last = normalised(b, last, eightfold(1280 * max(1.0, width)), 1, activation)
    classify_image(b, last, classes)


def _inverted(
    b: GraphBuilder, last: str, filters: int, expansion: int, kernel: int, stride: int, excite: int, activation: str
) -> str:
    before, inner = b.shape(last)[0], last
    if expansion > 1:
        inner = normalised(b, inner, eightfold(before * expansion), 1, activation)
    inner = normalised(b, inner, 0, kernel, activation, stride=stride)
    if excite:
        inner = squeeze_excite(b, inner, max(4, before // excite), "sigmoid", activation)
    inner = normalised(b, inner, filters, 1)
    return add(b, inner, last) if stride == 1 and before == filters else inner


def densenet(
    b: GraphBuilder, *, resolution: int, growth: int, depths: tuple[int, ...], squeeze: int, classes: int
) -> None:
    """Append layers whose new channels join all earlier ones; between blocks 1×1 and pooling halve both."""
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    last = normalised(b, last, 2 * growth, 7, "relu", stride=2)
    last = b.add("MaxPooling2D", last, kernel=3, stride=2, padding=1)
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            new = b.add("ReLU", b.add("BatchNormalization", last))
            new = normalised(b, new, squeeze * growth, 1, "relu")
            new = b.add("Conv2D", new, filters=growth, kernel=3, padding=1, bias=False)
            last = b.add("Concatenate", [last, new])
        last = b.add("ReLU", b.add("BatchNormalization", last))
        if stage < len(depths) - 1:
            last = b.add("Conv2D", last, filters=b.shape(last)[0] // 2, kernel=1, bias=False)
            last = b.add("AveragePooling2D", last, kernel=2)
    classify_image(b, last, classes)


def convnext(
    b: GraphBuilder,
    *,
    resolution: int,
    width: int,
    depths: tuple[int, ...],
    kernel: int,
    ratio: int,
    scaled: bool,
    classes: int,
) -> None:
    """Depthwise convolutions, layer normalisation and two 1×1 convolutions, in four stages of doubling width."""
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    last = b.add("Conv2D", last, filters=width, kernel=4, stride=4)
    last = b.add("LayerNormalization", last)
    for stage, depth in enumerate(depths):
        if stage:
            last = b.add("LayerNormalization", last)
            last = b.add("Conv2D", last, filters=width << stage, kernel=2, stride=2)
        for _ in range(depth):
            inner = b.add("DepthwiseConv2D", last, kernel=kernel, padding=kernel // 2)
            inner = pointwise_mlp(b, b.add("LayerNormalization", inner), ratio)
            last = add(b, b.add("LayerScale", inner) if scaled else inner, last)
    pooled = b.add("GlobalAveragePooling2D", last)
    b.add("Dense", b.add("LayerNormalization", pooled), units=classes)


DEPTHS = ((1, 1, 1, 1), (2, 2, 2, 2), (2, 2, 6, 2), (3, 4, 6, 3), (3, 3, 9, 3))

CONVOLUTIONAL = (
    Architecture(
        "resnet",
        "He et al. 2016; in groups Xie et al. 2017, Radosavovic et al. 2020; channel attention Hu et al. 2018",
        {
            "resolution": RESOLUTIONS,
            "width": (16, 24, 32, 48, 64, 80, 96),
            "depths": DEPTHS,
            "block": ("basic", "bottleneck", "grouped-8", "grouped-16", "grouped-24", "grouped-40"),
            "excite": (0, 4, 16),
            "activation": ("relu", "silu"),
            "classes": CLASSES,
        },
        resnet,
    ),
    Architecture(
        "mobilenet",
        "Sandler et al. 2018, Howard et al. 2019, Tan and Le 2019",
        {
            "resolution": RESOLUTIONS,
            "width": (0.35, 0.5, 0.75, 1.0, 1.2, 1.4, 1.8),
            "depth": (0.5, 1.0, 1.4, 2.0),
            "expansion": (3, 4, 6),
            "kernel": (3, 5),
            "excite": (0, 4),
            "activation": ("relu", "relu6", "silu", "hard_silu"),
            "classes": CLASSES,
        },
        mobilenet,
    ),
    Architecture(
        "densenet",
        "Huang et al. 2017",
        {
            "resolution": RESOLUTIONS,
            "growth": (12, 16, 24, 32, 48),
            "depths": ((3, 6, 8, 6), (4, 8, 12, 8), (6, 12, 24, 16), (6, 12, 32, 32)),
            "squeeze": (2, 4),
            "classes": CLASSES,
        },
        densenet,
    ),
    Architecture(
        "convnext",
        "Liu et al. 2022, Woo et al. 2023",
        {
            "resolution": RESOLUTIONS,
            "width": (32, 40, 48, 64, 80, 96, 128),
            "depths": DEPTHS,
            "kernel": (3, 5, 7),
            "ratio": (2, 3, 4),
            "scaled": (False, True),
            "classes": CLASSES,
        },
        convnext,
    ),
)
