"""Networks of several inputs, whole numbers among them: masks as transformers make them, and types found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_torch
from slotool.graphs.indices import Indices
from slotool.graphs.torch_module import GraphModule


def run(graph: OperatorGraph) -> None:
    """On one example and on three."""
    module, indices, rng = GraphModule(graph).eval(), Indices(graph), np.random.default_rng(0)
    for batch in (1, 3):
        values = [torch.from_numpy(indices.filled(operator, rng, batch)) for operator in graph.inputs]
        with torch.no_grad():
            assert tuple(module(*values).shape) == (batch, *graph.output_shape)


class Masked(nn.Module):
    """Attention under a mask that is looked up by the numbers of examples and of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(50, 8), nn.Embedding(20, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch, steps = input_ids.shape
        allowed = attention_mask.to(torch.bool)
        rows = torch.arange(batch)[:, None, None, None]
        columns = torch.arange(steps)[None, None, None, :]
        causal = columns <= torch.arange(steps)[None, None, :, None]
        mask = allowed[rows, columns] & causal
        # Positions count what is not padding.
        places = (torch.cumsum(input_ids.ne(1).int(), dim=1) * input_ids.ne(1)).long() + 1
        x = (self.table(input_ids) + self.positions(places)).unflatten(-1, (2, 4)).transpose(1, 2)
        return functional.scaled_dot_product_attention(x, x, x, mask)


def test_an_attention_mask_is_captured_and_run() -> None:
    graph = capture_torch(Masked(), {"input_ids": (10,), "attention_mask": (10,)})
    assert not graph.unknown
    assert graph.flops_mismatch == 0
    assert [operator.attributes.get("dtype") for operator in graph.inputs] == ["int64", "int64"]
    run(graph)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(50, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return self.linear(x) + self.table(ids).sum(1)


class Looking(nn.Module):
    """Without an embedding."""

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        return x.sigmoid().gather(1, place)


@pytest.mark.parametrize(
    ("module", "shapes", "whole"),
    [(Mixed(), {"x": (8,), "ids": (5,)}, "ids"), (Looking(), {"x": (8,), "place": (3,)}, "place")],
    ids=["embedding", "gather"],
)
def test_which_of_several_inputs_are_whole_numbers_is_found_out(module: nn.Module, shapes: dict, whole: str) -> None:
    graph = capture_torch(module, shapes)
    assert {operator.name: operator.attributes.get("dtype") for operator in graph.inputs} == {
        name: "int64" if name == whole else None for name in shapes
    }
    run(graph)


def test_types_that_do_not_fit_are_refused_with_the_way_out() -> None:
    with pytest.raises(GraphError, match=r"cannot run on inputs of .*--input-dtype 'ids=int64"):
        capture_torch(Mixed(), {"x": (8,), "ids": (5,)}, {"x": "float32", "ids": "float32"})
    with pytest.raises(GraphError, match=r"multiplies int64 and float32 in linear.*--input-dtype float32"):
        capture_torch(nn.Linear(8, 4), (8,), "int64")


class Both(nn.Module):
    """Runs on whole numbers everywhere, and on a float input beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(16, 8), nn.Embedding(50, 8)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return self.linear(x * 0.5) + self.table(words).mean(1)


def test_a_float_input_stays_float_where_that_runs() -> None:
    graph = capture_torch(Both(), {"x": (16,), "words": (5,)})
    assert [operator.attributes.get("dtype") for operator in graph.inputs] == [None, "int64"]
    assert graph.id == capture_torch(Both(), {"x": (16,), "words": (5,)}, {"words": "int64"}).id


class Positions(nn.Module):
    def __init__(self, *, sliced: bool) -> None:
        super().__init__()
        self.table, self.positions, self.sliced = nn.Embedding(50, 8), nn.Embedding(12, 8), sliced

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        return self.table(ids) + (
            self.positions.weight[:length] if self.sliced else self.positions(torch.arange(length))
        )


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("dtype", [None, "int64"])
def test_more_tokens_than_its_context_are_refused_with_the_reason_of_torch(sliced: bool, dtype: str | None) -> None:
    module = Positions(sliced=sliced)
    assert not capture_torch(module, (12,), dtype).unknown
    with pytest.raises(RuntimeError if sliced else IndexError) as raised:
        module(torch.zeros(2, 13, dtype=torch.int64))
    with pytest.raises(GraphError) as refused:
        capture_torch(module, (13,), dtype)
    assert str(raised.value) in str(refused.value)


class OfWindows(nn.Module):
    """Windows of an image that are folded with the batch, as heads and tokens of hybrid networks are."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        answer = self.layer(x.flatten(0, 1))
        return (answer[0] if isinstance(answer, tuple) else answer).unflatten(0, (-1, 3))


@pytest.mark.parametrize(
    ("layer", "shape", "operators"),
    [
        (nn.Conv2d(4, 6, 3, 2, 1), (3, 4, 9, 8), ["Transpose", "Conv3D", "Transpose"]),
        (nn.Conv1d(4, 8, 3, groups=4), (3, 4, 9), ["Transpose", "DepthwiseConv2D", "Transpose"]),
        (nn.MaxPool2d(3, 2, 1), (3, 4, 9, 8), ["Reshape", "MaxPooling2D", "Reshape"]),
        (nn.Upsample(scale_factor=2), (3, 4, 5, 6), ["Reshape", "Resize", "Reshape"]),
        (nn.LSTM(6, 5, bidirectional=True, batch_first=True), (3, 7, 6), ["LSTM"]),
        (nn.GRU(6, 5, 2, batch_first=True), (3, 7, 6), ["GRU"]),
    ],
    ids=["conv2d", "depthwise", "pooling", "resize", "lstm", "gru"],
)
def test_windows_that_are_folded_with_the_batch_are_known(
    layer: nn.Module, shape: tuple[int, ...], operators: list[str]
) -> None:
    graph = capture_torch(OfWindows(layer), shape)
    assert [operator.op for operator in graph.operators[1:]] == operators
    assert graph.weights == sum(each.numel() for each in layer.parameters())
    assert graph.flops_mismatch == 0
    run(graph)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("more", [{}, {"bias": False}, {"num_layers": 3, "bidirectional": True}])
def test_a_projection_of_an_lstm_is_known(more: dict) -> None:
    layer = nn.LSTM(6, 5, proj_size=2, batch_first=True, **more)
    graph = capture_torch(OfWindows(layer), (3, 7, 6))
    (lstm,) = graph.operators[1:]
    assert (lstm.op, lstm.attributes["units"], lstm.attributes["projection"]) == ("LSTM", 5, 2)
    assert graph.weights == sum(each.numel() for each in layer.parameters())
    # torch counts an LSTM by its parts.
    assert graph.flops_mismatch == 0
    run(graph)


def test_parts_of_one_matrix_are_as_many_weights_as_the_whole() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    graph = capture_torch(layer, {"query": (5, 8), "key": (5, 8), "value": (5, 8)})
    assert graph.weights == sum(each.numel() for each in layer.parameters())
    assert graph.shared_weights == 0


class Everything(nn.Module):
    """Steps and batch in an order that is not the one that the layer takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def test_a_layer_that_takes_the_batch_for_steps_is_reported_with_what_to_do() -> None:
    from slotool import capture

    found = capture(Everything(), input_shape=(7, 6))
    assert found.graphs[0].examples_interact
    assert any("give it batch_first=True" in sentence for sentence in found.warnings)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("last", [False, True])
def test_a_dynamically_quantised_recurrent_layer_is_known(last: bool) -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.LSTM(6, 5, 2, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            every, _ = self.layer(x)
            return self.head(every[:, -1] if last else every)

    module = Text().eval()
    quantised = torch.ao.quantization.quantize_dynamic(module, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    graph, original = capture_torch(quantised, (7, 6)), capture_torch(module, (7, 6))
    assert not graph.unknown
    assert graph.element_type == "int8"
    assert (graph.weights, graph.matrix_flops) == (original.weights, original.matrix_flops)


def test_experts_that_values_choose_are_refused_in_a_sentence() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            chosen, out = x.argmax(-1) % 2, torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (rows,) = torch.where(chosen == number)
                out.index_add_(0, rows, expert(x[rows]))
            return out

    with pytest.raises(GraphError, match="depends on the values of its input"):
        capture_torch(Experts(), (6,))
