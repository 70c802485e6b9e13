"""Every operator's shape, weights and products are torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from slotool.errors import GraphError
from slotool.graphs import OPERATORS, GraphBuilder, OperatorGraph
from slotool.graphs.encodings import MEASURES, operator_measures
from slotool.graphs.operators import Effect, infer, resolve

# Operator, attributes, shapes of its inputs without the batch, and the same in torch.
CASES: list[tuple[str, dict[str, Any], list[tuple[int, ...]], Callable[..., Any]]] = [
    ("MatMul", {}, [(3, 5, 4), (3, 4, 6)], torch.matmul),
    ("MatMul", {}, [(3, 5, 4), (1, 4, 6)], torch.matmul),
    ("Conv1D", {"filters": 6, "kernel": 3, "stride": 2, "padding": 1, "groups": 2}, [(4, 9)],
     nn.Conv1d(4, 6, 3, 2, 1, groups=2)),
    ("Conv3D", {"filters": 6, "kernel": [1, 3, 3], "padding": [0, 1, 1], "bias": False}, [(4, 5, 6, 7)],
     nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 1, 1), bias=False)),
    ("Conv1DTranspose", {"filters": 6, "kernel": 4, "stride": 2, "padding": 1}, [(4, 9)],
     nn.ConvTranspose1d(4, 6, 4, 2, 1)),
    ("Conv2DTranspose", {"filters": 6, "kernel": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
     [(4, 9, 7)], nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2)),
    ("Conv3DTranspose", {"filters": 2, "kernel": 2, "stride": 2}, [(4, 3, 3, 3)], nn.ConvTranspose3d(4, 2, 2, 2)),
    ("MaxPooling2D", {"kernel": 3, "stride": 2, "ceil": True}, [(4, 8, 6)], nn.MaxPool2d(3, 2, ceil_mode=True)),
    ("MaxPooling2D", {"kernel": 2, "stride": 2, "padding": 1, "ceil": True}, [(4, 8, 7)],
     nn.MaxPool2d(2, 2, 1, ceil_mode=True)),
    ("MaxPooling2D", {"kernel": 2, "stride": 1, "dilation": 3}, [(4, 8, 7)], nn.MaxPool2d(2, 1, dilation=3)),
    ("MaxPooling1D", {"kernel": 3}, [(4, 9)], nn.MaxPool1d(3)),
    ("MaxPooling3D", {"kernel": 2}, [(4, 4, 6, 6)], nn.MaxPool3d(2)),
    ("AveragePooling1D", {"kernel": 3, "stride": 2, "padding": 1, "count_padding": False}, [(4, 9)],
     nn.AvgPool1d(3, 2, 1, count_include_pad=False)),
    ("AveragePooling3D", {"kernel": [1, 2, 2]}, [(4, 4, 6, 6)], nn.AvgPool3d((1, 2, 2))),
    ("AdaptivePooling", {"size": [3, 5]}, [(4, 7, 7)], nn.AdaptiveAvgPool2d((3, 5))),
    ("Resize", {"size": [9, 5], "mode": "linear"}, [(4, 7, 7)], lambda x: F.interpolate(x, (9, 5), mode="bilinear")),
    ("GridSample", {}, [(4, 7, 7), (3, 5, 2)], lambda x, g: F.grid_sample(x, g, align_corners=False)),
    ("PixelShuffle", {"factor": 2}, [(8, 3, 5)], nn.PixelShuffle(2)),
    ("PixelUnshuffle", {"factor": 2}, [(2, 6, 10)], nn.PixelUnshuffle(2)),
    ("Unfold", {"kernel": 3, "padding": 1, "stride": 2}, [(4, 6, 6)], nn.Unfold(3, padding=1, stride=2)),
    ("Fold", {"size": [6, 6], "kernel": 2, "stride": 2}, [(16, 9)], nn.Fold((6, 6), 2, stride=2)),
    ("ScaledDotProductAttention", {}, [(4, 6, 8), (4, 5, 8), (4, 5, 3)], F.scaled_dot_product_attention),
    ("ScaledDotProductAttention", {}, [(4, 6, 8), (4, 5, 8), (4, 5, 3), (1, 6, 5)], F.scaled_dot_product_attention),
    ("LSTM", {"units": 5, "layers": 2, "bidirectional": True}, [(7, 3)],
     nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True)),
    ("LSTM", {"units": 5, "projection": 2, "layers": 2, "bidirectional": True}, [(7, 3)],
     nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True, proj_size=2)),
    ("GRU", {"units": 5, "bias": False}, [(7, 3)], nn.GRU(3, 5, bias=False, batch_first=True)),
    ("SimpleRNN", {"units": 5}, [(7, 3)], nn.RNN(3, 5, batch_first=True)),
    ("LayerNormalization", {"axes": [-2, -1]}, [(7, 3, 4)], nn.LayerNorm((3, 4))),
    ("LayerNormalization", {"axes": [2], "center": False}, [(7, 3, 4)], nn.LayerNorm(4, bias=False)),
    ("RMSNormalization", {}, [(7, 3)], nn.RMSNorm(3)),
    ("GroupNormalization", {"groups": 2}, [(4, 5, 5)], nn.GroupNorm(2, 4)),
    ("LocalResponseNormalization", {"size": 3}, [(4, 5, 5)], nn.LocalResponseNorm(3)),
    ("PReLU", {}, [(4, 5, 5)], nn.PReLU(4)),
    ("PReLU", {"shared": True}, [(4, 5, 5)], nn.PReLU()),
    ("Softmax", {"axis": 1}, [(4, 5, 6)], nn.Softmax(2)),
    ("Add", {}, [(4, 5, 6), (6,)], lambda x, y: x + y[:, None, None]),
    ("Elementwise", {"function": "power"}, [(4, 5)], lambda x: x**3),
    ("Elementwise", {"function": "divide"}, [(4, 5), (4, 1)], torch.divide),
    ("Where", {}, [(4, 5), (1, 5)], lambda x, y: torch.where(x > 0, y, 0.0)),
    ("Cast", {"dtype": "float16"}, [(4, 5)], lambda x: x.half()),
    ("Mean", {"axes": [0, -1]}, [(4, 5, 6)], lambda x: x.mean((1, 3))),
    ("Sum", {"axes": [1], "keepdims": True}, [(4, 5, 6)], lambda x: x.sum(2, keepdim=True)),
    ("Max", {"axes": [0]}, [(4,)], lambda x: x.amax(1)),
    ("Variance", {"axes": [0]}, [(4, 5)], lambda x: x.var(1)),
    ("ArgMax", {"axes": [0]}, [(4, 5)], lambda x: x.argmax(1)),
    ("CumulativeSum", {"axis": -1}, [(4, 5)], lambda x: x.cumsum(-1)),
    ("Sort", {"axis": 0}, [(4, 5)], lambda x: x.sort(1).values),
    ("TopK", {"k": 2, "axis": -1}, [(4, 5)], lambda x: x.topk(2).values),
    ("Transpose", {"axes": [2, 0, 1]}, [(4, 5, 6)], lambda x: x.permute(0, 3, 1, 2)),
    ("Slice", {"axis": 1, "start": 1, "size": 2, "step": 3}, [(4, 5)], lambda x: x[:, :, 1:5:3]),
    ("Slice", {"axis": 0, "start": 3, "size": 1, "keepdims": False}, [(4, 5)], lambda x: x[:, 3]),
    ("Expand", {"shape": [3, 4, 5]}, [(4, 1)], lambda x: x[:, None].expand(-1, 3, 4, 5)),
    ("Copy", {}, [(4, 5)], torch.clone),
    ("Concatenate", {"axis": 1}, [(4, 5, 6), (4, 2, 6)], lambda x, y: torch.cat([x, y], 2)),
    ("Stack", {"axis": -1}, [(4, 5), (4, 5)], lambda x, y: torch.stack([x, y], -1)),
    ("Repeat", {"repeats": [2, 3]}, [(4, 5)], lambda x: x.repeat(1, 2, 3)),
    ("Pad", {"pads": [0, 1, 2, 3], "mode": "reflect"}, [(4, 5)],
     lambda x: F.pad(F.pad(x, (1, 3), "reflect").mT, (0, 2), "reflect").mT),
    ("Roll", {"shifts": [1], "axes": [0]}, [(4, 5)], lambda x: x.roll(1, 1)),
    ("Flip", {"axes": [1]}, [(4, 5)], lambda x: x.flip(2)),
    ("Gather", {"axis": 0}, [(4, 5), (2, 3)], lambda x, i: x[:, torch.zeros(2, 3, dtype=torch.int64)]),
    ("GatherElements", {"axis": 1}, [(4, 5), (4, 2)], lambda x, i: x.gather(2, i.long())),
    ("Scatter", {"axis": 1}, [(4, 5), (4, 2), (4, 2)], lambda x, i, u: x.scatter(2, i.long(), u)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("op", "attributes", "shapes", "in_torch"), CASES, ids=[case[0] for case in CASES])
def test_an_operator_does_what_torch_does(op: str, attributes: dict, shapes: list, in_torch: Callable) -> None:
    effect = infer(op, attributes, shapes)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        answer = in_torch(*(torch.zeros(2, *shape) for shape in shapes))
    answer = answer[0] if isinstance(answer, tuple) else answer
    assert effect.shape == tuple(answer.shape[1:])
    assert effect.weights == (sum(p.numel() for p in in_torch.parameters()) if isinstance(in_torch, nn.Module) else 0)
    if OPERATORS[op].is_product and op not in ("ScaledDotProductAttention", "LSTM", "GRU", "SimpleRNN"):
        assert 2 * effect.flops == counter.get_total_flops()
    # One form of the attributes, and it means the same.
    kept, _ = resolve(op, attributes, shapes)
    assert resolve(op, kept, shapes) == (kept, effect)


def test_attention_counts_both_products_over_all_scores() -> None:
    effect = infer("ScaledDotProductAttention", {"causal": True}, [(8, 6, 16), (2, 5, 16), (2, 5, 12)])
    assert (effect.shape, effect.flops) == ((8, 6, 12), 2 * 8 * 6 * 5 * (16 + 12))


def test_recurrent_layers_count_their_products() -> None:
    assert infer("LSTM", {"units": 5}, [(7, 3)]).flops == 7 * 4 * 5 * 2 * (3 + 5)
    assert infer("GRU", {"units": 5, "layers": 2}, [(7, 3)]).flops == 7 * 3 * 5 * 2 * (3 + 5 + 5 + 5)


def test_views_move_nothing_and_copies_twice_their_size() -> None:
    for op, attributes in {
        "Reshape": {"shape": [20]}, "Flatten": {}, "Transpose": {"axes": [1, 0]}, "Slice": {"axis": 0, "size": 2},
        "Expand": {"shape": [3, 4, 5]},
    }.items():  # fmt: skip
        assert infer(op, attributes, [(4, 5)]).moved == 0
    builder = GraphBuilder()
    builder.add("Copy", builder.add("Transpose", builder.add("InputLayer", shape=[4, 5]), axes=[1, 0]))
    assert [operator.moved_bytes for operator in builder.graph().operators] == [0, 0, 4 * 2 * 20]
    # An embedding reads the rows that it is asked for, not its table.
    assert infer("Embedding", {"vocabulary": 1000, "units": 8}, [(6,)]).moved == 6 + 2 * 6 * 8


def bert_like() -> OperatorGraph:
    """One head block on tokens and a mask."""
    builder = GraphBuilder("torch", "bert-like")
    tokens = builder.add("InputLayer", shape=[6], dtype="int64", name="tokens")
    mask = builder.add("InputLayer", shape=[1, 1, 6], dtype="bool", name="mask")
    places = builder.add("Constant", shape=[6, 8], weights=48)
    x = builder.add("Add", [builder.add("Embedding", tokens, vocabulary=30, units=8), places])
    heads = builder.add("Transpose", builder.add("Reshape", x, shape=[6, 2, 4]), axes=[1, 0, 2])
    attended = builder.add(
        "ScaledDotProductAttention", [heads, heads, heads, builder.add("Reshape", mask, shape=[1, 6])]
    )
    joined = builder.add(
        "Reshape", builder.add("Copy", builder.add("Transpose", attended, axes=[1, 0, 2])), shape=[6, 8]
    )
    builder.add("LayerNormalization", joined)
    return builder.graph()


def test_a_network_of_several_inputs_with_types_comes_back() -> None:
    graph = bert_like()
    assert [(o.name, o.shape, o.attributes.get("dtype")) for o in graph.inputs] == [
        ("tokens", (6,), "int64"), ("mask", (1, 1, 6), "bool"),
    ]  # fmt: skip
    assert graph.weights == 30 * 8 + 48 + 16
    again = OperatorGraph.from_document(graph.document())
    assert again == graph
    assert again.id == graph.id
    measures = operator_measures(graph)
    assert measures.shape[0] == len(graph.operators)
    assert all(math.isfinite(value) for value in measures.ravel())


@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "why"),
    [
        ("MatMul", {}, [(4, 5), (4, 5)], "cannot be multiplied"),
        ("ScaledDotProductAttention", {}, [(4, 6, 8), (3, 5, 8), (3, 5, 8)], "cannot take inputs"),
        ("Transpose", {"axes": [0, 0]}, [(4, 5)], "Transpose cannot take"),
        ("Slice", {"axis": 0, "start": 3, "size": 2}, [(4, 5)], "no such 2 values"),
        ("Softmax", {"axis": 2}, [(4, 5)], "Softmax cannot take"),
        ("Elementwise", {"function": "frobnicate"}, [(4, 5)], "unknown function"),
        ("InputLayer", {"shape": [3], "dtype": "float31"}, [], "dtype cannot be"),
        ("Stack", {"axis": 0}, [(4, 5), (4, 6)], "do not fit each other"),
        ("Expand", {"shape": [3, 5]}, [(4, 5)], "does not stretch|do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(op: str, attributes: dict, shapes: list, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        infer(op, attributes, shapes)


@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "expected"),
    [
        ("Conv1D", {"filters": 6, "kernel": 3}, [(4, 9)], (4, 6)),
        ("MatMul", {}, [(3, 5, 4), (3, 4, 6)], (4, 6)),
        ("ScaledDotProductAttention", {}, [(2, 6, 8)] * 3, (8, 8)),
    ],
)
def test_an_operator_is_encoded_by_the_axis_of_its_features(
    op: str, attributes: dict, shapes: list, expected: tuple[int, int]
) -> None:
    builder = GraphBuilder()
    builder.add(op, [builder.add("InputLayer", shape=list(shape)) for shape in shapes], **attributes)
    measured = dict(zip(MEASURES, operator_measures(builder.graph())[-1], strict=True))
    assert (measured["channels_in"], measured["channels_out"]) == expected


def test_a_view_is_encoded_without_bytes() -> None:
    builder = GraphBuilder()
    builder.add("Transpose", builder.add("InputLayer", shape=[4, 5]), axes=[1, 0])
    measured = dict(zip(MEASURES, operator_measures(builder.graph())[-1], strict=True))
    assert (measured["input_bytes"], measured["output_bytes"]) == (0, 0)


def test_an_operator_that_two_networks_state_alike_is_measured_by_the_inputs_of_each() -> None:
    small, large = GraphBuilder(), GraphBuilder()
    for builder, units in ((small, 8), (large, 64)):
        builder.add("InputLayer", shape=[units], name="x")
        builder.add("Foreign", "x", name="y", stated=Effect((4,), weights=0, flops=1))
    graphs = [small.graph(), large.graph()]
    assert graphs[0].operators[1] == graphs[1].operators[1]
    assert [dict(zip(MEASURES, operator_measures(graph)[1], strict=True))["input_bytes"] for graph in graphs] == [
        32,
        256,
    ]


def recurrent(op: str, **attributes: Any) -> Any:
    builder = GraphBuilder()
    builder.add(op, builder.add("InputLayer", shape=[10, 64]), **attributes)
    return builder.graph().operators[-1]


def test_a_recurrent_layer_waits_for_each_step_and_reads_large_weights_again() -> None:
    small, projected, gated = (
        recurrent("LSTM", units=32),
        recurrent("LSTM", units=32, projection=8),
        recurrent("GRU", units=32),
    )
    assert (small.calls, projected.calls, gated.calls) == (1, 11, 11)
    assert recurrent("GRU", units=32, layers=2, bidirectional=True).calls == 41
    assert small.moved == 10 * (64 + 32)
    large = recurrent("LSTM", units=2048)
    assert large.moved > 10 * (64 + 2048) + 9 * (4 * 2048 * 2048 - 2**23)
