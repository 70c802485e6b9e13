"""Images with their channels last are encoded by what they are; encodings of the shipped networks stay as they were."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.capture import capture_torch
from slotool.graphs.encodings import MEASURES, operator_measures
from slotool.graphs.generators import BLOCKS
from slotool.graphs.store import read_graphs
from slotool.graphs.torch_module import GraphModule

DATASETS = Path(__file__).parents[2] / "datasets"


class ConvNeXt(nn.Module):
    """A ConvNeXt block as torchvision and timm have it: norm and linear layers on images turned to channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return self.scale * y.permute(0, 3, 1, 2) + x


class ScaledLast(ConvNeXt):
    """The same, scaled before it is turned back, with other names for turning."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mlp(self.norm(self.depthwise(x).movedim(1, -1).contiguous()))
        return (self.scale.flatten() * y).moveaxis(-1, 1) + x


def channels_first() -> OperatorGraph:
    builder = GraphBuilder()
    BLOCKS["convnext"](builder, builder.add("InputLayer", shape=[24, 14, 14]), 24, {})
    return capture_torch(GraphModule(builder.graph()), (24, 14, 14))


@pytest.mark.parametrize("kind", [ConvNeXt, ScaledLast])
def test_a_block_on_channels_last_is_the_graph_of_one_on_channels_first(kind: type[ConvNeXt]) -> None:
    graph = capture_torch(kind(24), (24, 14, 14))
    assert [o.op for o in graph.operators] == [o.op for o in channels_first().operators]
    assert graph.id == channels_first().id
    assert not graph.unknown


class OnPixels(nn.Module):
    """Pooling, joining and softmax with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 8), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        return torch.cat([self.left(x), self.right(x)], dim=-1).softmax(-1).mean((1, 2))


def test_what_works_along_the_channels_finds_them_last() -> None:
    graph = capture_torch(OnPixels(), (6, 9, 7))
    found = [(o.op, o.shape) for o in graph.operators]
    assert found == [
        ("InputLayer", (6, 9, 7)), ("Conv2D", (8, 9, 7)), ("Conv2D", (4, 9, 7)), ("Concatenate", (12, 9, 7)),
        ("Softmax", (12, 9, 7)), ("GlobalAveragePooling2D", (12,)),
    ]  # fmt: skip


@pytest.mark.parametrize(("shape", "positions"), [((12, 24), 12), ((5, 7, 24), 35), ((24,), 1)])
def test_a_dense_layer_is_encoded_by_its_features(shape: tuple[int, ...], positions: int) -> None:
    builder = GraphBuilder()
    builder.add("Dense", builder.add("InputLayer", shape=list(shape)), units=48)
    (_, dense) = operator_measures(builder.graph())
    measured = dict(zip(MEASURES, dense, strict=True))
    assert (measured["channels_in"], measured["channels_out"], measured["positions"]) == (24, 48, positions)
    # 24 channels take two groups of lanes, 48 fill theirs.
    assert measured["padded_flops"] == measured["flops"] * 32 / 24


@pytest.mark.parametrize(
    ("name", "count", "digest"),
    [
        ("random-networks-blocks", 300, "bd05b9d8d920b568"),
        ("random-networks-cnns", 300, "eb31f10e9d6a6168"),
        ("random-networks-mlps", 300, "535282e72575b272"),
        ("keras-applications-graphs", 40, "d5e0712af90610d9"),
    ],
)
def test_encodings_of_the_shipped_networks_are_those_the_predictors_were_trained_on(
    name: str, count: int, digest: str
) -> None:
    content = hashlib.sha256()
    for graph in islice(read_graphs(DATASETS / f"{name}.parquet"), count):
        content.update(operator_measures(graph).tobytes())
    assert content.hexdigest()[:16] == digest
