"""The batch is followed wherever a network puts it: FLOPs are those of torch's own counter, never silently short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_torch
from slotool.graphs.capture.batch_axis import axis_of, batch_size, share_of
from slotool.predictors.features.domain import Domain


def counted(module: nn.Module, example: torch.Tensor) -> int:
    """FLOPs of one example as torch counts them while the module runs on it, attention by its two products."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            torch.no_grad(),
            nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):
            module.eval()(example)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return int(counter.get_total_flops())


class VisionBlock(nn.Module):
    """Patches, a class token, and one transformer block, as a vision transformer has them."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.zeros(1, 17, 32))
        self.norm, self.attention = nn.LayerNorm(32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head((x + self.mlp(x))[:, 0])


class Windows(nn.Module):
    """Attention within windows that are folded into the batch, on images with their channels last, as Swin has it."""

    def __init__(self, channels: int = 16, window: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.window, self.heads = window, heads
        self.stem = nn.Conv2d(3, channels, 2, stride=2)
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 3 * channels),
            nn.Linear(channels, channels),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        x = x + self._attend(self.norm(x))
        return (x + self.mlp(x)).permute(0, 3, 1, 2)

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, height, width, channels = x.shape
        side, n = self.window, self.window**2
        x = x.view(batch, height // side, side, width // side, side, channels)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, n, channels)
        q, k, v = self.qkv(x).reshape(len(x), n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        x = self.out(x.transpose(1, 2).reshape(-1, n, channels))
        x = x.view(batch, height // side, width // side, side, side, channels)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)


class SequenceFirst(nn.Module):
    """A transformer layer that wants the batch second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


class Translator(nn.Module):
    """An encoder and a decoder whose mask torch compares with the causal one, value by value."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.both(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))


class Language(nn.Module):
    """A small causal language model with its weights transposed and its batch folded into the steps, as GPT-2's are."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(12, 32)
        self.weight, self.bias = nn.Parameter(torch.zeros(32, 96)), nn.Parameter(torch.zeros(96))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        qkv = torch.addmm(self.bias, self.norm(x).view(-1, 32), self.weight).view(*x.shape[:2], 3, 4, 8)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + y.transpose(1, 2).reshape(x.shape))


class Lines(nn.Module):
    """Operators of one and three dimensions, a product with a matrix of weights, and a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv1d(8, 16, 3, padding=1), nn.ConvTranspose1d(16, 8, 2, stride=2)
        self.weight, self.rnn = nn.Parameter(torch.zeros(8, 4)), nn.GRU(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(self.up(self.conv(x)).transpose(1, 2) @ self.weight)[0]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "vision": (VisionBlock, (3, 16, 16), torch.float32),
    "windows": (Windows, (3, 16, 16), torch.float32),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (9, 32), torch.float32),
    "sequence first": (SequenceFirst, (9, 32), torch.float32),
    "translator": (Translator, (9, 32), torch.float32),
    "language": (Language, (12,), torch.int64),
    "lines": (Lines, (8, 10), torch.float32),
}


def captured(name: str) -> OperatorGraph:
    make, shape, _ = NETWORKS[name]
    return capture_torch(make(), shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_flops_are_those_of_torchs_own_counter(name: str) -> None:
    make, shape, dtype = NETWORKS[name]
    graph, referee = captured(name), counted(make(), torch.zeros(1, *shape, dtype=dtype))
    assert graph.matrix_flops == pytest.approx(referee, rel=0.01)
    assert graph.counted_flops == referee
    assert graph.uncounted_flops_share < 0.01
    assert graph.weights == sum(parameter.numel() for parameter in make().parameters())


@pytest.mark.parametrize(("name", "units"), [("vision", 3 * 32), ("windows", 3 * 16), ("sequence first", 3 * 32)])
def test_the_projection_before_attention_is_a_known_layer_of_its_true_cost(name: str, units: int) -> None:
    """The layer that was short by the number of steps or windows, and counted as known."""
    (projection,) = (o for o in captured(name).operators if o.op == "Dense" and o.attributes["units"] == units)
    positions = {"vision": 17, "windows": 64, "sequence first": 9}[name]
    assert projection.flops == 2 * positions * (units // 3) * units


def test_attention_is_known_and_costs_the_square_of_the_length() -> None:
    graph = captured("language")
    (attention,) = (o for o in graph.operators if o.op == "ScaledDotProductAttention")
    assert attention.attributes == {"causal": True}
    assert attention.flops == 2 * 2 * 4 * 12 * 12 * 8
    assert not graph.unknown


class Copies(nn.Module):
    """A transpose that stays a view, and one that cannot."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.transpose(1, 2)).softmax(-1).transpose(1, 2).reshape(len(x), -1)


def test_a_reshape_that_cannot_be_a_view_copies() -> None:
    graph = capture_torch(Copies(), (5, 7))
    assert [o.op for o in graph.operators] == [
        "InputLayer", "Transpose", "MatMul", "Softmax", "Transpose", "Copy", "Flatten",
    ]  # fmt: skip
    assert [o.moved for o in graph.operators if o.op in ("Transpose", "Copy", "Flatten")] == [0, 0, 2 * 25, 0]


class AcrossTheBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x - x.mean(0)) @ torch.ones(4, 4) @ (x.T @ x)[:4]


def test_where_the_batch_is_lost_the_operator_is_unknown() -> None:
    graph = capture_torch(AcrossTheBatch(), (6,))
    unknown = {operator.op for operator in graph.unknown}
    assert {"torch.mean", "torch.sub", "torch.slice"} & unknown
    assert all(not operator.known for operator in graph.operators if "mean" in operator.inputs)


def convolution_to_61() -> nn.Module:
    """Its images are of 61 × 61, the first prime that a batch is traced with."""
    return nn.Sequential(nn.Conv2d(3, 8, 4), nn.Conv2d(8, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 61 * 61, 3))


class ClassToken(nn.Module):
    """60 patches and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([self.token.expand(len(x), -1, -1), x], 1))[:, 0]


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (convolution_to_61, (3, 64, 64)),
        (ClassToken, (60, 16)),
        (lambda: nn.Conv1d(4, 8, 3), (4, 63)),
    ],
)
def test_a_size_within_that_is_a_multiple_of_the_batch_is_not_taken_for_it(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    graph, referee = capture_torch(make(), shape), counted(make(), torch.zeros(1, *shape))
    assert graph.matrix_flops == graph.counted_flops == referee
    assert not [operator.op for operator in graph.unknown if "conv" in operator.op and "1d" not in operator.op]
    assert not graph.examples_interact


class OneByOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.linear(x[i : i + 1]) for i in range(x.shape[0])])


class Gram(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (x.t() @ x)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(OneByOne, (12,)), (Gram, (12,)), (lambda: nn.TransformerEncoderLayer(16, 2, 32), (5, 16))],
)
def test_examples_that_interact_are_reported(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    graph = capture_torch(make(), shape)
    assert graph.examples_interact
    assert OperatorGraph.from_document(graph.document()).examples_interact


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(32, 4)), nn.Parameter(torch.zeros(4, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.a @ self.b)


def test_a_product_of_weights_counts_once() -> None:
    graph = capture_torch(LowRank(), (32,))
    assert graph.matrix_flops == graph.counted_flops == 2 * 32 * 4 * 32 + 2 * 32 * 32
    assert not graph.examples_interact


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 4), st.integers(1, 9),
    st.lists(st.integers(1, 3000), max_size=6),
)  # fmt: skip
def test_a_share_has_the_elements_of_one_example(rest: list[int], axis: int, windows: int, others: list[int]) -> None:
    batch = batch_size([rest, others, [windows]])
    assert all(size % batch for size in (*rest, *others, windows)) or batch == 251
    at = min(axis, len(rest))
    share = share_of([*rest[:at], batch * windows, *rest[at:]], batch)
    assert share is not None
    assert torch.Size(share).numel() == torch.Size(rest).numel() * windows
    assert axis_of([*rest[:at], batch * windows, *rest[at:]], batch) == (at, windows)
    assert share_of(rest, batch) is None
    assert share_of([batch, *rest, batch], batch) is None


def test_a_graph_of_too_many_flops_or_of_examples_that_interact_gets_no_interval() -> None:
    graph = capture_torch(nn.Linear(8, 4), (8,))
    domain = Domain.of([graph])
    right, wrong, mixed = domain.distances(
        [graph, replace(graph, counted_flops=graph.matrix_flops // 2), replace(graph, examples_interact=True)]
    )
    assert right.too_far() is None
    assert "the graph counts 2 times the FLOPs of the framework's own counter" in (wrong.too_far() or "")
    assert "examples of a batch interact" in (mixed.too_far() or "")
