"""Transformers over text: encoders as BERT, causal decoders as GPT and Llama."""

from __future__ import annotations

from slotool.graphs.architectures.parts import (
    Architecture,
    add,
    first_token,
    gated_mlp,
    head_of,
    joined_heads,
    mlp,
    table,
)
from slotool.graphs.graph import GraphBuilder

VOCABULARIES = (1000, 8000, 21128, 30522, 50257)
LENGTHS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)


def bert(
    b: GraphBuilder, *, length: int, vocabulary: int, width: int, depth: int, head_size: int, ratio: int, masked: bool,
    classes: int,
) -> None:  # fmt: skip
    """Append a post-norm encoder, with a mask of its tokens if ``masked``, and a classifier on its first token."""
    tokens = b.add("InputLayer", shape=[length], dtype="int64")
    mask = b.add("InputLayer", shape=[1, 1, length], dtype="bool") if masked else ""
    last = add(b, b.add("Embedding", tokens, vocabulary=vocabulary, units=width), table(b, (length, width)))
    last = b.add("LayerNormalization", add(b, last, table(b, (1, width))))
    for _ in range(depth):
        heads = [head_of(b, last, width // head_size, head_size) for _ in range(3)]
        attended = b.add("ScaledDotProductAttention", [*heads, mask] if masked else heads)
        last = b.add("LayerNormalization", add(b, joined_heads(b, attended), last))
        last = b.add("LayerNormalization", add(b, mlp(b, last, ratio * width), last))
    last = b.add("Dense", first_token(b, last), units=width, activation="tanh")
    b.add("Dense", last, units=classes)


def gpt(b: GraphBuilder, *, length: int, vocabulary: int, width: int, depth: int, head_size: int, ratio: int) -> None:
    """Append a causal decoder with trained positions, and the scores of every next token."""
    last = _embedded(b, length, vocabulary, width)
    last = add(b, last, table(b, (length, width)))
    heads = width // head_size
    for _ in range(depth):
        joint = b.add("Dense", b.add("LayerNormalization", last), units=3 * width)
        parts = [b.add("Slice", joint, axis=1, start=at * width, size=width) for at in range(3)]
        split = [b.add("Reshape", part, shape=[length, heads, head_size]) for part in parts]
        turned = [b.add("Transpose", part, axes=[1, 0, 2]) for part in split]
        attended = b.add("ScaledDotProductAttention", turned, causal=True)
        last = add(b, last, joined_heads(b, attended))
        last = add(b, last, mlp(b, b.add("LayerNormalization", last), ratio * width))
    b.add("Dense", b.add("LayerNormalization", last), units=vocabulary, bias=False)


def llama(
    b: GraphBuilder, *, length: int, vocabulary: int, width: int, depth: int, head_size: int, groups: int, ratio: float
) -> None:
    """Append a causal decoder with rotary positions, gated products, and grouped keys and values."""
    last = _embedded(b, length, vocabulary, width)
    cosine, sine = (b.add("Constant", shape=[length, head_size]) for _ in range(2))
    heads, hidden = width // head_size, 32 * round(ratio * width / 32)
    for _ in range(depth):
        inner = b.add("RMSNormalization", last)
        few = max(1, heads // groups)
        query, key, value = (head_of(b, inner, count, head_size, bias=False) for count in (heads, few, few))
        query, key = (_rotated(b, each, cosine, sine) for each in (query, key))
        attended = b.add("ScaledDotProductAttention", [query, key, value], causal=True)
        last = add(b, last, joined_heads(b, attended))
        last = add(b, last, gated_mlp(b, b.add("RMSNormalization", last), hidden))
    b.add("Dense", b.add("RMSNormalization", last), units=vocabulary, bias=False)


def _embedded(b: GraphBuilder, length: int, vocabulary: int, width: int) -> str:
    tokens = b.add("InputLayer", shape=[length], dtype="int64")
    return b.add("Embedding", tokens, vocabulary=vocabulary, units=width)


def _rotated(b: GraphBuilder, x: str, cosine: str, sine: str) -> str:
    """Rotary positions (Su et al. 2021): x · cos + (−second half, first half) · sin."""
    half = b.shape(x)[-1] // 2
    first = b.add("Slice", x, axis=2, start=0, size=half)
    second = b.add("Elementwise", b.add("Slice", x, axis=2, start=half, size=half), function="negative")
    turned = b.add("Concatenate", [second, first], axis=2)
    return add(b, b.add("Multiply", [x, cosine]), b.add("Multiply", [turned, sine]))


_TRANSFORMERS = {
    "length": LENGTHS,
    "vocabulary": VOCABULARIES,
    "width": (128, 256, 384, 512, 640, 768, 1024),
    "depth": (2, 3, 4, 6, 8, 10, 12, 24),
    "head_size": (32, 64),
    "ratio": (2, 3, 4),
}
TEXT = (
    Architecture(
        "bert",
        "Devlin et al. 2019; small ones Turc et al. 2019",
        {**_TRANSFORMERS, "masked": (False, True), "classes": (2, 5, 20)},
        bert,
    ),
    Architecture(
        "gpt",
        "Radford et al. 2019",
        _TRANSFORMERS,
        gpt,
    ),
    Architecture(
        "llama",
        "Touvron et al. 2023, Ainslie et al. 2023",
        {
            "length": LENGTHS,
            "vocabulary": VOCABULARIES,
            "width": (256, 384, 512, 640, 768, 1024),
            "depth": (2, 3, 4, 6, 8, 10, 12, 24),
            "head_size": (32, 64),
            "groups": (1, 2, 4),
            "ratio": (2.0, 8 / 3, 3.5),
        },
        llama,
    ),
)
