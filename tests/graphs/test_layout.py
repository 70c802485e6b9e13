"""How values lie in memory, against the strides that torch gives them."""

from __future__ import annotations

import pytest
import torch
from torch._prims_common import suggest_memory_format

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.layout import Layout, distinct_layouts
from slotool.graphs.torch_module import GraphModule


def layouts_of(graph: OperatorGraph) -> list[Layout]:
    found, numbers = distinct_layouts([graph])
    return [found[number][1] for number in numbers]


def patches() -> OperatorGraph:
    """An image as a sequence; back as an image by a reshape, and by a transpose alone; convolved and added to one that
    never left its order. Of one example the reshape loses what tells torch of channels last."""
    b = GraphBuilder("hybrid")
    image = b.add("Conv2D", b.add("InputLayer", shape=[3, 8, 8]), filters=6, kernel=1)
    rows = b.add("Transpose", b.add("Reshape", image, shape=[6, 64]), axes=[1, 0])
    dense = b.add("Dense", rows, units=6)
    back = b.add("Reshape", b.add("Transpose", dense, axes=[1, 0]), shape=[6, 8, 8])
    other = b.add("Transpose", b.add("Reshape", dense, shape=[8, 8, 6]), axes=[2, 0, 1])
    convolved = [b.add("DepthwiseConv2D", each, kernel=3, padding="same") for each in (back, other)]
    b.add("Add", [b.add("MaxPooling2D", convolved[1], kernel=2), b.add("MaxPooling2D", convolved[0], kernel=2)])
    return b.graph()


def normalised() -> OperatorGraph:
    b = GraphBuilder("convnext")
    last = b.add("LayerNormalization", b.add("Conv2D", b.add("InputLayer", shape=[3, 8, 8]), filters=4, kernel=2))
    last = b.add("BatchNormalization", b.add("Conv2D", last, filters=5, kernel=3))
    last = b.add("Concatenate", [last, b.add("ReLU", last)])
    b.add("GlobalAveragePooling2D", b.add("Add", [last, last]))
    return b.graph()


@pytest.mark.parametrize("graph", [patches(), normalised()], ids=lambda graph: graph.kind)
def test_channels_last_is_what_torch_says(graph: OperatorGraph) -> None:
    seen: dict[str, bool] = {}
    module = GraphModule(graph).eval()
    for name, layer in module.of.items():
        layer.register_forward_hook(
            lambda _, inputs, __, name=name: seen.update({name: _is_channels_last(inputs[0]) if inputs else False})
        )
    with torch.inference_mode():
        module(torch.zeros(1, *graph.input_shape))
    told = {o.name: layout.channels_last for o, layout in zip(graph.operators, layouts_of(graph), strict=True)}
    assert {name: told[name] for name in seen} == seen, told
    assert any(seen.values())


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.ndim == 4 and suggest_memory_format(x) == torch.channels_last


def test_what_is_read_across_its_rows_is_said() -> None:
    graph = patches()
    told = {o.name: (o.op, layout.reordered) for o, layout in zip(graph.operators, layouts_of(graph), strict=True)}
    # Rows of a transposed image are columns in memory, and back again; the sum meets an image in another order.
    assert [op for op, reordered in told.values() if reordered] == ["Dense", "DepthwiseConv2D", "Add"]
