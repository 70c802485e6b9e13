"""Networks in all formats whose captured graphs ``tests/golden/graphs.json`` holds, made without downloads.

Every operator and every kind of random architecture is written as a torch module, an ONNX model and a Keras model;
beside these stand modules, functions of ONNX and layers of Keras as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.architectures.drawing import ARCHITECTURES
from slotool.graphs.capture import capture_keras, capture_onnx, capture_torch
from slotool.graphs.torch_module import GraphModule
from tests.graphs.operator_cases import CASES, case_names, constants_meet_data, graph_of

FORMATS = ("torch", "onnx", "keras")


class NamedInputs(nn.Module):
    """A graph's module, whose inputs have names."""

    def __init__(self, graph: OperatorGraph):
        super().__init__()
        self.module = GraphModule(graph)

    def forward(self, a: Tensor, b: Any = None, c: Any = None, d: Any = None) -> Tensor:
        return self.module(*(each for each in (a, b, c, d) if each is not None))


def written(graph: OperatorGraph, form: str) -> OperatorGraph:
    """Return the graph captured of what ``graph`` is in another format. Raises ``GraphError`` where it has no such."""
    if form == "torch":
        shapes = {name: each.shape for name, each in zip("abcd", graph.inputs, strict=False)}
        types = {name: each.attributes.get("dtype") for name, each in zip("abcd", graph.inputs, strict=False)}
        return capture_torch(NamedInputs(graph), shapes, types)
    if form == "onnx":
        from slotool.graphs.onnx_model import onnx_model

        return capture_onnx(onnx_model(graph, 2)[0])
    import keras

    from slotool.graphs.keras_model import functional_model

    keras.utils.clear_session()
    return capture_keras(functional_model(graph, keras.ops.zeros))


def architectures() -> Iterator[tuple[str, OperatorGraph]]:
    """Yield the smallest network of each kind that can be drawn."""
    for name, kind in ARCHITECTURES.items():
        yield name, kind.graph((0,) * len(kind.sizes))


class Attention(nn.Module):
    """Self-attention written out, in windows that are folded into the batch."""

    def __init__(self, windows: int):
        super().__init__()
        self.windows, self.qkv, self.last = windows, nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        rows = x.view(batch * self.windows, steps // self.windows, width)
        query, key, value = self.qkv(rows).reshape(len(rows), -1, 3, 4, 4).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(query @ key.transpose(-2, -1) * 0.5, dim=-1)
        made = (scores @ value).transpose(1, 2).reshape(batch, steps, width)
        return x + self.last(made)


class ChannelsLast(nn.Module):
    """A block of ConvNeXt, whose channels go last and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.wide(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(functional.gelu(self.up(rows)))).permute(0, 3, 1, 2)


class Decoder(nn.Module):
    """A U of convolutions: pooling, resizing, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(16, 4, 1),
        )
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        skip = functional.relu(self.first(x))
        inner = functional.silu(self.inner(functional.max_pool2d(skip, 2)))
        small = functional.interpolate(functional.avg_pool2d(inner, 2), scale_factor=2.0, mode="bilinear")
        return self.last(torch.cat([skip, self.up(inner + small)], 1))


class Recommender(nn.Module):
    """Tables of several columns beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in (10, 20, 30))
        self.deep = nn.Sequential(nn.Linear(17, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids: Tensor, facts: Tensor) -> Tensor:
        columns = [table(ids[:, at]) for at, table in enumerate(self.tables)]
        return torch.sigmoid(self.deep(torch.cat([*columns, facts], 1)))


class Odd(nn.Module):
    """Calls that are rare or unknown."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.dense = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True), nn.Linear(10, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, (state, _) = self.lstm(x)
        made = self.dense(rows).cumsum(1).flip(1).roll(1, 1).clamp(-1, 1)
        best, _ = made.topk(2, dim=1)
        return torch.einsum("bij,bkj->bik", made, best).amax(1) + torch.fft.rfft(state[-1]).abs().sum(-1, True)


class ByValues(nn.Module):
    """A branch by values, of which the costlier counts."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 60), nn.Linear(60, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.small, self.large, (x,))


class Refused(nn.Module):
    """A layer that was quantised dynamically behind plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
        self.quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.quantised(self.layers(x))


MODULES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "attention": (lambda: Attention(1), (12, 16)),
    "attention in windows": (lambda: Attention(3), (12, 16)),
    "channels last": (ChannelsLast, (8, 6, 6)),
    "decoder": (Decoder, (3, 16, 16)),
    "recommender": (Recommender, {"ids": (3,), "facts": (5,)}),
    "odd calls": (Odd, (7, 6)),
    "a branch": (ByValues, (6,)),
    "quantised": (Refused, (3, 8, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (9, 16)),
    "transformer": (
        lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        {"src": (9, 16), "tgt": (5, 16)},
    ),
    "steps first": (lambda: nn.GRU(6, 5), (7, 6)),
    "volume": (lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.MaxPool3d(2)), (2, 6, 6, 6)),
    "sequence": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.GroupNorm(2, 6), nn.GELU(), nn.AvgPool1d(2)), (4, 12)),
    "half": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1)).half(), (6,)),
    "shuffled": (
        lambda: nn.Sequential(nn.ChannelShuffle(2), nn.PixelShuffle(2), nn.ZeroPad2d(1), nn.PReLU()),
        (8, 4, 4),
    ),
}  # fmt: skip


def layers_of_keras() -> Iterator[tuple[str, OperatorGraph]]:
    """Yield models of layers that are several operators, and of layers with a ``call`` of their own."""
    import keras

    layers, ops = keras.layers, keras.ops

    @keras.saving.register_keras_serializable("golden")
    class Gated(keras.layers.Layer):
        """Products with weights of its own."""

        def build(self, shape: Any) -> None:
            self.gate = self.add_weight(shape=(shape[-1], 8), name="gate")

        def call(self, x: Any) -> Any:
            return ops.sigmoid(ops.matmul(x, self.gate)) * ops.mean(x, axis=-1, keepdims=True)

    def ahead(*parts: Any, shape: tuple[int, ...] = (6, 8)) -> Any:
        keras.utils.clear_session()
        return capture_keras(keras.Sequential([keras.Input(shape), *parts]))

    image = (12, 12, 3)
    yield "keras gated", ahead(Gated(), layers.Dense(3))
    yield "keras lstm", ahead(layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.GRU(3))
    yield "keras images", ahead(
        layers.SeparableConv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(6.0),
        layers.Conv2DTranspose(4, 3, 2), layers.UpSampling2D(), layers.GlobalMaxPooling2D(), shape=image,
    )  # fmt: skip
    yield "keras patches", ahead(layers.Conv2D(8, 4, 4), layers.Reshape((9, 8)), Gated(), shape=image)
    yield "keras steps", ahead(layers.Conv1D(4, 3, padding="causal"), layers.LayerNormalization(), layers.Flatten())
    rows = keras.Input((6, 8))
    yield (
        "keras attention",
        capture_keras(
            keras.Model(rows, layers.EinsumDense("abc,cd->abd", (6, 4))(layers.MultiHeadAttention(2, 4)(rows, rows)))
        ),
    )


def captured(group: str, every: int = 1) -> Iterator[tuple[str, OperatorGraph]]:
    """Yield every so many networks of a group by name: a format of ``FORMATS``, "modules", "layers" or "drawn"."""
    if group == "drawn":
        yield from architectures()
    elif group == "modules":
        for name, (make, shape) in [*MODULES.items()][::every]:
            yield name, capture_torch(make(), shape)
    elif group == "layers":
        yield from layers_of_keras()
    else:
        # Several cases have one name: the last stands for them.
        graphs = [*dict(zip(case_names(), (graph_of(*case) for case in CASES), strict=True)).items()]
        for name, graph in [*graphs, ("constants", constants_meet_data()), *architectures()][::every]:
            try:
                yield name, written(graph, group)
            except GraphError:
                # The format has no such operator.
                continue


def applications(names: Any = "all") -> Iterator[tuple[str, OperatorGraph]]:
    """Yield members of ``keras.applications``."""
    from slotool.graphs.capture.loading import chosen_applications
    from slotool.graphs.capture.sources import Source, capture_source

    for name in chosen_applications(names):
        yield name, capture_source(Source("keras", name))


def facts(graph: OperatorGraph) -> list[Any]:
    """Return what the golden file holds of a graph: id, FLOPs, weights."""
    return [graph.id, graph.flops, graph.weights]
