"""Every known operator on small inputs, as graphs of one operator each: what each backend must run alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from slotool.graphs import OPERATORS, GraphBuilder, OperatorGraph
from slotool.profiling.backends import Backend

AnyBackend = TypeVar("AnyBackend", bound=Backend)
Sources = Sequence[tuple[Sequence[int], str]]
IMAGE, STEPS, VECTOR = ((4, 6, 8), "float32"), ((5, 6), "float32"), ((6,), "float32")
HEADS = ((2, 5, 4), "float32")


@cache
def shared_backend(kind: type[AnyBackend]) -> AnyBackend:
    """Return one backend of a kind for all graphs: each draws four million weights, which takes longer than a run."""
    return kind(threads=1)


def image(*shape: int) -> Sources:
    return [(shape, "float32")]


CASES: list[tuple[str, dict[str, Any], Sources]] = [
    ("Dense", {"units": 3, "activation": "relu"}, [STEPS]),
    ("Dense", {"units": 3, "bias": False}, [HEADS]),
    ("Embedding", {"vocabulary": 7, "units": 3}, [((5,), "int64")]),
    ("MatMul", {}, [((2, 5, 4), "float32"), ((4, 3), "float32")]),
    ("MatMul", {}, [((2, 5, 4), "float32"), ((1, 4, 3), "float32")]),
    ("ScaledDotProductAttention", {}, [HEADS, HEADS, HEADS]),
    ("ScaledDotProductAttention", {"causal": True}, [((4, 5, 4), "float32"), HEADS, HEADS]),
    ("ScaledDotProductAttention", {}, [HEADS, HEADS, HEADS, ((1, 5), "bool")]),
    ("ScaledDotProductAttention", {}, [*[((3, 2, 5, 4), "float32")] * 3, ((3, 1, 5, 5), "float32")]),
    ("LSTM", {"units": 3}, [STEPS]),
    ("LSTM", {"units": 3, "bidirectional": True}, [((2, 5, 6), "float32")]),
    ("LSTM", {"units": 3}, [STEPS, ((3,), "float32"), ((3,), "float32")]),
    ("GRU", {"units": 3}, [STEPS, ((3,), "float32")]),
    ("GRU", {"units": 3, "layers": 2, "bidirectional": True}, [STEPS]),
    ("SimpleRNN", {"units": 3, "bias": False}, [STEPS]),
    ("BatchNormalization", {}, [IMAGE]),
    ("BatchNormalization", {"axis": 0, "scale": False}, [STEPS]),
    ("LayerNormalization", {}, [IMAGE]),
    ("LayerNormalization", {"axes": [1, 2], "center": False}, [IMAGE]),
    ("LayerNormalization", {"axes": [2]}, [IMAGE]),
    ("RMSNormalization", {}, [STEPS]),
    ("RMSNormalization", {"axes": [0, 1], "scale": False}, [STEPS]),
    ("GroupNormalization", {"groups": 2}, [IMAGE]),
    ("GroupNormalization", {"groups": 5, "center": False}, [STEPS]),
    ("LocalResponseNormalization", {"size": 3}, [IMAGE]),
    ("Normalization", {}, [IMAGE]),
    ("Normalization", {"fixed": True}, [STEPS]),
    ("LayerScale", {}, [IMAGE]),
    ("LayerScale", {}, [STEPS]),
    ("Conv2D", {"filters": 6, "kernel": 3, "padding": "same", "stride": 2, "groups": 2}, [IMAGE]),
    ("Conv2D", {"filters": 6, "kernel": 3, "dilation": 2, "padding": [1, 2], "activation": "gelu"}, [IMAGE]),
    ("DepthwiseConv2D", {"kernel": 3, "multiplier": 2}, [IMAGE]),
    ("SeparableConv2D", {"filters": 3, "kernel": 3}, [IMAGE]),
    ("Conv1D", {"filters": 6, "kernel": 3, "stride": 2, "padding": 1, "groups": 2}, image(4, 9)),
    ("Conv1D", {"filters": 3, "kernel": 2, "padding": "same"}, image(4, 9)),
    ("Conv3D", {"filters": 6, "kernel": [1, 3, 3], "padding": [0, 1, 1], "bias": False}, image(4, 3, 5, 4)),
    ("Conv1DTranspose", {"filters": 6, "kernel": 4, "stride": 2, "padding": 1}, image(4, 9)),
    ("Conv2DTranspose", {"filters": 6, "kernel": 3, "stride": 2, "padding": 1, "output_padding": 1}, [IMAGE]),
    ("Conv3DTranspose", {"filters": 2, "kernel": 2, "stride": 2}, image(4, 3, 3, 3)),
    ("MaxPooling2D", {"kernel": 2}, [IMAGE]),
    ("MaxPooling2D", {"kernel": 3, "stride": 2, "padding": 1}, [IMAGE]),
    ("MaxPooling2D", {"kernel": 3, "stride": 2, "ceil": True}, [IMAGE]),
    ("MaxPooling2D", {"kernel": 2, "stride": 1, "dilation": 3}, [IMAGE]),
    ("AveragePooling2D", {"kernel": 2, "stride": 1, "padding": "same"}, [IMAGE]),
    ("AveragePooling2D", {"kernel": 3, "stride": 2, "padding": 1, "count_padding": False}, [IMAGE]),
    ("AveragePooling2D", {"kernel": 3, "stride": 2, "ceil": True}, [IMAGE]),
    ("MaxPooling1D", {"kernel": 3}, image(4, 9)),
    ("MaxPooling3D", {"kernel": 2}, image(4, 4, 6, 6)),
    ("AveragePooling1D", {"kernel": 3, "stride": 2, "padding": 1}, image(4, 9)),
    ("AveragePooling3D", {"kernel": [1, 2, 2]}, image(4, 4, 6, 6)),
    ("GlobalAveragePooling2D", {}, [IMAGE]),
    ("GlobalMaxPooling2D", {"keepdims": True}, [IMAGE]),
    ("AdaptivePooling", {"size": [3, 5]}, [IMAGE]),
    ("AdaptivePooling", {"size": [3], "function": "max"}, [IMAGE]),
    ("Resize", {"size": [12, 16]}, [IMAGE]),
    ("Resize", {"size": [9, 5], "mode": "linear"}, [IMAGE]),
    ("Resize", {"size": [12], "mode": "linear"}, image(4, 6)),
    ("Resize", {"size": [12, 16], "mode": "cubic"}, [IMAGE]),
    ("GridSample", {}, [IMAGE, ((3, 5, 2), "float32")]),
    ("PixelShuffle", {"factor": 2}, [IMAGE]),
    ("PixelUnshuffle", {"factor": 2}, [IMAGE]),
    ("Unfold", {"kernel": 3, "padding": 1, "stride": 2}, [IMAGE]),
    ("Fold", {"size": [6, 6], "kernel": 2, "stride": 2}, image(16, 9)),
    ("ZeroPadding2D", {"padding": [0, 1, 2, 1]}, [IMAGE]),
    ("Cropping2D", {"cropping": [1, 2]}, [IMAGE]),
    ("Rescaling", {}, [IMAGE]),
    ("ReLU", {}, [IMAGE]),
    ("PReLU", {}, [IMAGE]),
    ("PReLU", {"shared": True}, [STEPS]),
    ("Softmax", {}, [IMAGE]),
    ("Softmax", {"axis": 1}, [IMAGE]),
    ("Activation", {"activation": "mish"}, [IMAGE]),
    ("Add", {}, [IMAGE, IMAGE]),
    ("Add", {}, [IMAGE, ((8,), "float32")]),
    ("Multiply", {}, [IMAGE, ((4, 1, 1), "float32"), IMAGE]),
    ("Where", {}, [((5, 6), "bool"), STEPS, ((6,), "float32")]),
    ("Where", {}, [((1, 6), "bool"), STEPS]),
    ("Cast", {"dtype": "int32"}, [STEPS]),
    ("Mean", {"axes": [0, 2]}, [IMAGE]),
    ("Sum", {"axes": [1], "keepdims": True}, [IMAGE]),
    ("Max", {"axes": [1]}, [STEPS]),
    ("Min", {"axes": [0]}, [STEPS]),
    ("Product", {"axes": [0, 1]}, [STEPS]),
    ("Norm", {"axes": [1], "keepdims": True}, [STEPS]),
    ("LogSumExp", {"axes": [1]}, [STEPS]),
    ("Any", {"axes": [1]}, [((5, 6), "bool")]),
    ("All", {"axes": [0]}, [((5, 6), "bool")]),
    ("Variance", {"axes": [1]}, [STEPS]),
    ("ArgMax", {"axes": [1]}, [STEPS]),
    ("ArgMin", {"axes": [0], "keepdims": True}, [STEPS]),
    ("CumulativeSum", {"axis": 1}, [STEPS]),
    ("Sort", {"axis": 0}, [STEPS]),
    ("TopK", {"k": 2, "axis": -1}, [STEPS]),
    ("TopK", {"k": 2, "axis": 0, "indices": True}, [STEPS]),
    ("Flatten", {}, [STEPS]),
    ("Reshape", {"shape": [6, 24, 1]}, [((8, 18), "float32")]),
    ("Transpose", {"axes": [2, 0, 1]}, [IMAGE]),
    ("Slice", {"axis": 1, "start": 1, "size": 2, "step": 3}, [IMAGE]),
    ("Slice", {"axis": 0, "start": 3, "size": 1, "keepdims": False}, [IMAGE]),
    ("Expand", {"shape": [3, 5, 6]}, [((5, 1), "float32")]),
    ("Copy", {}, [STEPS]),
    ("Concatenate", {}, [IMAGE, ((2, 6, 8), "float32")]),
    ("Concatenate", {"axis": 2}, [IMAGE, ((4, 6, 1), "float32")]),
    ("Stack", {"axis": -1}, [STEPS, STEPS]),
    ("Repeat", {"repeats": [2, 3]}, [STEPS]),
    ("Pad", {"pads": [0, 1, 2, 3]}, [STEPS]),
    ("Pad", {"pads": [0, 1, 2, 3], "mode": "reflect"}, [STEPS]),
    ("Pad", {"pads": [0, -1, 2, 1]}, [STEPS]),
    ("Roll", {"shifts": [1, -2], "axes": [0, 1]}, [STEPS]),
    ("Flip", {"axes": [1]}, [STEPS]),
    ("Gather", {"axis": 0}, [STEPS, ((2, 3), "int64")]),
    ("Gather", {"axis": 1}, [STEPS, ((4,), "int32")]),
    ("GatherElements", {"axis": 1}, [STEPS, ((5, 2), "int64")]),
    ("Scatter", {"axis": 1}, [STEPS, ((5, 1), "int64"), ((5, 1), "float32")]),
    *((("Elementwise", {"function": function}, [STEPS, STEPS])) for function in (
        *("subtract", "divide", "maximum", "minimum", "less", "greater_equal", "not_equal"),
    )),
    *((("Elementwise", {"function": function}, [STEPS])) for function in (
        "asin",
        *("abs", "ceil", "cos", "erf", "exp", "floor", "negative", "reciprocal", "round", "sign", "sin", "square"),
        *("subtract", "divide", "power", "maximum", "minimum", "equal", "less", "greater", "clamp", "is_nan"),
    )),
    ("Elementwise", {"function": "and"}, [((5, 6), "bool"), ((1, 6), "bool")]),
    ("Elementwise", {"function": "not"}, [((5, 6), "bool")]),
    ("Elementwise", {"function": "remainder"}, [((5, 6), "int64")]),
]  # fmt: skip


def graph_of(op: str, attributes: dict[str, Any], sources: Sources) -> OperatorGraph:
    """The operator on inputs of these shapes and types."""
    builder = GraphBuilder()
    inputs = [
        builder.add("InputLayer", shape=list(shape), **({} if dtype == "float32" else {"dtype": dtype}))
        for shape, dtype in sources
    ]
    builder.add(op, inputs, **attributes)
    return builder.graph()


def case_names() -> list[str]:
    return [f"{op}-{'-'.join(map(str, attributes.values()))}" for op, attributes, _ in CASES]


def constants_meet_data() -> OperatorGraph:
    """Constants of their own, and what is computed of them, joined to each example."""
    builder = GraphBuilder()
    tokens = builder.add("InputLayer", shape=[5], dtype="int64")
    table = builder.add("Constant", shape=[9, 4], weights=36)
    places = builder.add("Constant", shape=[5], dtype="int64")
    position = builder.add("Gather", [table, places], axis=0)
    last = builder.add("Add", [builder.add("Embedding", tokens, vocabulary=11, units=4), position])
    first = builder.add("Constant", shape=[1, 4], weights=4)
    last = builder.add("Concatenate", [first, last], axis=0)
    mask = builder.add("Constant", shape=[1, 6], dtype="bool")
    heads = builder.add("Transpose", builder.add("Reshape", last, shape=[6, 2, 2]), axes=[1, 0, 2])
    keys = builder.add("Expand", builder.add("Constant", shape=[6, 2], weights=12), shape=[2, 6, 2])
    last = builder.add("ScaledDotProductAttention", [heads, keys, heads, mask])
    last = builder.add("Copy", builder.add("Transpose", last, axes=[1, 0, 2]))
    last = builder.add("LayerNormalization", builder.add("Reshape", last, shape=[6, 4]))
    builder.add("Slice", last, axis=0, start=0, size=1, keepdims=False)
    return builder.graph()


def computed_places() -> OperatorGraph:
    """A lookup whose places are arithmetic on an input."""
    builder = GraphBuilder()
    tokens = builder.add("InputLayer", shape=[5], dtype="int64")
    last = builder.add("Elementwise", tokens, function="subtract")
    builder.add("Embedding", last, vocabulary=3, units=2)
    return builder.graph()


UNCASED = {"InputLayer", "Constant"}
assert {op for op, _, _ in CASES} == set(OPERATORS) - UNCASED
