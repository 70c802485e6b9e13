"""Networks that see an image as tokens: transformers, windows of them, mixers, and hybrids with convolutions."""

from __future__ import annotations

from slotool.graphs.architectures.parts import (
    CLASSES,
    Architecture,
    add,
    eightfold,
    first_token,
    image_of,
    joint_attention,
    mlp,
    normalised,
    squeeze_excite,
    table,
    tokens_of,
)
from slotool.graphs.graph import GraphBuilder

HEAD_SIZE = 32


def vit(
    b: GraphBuilder, *, image: tuple[int, int], width: int, depth: int, head_size: int, ratio: int, pooled: bool,
    scaled: bool, classes: int,
) -> None:  # fmt: skip
    """Append patches of an image, a transformer over them, and a classifier on the first token or the mean.

    ``image``: resolution and patch. ``scaled``: each part of a block times a trained factor (Touvron et al. 2021).
    """
    last = _patches(b, image, width)
    if not pooled:
        last = b.add("Concatenate", [table(b, (1, width)), last], axis=0)
    last = add(b, last, table(b, b.shape(last)))
    for _ in range(depth):
        for part in ("attention", "mlp"):
            inner = b.add("LayerNormalization", last)
            inner = (
                joint_attention(b, inner, width // head_size) if part == "attention" else mlp(b, inner, ratio * width)
            )
            last = add(b, last, b.add("LayerScale", inner) if scaled else inner)
    last = b.add("LayerNormalization", last)
    last = b.add("Mean", last, axes=[0]) if pooled else first_token(b, last)
    b.add("Dense", last, units=classes)


def mixer(
    b: GraphBuilder, *, image: tuple[int, int], width: int, depth: int, tokens: int, ratio: int, classes: int
) -> None:
    """Append patches of an image, mixed along places and along channels in turn."""
    last = _patches(b, image, width)
    for _ in range(depth):
        turned = b.add("Transpose", b.add("LayerNormalization", last), axes=[1, 0])
        last = add(b, last, b.add("Transpose", mlp(b, turned, tokens), axes=[1, 0]))
        last = add(b, last, mlp(b, b.add("LayerNormalization", last), ratio * width))
    last = b.add("Mean", b.add("LayerNormalization", last), axes=[0])
    b.add("Dense", last, units=classes)


def _patches(b: GraphBuilder, image: tuple[int, int], width: int) -> str:
    resolution, patch = image
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    return tokens_of(b, b.add("Conv2D", last, filters=width, kernel=patch, stride=patch))


def swin(
    b: GraphBuilder, *, window: tuple[int, int], width: int, depths: tuple[int, ...], ratio: int, classes: int
) -> None:
    """Attention within windows, every other time shifted by half of one, in four stages of doubling width.

    ``window``: how many places wide a window is, and how many windows wide the last stage.
    """
    size, windows = window
    places = 8 * size * windows
    last = b.add("InputLayer", shape=[3, 4 * places, 4 * places])
    last = b.add("Conv2D", last, filters=width, kernel=4, stride=4)
    last = b.add("LayerNormalization", b.add("Transpose", last, axes=[1, 2, 0]), axes=[2])
    for stage, depth in enumerate(depths):
        if stage:
            last = _merged(b, last)
        for position in range(depth):
            shift = size // 2 if position % 2 and b.shape(last)[0] > size else 0
            inner = b.add("LayerNormalization", last, axes=[2])
            last = add(b, last, _windowed(b, inner, size, shift))
            last = add(b, last, mlp(b, b.add("LayerNormalization", last, axes=[2]), ratio * b.shape(last)[-1]))
    last = b.add("LayerNormalization", last, axes=[2])
    b.add("Dense", b.add("Mean", last, axes=[0, 1]), units=classes)


def _windowed(b: GraphBuilder, last: str, size: int, shift: int) -> str:
    """Attention of (height, width, channels) within windows, with a trained bias for each distance."""
    height, width, channels = b.shape(last)
    if shift:
        last = b.add("Roll", last, shifts=[-shift, -shift], axes=[0, 1])
    rows, columns, heads = height // size, width // size, channels // HEAD_SIZE
    last = b.add("Reshape", last, shape=[rows, size, columns, size, channels])
    last = b.add("Copy", b.add("Transpose", last, axes=[0, 2, 1, 3, 4]))
    last = b.add("Reshape", last, shape=[rows * columns, size * size, channels])
    last = _attention_with_bias(b, last, heads, masked=bool(shift))
    last = b.add("Reshape", last, shape=[rows, columns, size, size, channels])
    last = b.add("Copy", b.add("Transpose", last, axes=[0, 2, 1, 3, 4]))
    last = b.add("Reshape", last, shape=[height, width, channels])
    return b.add("Roll", last, shifts=[shift, shift], axes=[0, 1]) if shift else last


def _attention_with_bias(b: GraphBuilder, last: str, heads: int, *, masked: bool) -> str:
    """Append attention as swin transformers write it: both products, the softmax and the biases one by one."""
    windows, length, width = b.shape(last)
    joint = b.add("Reshape", b.add("Dense", last, units=3 * width), shape=[windows, length, 3, heads, HEAD_SIZE])
    joint = b.add("Transpose", joint, axes=[2, 0, 3, 1, 4])
    query, key, value = (b.add("Slice", joint, axis=0, start=part, size=1, keepdims=False) for part in range(3))
    scores = b.add("MatMul", [b.add("Rescaling", query), b.add("Transpose", key, axes=[0, 1, 3, 2])])
    side = round(length**0.5)
    biases = b.add("Constant", shape=[heads, length, length], weights=(2 * side - 1) ** 2 * heads)
    scores = add(b, scores, biases)
    if masked:
        scores = add(b, scores, b.add("Constant", shape=[windows, 1, length, length]))
    attended = b.add("MatMul", [b.add("Softmax", scores, axis=-1), value])
    turned = b.add("Copy", b.add("Transpose", attended, axes=[0, 2, 1, 3]))
    return b.add("Dense", b.add("Reshape", turned, shape=[windows, length, width]), units=width)


def _merged(b: GraphBuilder, last: str) -> str:
    """Four neighbours as one, of twice the channels."""
    channels = b.shape(last)[-1]
    corners = []
    for left in (0, 1):
        for top in (0, 1):
            part = b.add("Slice", last, axis=0, start=top, size=b.shape(last)[0] // 2, step=2)
            corners.append(b.add("Slice", part, axis=1, start=left, size=b.shape(last)[1] // 2, step=2))
    joined = b.add("LayerNormalization", b.add("Concatenate", corners, axis=2), axes=[2])
    return b.add("Dense", joined, units=2 * channels, bias=False)


def hybrid(
    b: GraphBuilder, *, resolution: int, width: int, depths: tuple[int, int, int, int], expansion: int, ratio: int,
    classes: int,
) -> None:  # fmt: skip
    """Append two stages of inverted bottlenecks with channel attention, then two of attention over all places."""
    last = b.add("InputLayer", shape=[3, resolution, resolution])
    last = normalised(b, last, width, 3, "gelu", stride=2)
    last = normalised(b, last, width, 3)
    for stage in (0, 1):
        for position in range(depths[stage]):
            last = _bottleneck(b, last, width << stage, expansion, 2 if not position else 1)
    for stage in (2, 3):
        channels = width << stage
        last = b.add("MaxPooling2D", last, kernel=2)
        last = b.add("Conv2D", last, filters=channels, kernel=1)
        side = b.shape(last)[1]
        last = tokens_of(b, last)
        for _ in range(depths[stage]):
            last = add(b, last, joint_attention(b, b.add("LayerNormalization", last), channels // HEAD_SIZE))
            last = add(b, last, mlp(b, b.add("LayerNormalization", last), ratio * channels))
        last = image_of(b, last, side)
    b.add("Dense", b.add("GlobalAveragePooling2D", last), units=classes)


def _bottleneck(b: GraphBuilder, last: str, filters: int, expansion: int, stride: int) -> str:
    before = b.shape(last)[0]
    inner = normalised(b, b.add("BatchNormalization", last), expansion * filters, 1, "gelu", stride=1)
    inner = normalised(b, inner, 0, 3, "gelu", stride=stride)
    inner = squeeze_excite(b, inner, eightfold(filters / 4), "sigmoid", "silu")
    inner = b.add("Conv2D", inner, filters=filters, kernel=1)
    if stride > 1:
        last = b.add("AveragePooling2D", last, kernel=2)
    if before != filters:
        last = b.add("Conv2D", last, filters=filters, kernel=1)
    return add(b, inner, last)


IMAGES = ((32, 4), (64, 8), (160, 16), (224, 32), (224, 16), (256, 16), (224, 14), (384, 32), (288, 16), (384, 16))

TOKENS = (
    Architecture(
        "vit",
        "Dosovitskiy et al. 2021; Touvron et al. 2021",
        {
            "image": IMAGES,
            "width": (128, 192, 256, 320, 384, 448, 512, 640, 768, 1024),
            "depth": (2, 4, 6, 8, 10, 12, 16, 24),
            "head_size": (32, 64),
            "ratio": (2, 3, 4),
            "pooled": (False, True),
            "scaled": (False, True),
            "classes": CLASSES,
        },
        vit,
    ),
    Architecture(
        "swin",
        "Liu et al. 2021",
        {
            "window": ((4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (12, 1), (4, 2)),
            "width": (32, 64, 96, 128, 192),
            "depths": ((1, 1, 2, 1), (2, 2, 2, 2), (2, 2, 4, 2), (2, 2, 6, 2), (2, 2, 18, 2)),
            "ratio": (2, 3, 4),
            "classes": CLASSES,
        },
        swin,
    ),
    Architecture(
        "mixer",
        "Tolstikhin et al. 2021",
        {
            "image": IMAGES,
            "width": (128, 192, 256, 384, 512, 640, 768, 1024),
            "depth": (2, 4, 6, 8, 12, 16, 24),
            "tokens": (64, 128, 192, 256, 384, 512),
            "ratio": (2, 3, 4),
            "classes": CLASSES,
        },
        mixer,
    ),
    Architecture(
        "hybrid",
        "Dai et al. 2021, Tu et al. 2022",
        {
            "resolution": (96, 128, 160, 192, 224, 256, 288),
            "width": (32, 64, 96, 128),
            "depths": ((1, 1, 1, 1), (1, 2, 2, 1), (2, 2, 4, 2), (2, 3, 5, 2), (2, 6, 10, 2)),
            "expansion": (2, 4, 6),
            "ratio": (2, 3, 4),
            "classes": CLASSES,
        },
        hybrid,
    ),
)
