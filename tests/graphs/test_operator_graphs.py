"""What graphs say of themselves holds: against torch, through JSON, and however the same layer was written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from slotool.errors import GraphError
from slotool.graphs import Effect, GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from tests.graphs.graph_strategies import graphs


def weights_of(module: torch.nn.Module) -> int:
    """Parameters and running statistics; torch's counter of batches is none of the weights that slotool counts."""
    counters = sum(1 for name, _ in module.named_buffers() if name.endswith("num_batches_tracked"))
    return sum(t.numel() for t in [*module.parameters(), *module.buffers()]) - counters


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_torch_finds_every_shape_and_every_weight_that_the_graph_says(graph: OperatorGraph) -> None:
    module = GraphModule(graph).eval()
    seen = []
    for layer in module.layers.values():
        layer.register_forward_hook(lambda _layer, _inputs, output: seen.append(tuple(output.shape[1:])))
    output = module(torch.zeros(2, *graph.input_shape))
    assert tuple(output.shape) == (2, *graph.output_shape)
    assert seen == [operator.shape for operator in graph.operators[1:]]
    assert [weights_of(layer) for layer in module.layers.values()] == [o.weights for o in graph.operators[1:]]
    assert graph.memory_bytes(3) == 4 * (graph.weights + 3 * sum(torch.Size(o.shape).numel() for o in graph.operators))


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_a_document_read_back_is_the_same_graph(graph: OperatorGraph) -> None:
    text = json.dumps(graph.document())
    again = OperatorGraph.from_document(json.loads(text))
    assert again == graph
    assert (again.id, again.kind, again.name) == (graph.id, graph.kind, graph.name)
    assert json.loads(graph.text) == json.loads(text)


def test_flops_agree_with_torchs_own_count() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=(3, 9, 11))
    last = builder.add("Conv2D", last, filters=6, kernel=(3, 5), stride=2, padding="same", groups=3)
    last = builder.add("SeparableConv2D", last, filters=8, kernel=3, multiplier=2, dilation=2)
    last = builder.add("DepthwiseConv2D", builder.add("ZeroPadding2D", last, padding=1), kernel=3)
    builder.add("Dense", builder.add("Flatten", last), units=7)
    graph = builder.graph()
    with FlopCounterMode(display=False) as counter:
        GraphModule(graph)(torch.zeros(1, *graph.input_shape))
    assert counter.get_total_flops() == graph.flops


def conv(**attributes: object) -> OperatorGraph:
    builder = GraphBuilder()
    builder.add("Conv2D", builder.add("InputLayer", shape=[3, 8, 8]), filters=4, **attributes)
    return builder.graph()


def test_equal_layers_have_equal_ids_however_they_were_written() -> None:
    same = [
        conv(kernel=3, padding="same"),
        conv(kernel=[3, 3], padding=1, stride=(1, 1)),
        conv(kernel=(3, 3), padding=[1, 1], bias=True, groups=1, activation=None, dilation=1),
        conv(kernel=3, padding="same", activation="linear"),
    ]
    assert len({graph.id for graph in same}) == 1
    assert conv(kernel=1, padding="same").id == conv(kernel=1).id
    different = [conv(kernel=3), conv(kernel=3, padding=1, stride=2), conv(kernel=3, padding="same", stride=2)]
    assert len({graph.id for graph in [*different, same[0]]}) == 4


def test_names_play_no_part_in_the_id_but_edges_do() -> None:
    def network(first: str, second: str) -> OperatorGraph:
        builder = GraphBuilder()
        source = builder.add("InputLayer", shape=[4], name=first)
        relu = builder.add("ReLU", source, name="relu")
        builder.add("ReLU", {"source": source, "relu": relu}[second])
        return builder.graph()

    assert network("x", "relu").id == network("y", "relu").id
    assert network("x", "relu").id != network("x", "source").id


def test_the_name_plays_no_part_in_the_id_and_is_text() -> None:
    graph = conv(kernel=3)
    named = replace(graph, name="VGG16")
    assert (named.id, named.document()["name"]) == (graph.id, "VGG16")
    assert named == graph
    assert "name" not in graph.document()
    for foreign in ({"name": 16}, {"kind": ["cnn"]}):
        with pytest.raises(GraphError, match="kind or name is not text"):
            OperatorGraph.from_document(graph.document() | foreign)


def test_an_unknown_operator_is_kept_with_what_is_known_of_it() -> None:
    builder = GraphBuilder()
    source = builder.add("InputLayer", shape=[6])
    builder.add("Best", source, name="top", stated=Effect((2,), 5, 7), k=2)
    graph = OperatorGraph.from_document(builder.graph().document())
    (top,) = graph.unknown
    assert (top.op, top.shape, top.weights, top.flops, top.attributes) == ("Best", (2,), 5, 7, {"k": 2})
    with pytest.raises(GraphError, match="'top': Best cannot be built in torch"):
        GraphModule(graph)


def test_a_type_that_was_unknown_when_its_file_was_written_stays_as_stated() -> None:
    source = {"name": "x", "op": "InputLayer", "attributes": {"shape": [6]}}
    stated = {
        "name": "top",
        "op": "TopK",
        "inputs": ["x"],
        "attributes": {"k": 2},
        "shape": [2],
        "weights": 5,
        "flops": 7,
    }
    graph = OperatorGraph.from_document({"operators": [source, stated]})
    assert graph.id == "ae2596905c2c91eb"  # As the first version had it.
    (top,) = graph.unknown
    assert (top.op, top.shape, top.weights, top.flops, top.attributes) == ("TopK", (2,), 5, 7, {"k": 2})
    assert OperatorGraph.from_document(graph.document()) == graph
    ours = {**stated, "attributes": {"k": 2, "axis": -1}, "weights": 0, "flops": 6}
    assert not OperatorGraph.from_document({"operators": [source, ours]}).unknown


SOURCE = {"name": "x", "op": "InputLayer", "attributes": {"shape": [3, 8, 8]}}


@pytest.mark.parametrize(
    ("operators", "sentence"),
    [
        ("none", "expected an object with a list of operators"),
        ([], "no operators"),
        ([7], "operator 0: expected an object with an op"),
        ([SOURCE, {"op": "ReLU", "name": 3}], "operator 1: its name is not text"),
        ([SOURCE, {"op": "ReLU", "inputs": "x"}], "'relu_1': inputs is not a list of names"),
        ([SOURCE, {"op": "ReLU", "inputs": ["y"]}], "'relu_1' takes its input from 'y'"),
        ([SOURCE, SOURCE], "'x' appears twice"),
        ([SOURCE, {"op": "ReLU", "inputs": ["x"], "attributes": [1]}], "'relu_1': attributes is not an object"),
        ([SOURCE, {"op": "Nope", "inputs": ["x"]}], "'nope_1': 'Nope' is unknown, so its shape must be stated"),
        ([SOURCE, {"op": "Nope", "inputs": ["x"], "shape": [0]}], "'nope_1': shape is not a list of sizes"),
        ([SOURCE, {"op": "Nope", "inputs": ["x"], "shape": [1], "flops": -1}], "'nope_1': weights and flops"),
        ([SOURCE, {"op": "Dense", "inputs": ["x"]}], "'dense_1': Dense needs the attribute 'units'"),
        ([SOURCE, {"op": "Dense", "inputs": ["x"], "attributes": {"units": 0}}], "'dense_1': Dense: units cannot be 0"),
        ([SOURCE, {"op": "Dense", "inputs": ["x"], "attributes": {"units": 2.5}}], "units cannot be 2.5"),
        ([SOURCE, {"op": "Dense", "inputs": ["x"], "attributes": {"units": float("nan")}}], "units cannot be nan"),
        ([SOURCE, {"op": "Dense", "inputs": ["x"], "attributes": {"unitz": 2}}], "Dense has no attribute 'unitz'"),
        ([SOURCE, {"op": "Dense", "inputs": ["x", "x"], "attributes": {"units": 2}}], "Dense takes 1 inputs, not 2"),
        ([SOURCE, {"op": "Conv2D", "inputs": ["x"], "attributes": {"filters": 2, "kernel": 9}}], "leave nothing"),
        ([SOURCE, {"op": "Conv2D", "inputs": ["x"], "attributes": {"filters": 2, "kernel": 3, "stride": 0}}], "stride"),
        ([SOURCE, {"op": "Conv2D", "inputs": ["x"], "attributes": {"filters": 4, "kernel": 3, "groups": 2}}], "groups"),
        ([SOURCE, {"op": "Reshape", "inputs": ["x"], "attributes": {"shape": [5]}}], "Reshape cannot make"),
        ([{"op": "Odd", "shape": [3]}], "begins with an InputLayer"),
    ],
)
def test_a_document_that_is_no_graph_is_refused_by_name(operators: object, sentence: str) -> None:
    with pytest.raises(GraphError) as caught:
        OperatorGraph.from_document({"operators": operators})
    assert sentence in str(caught.value)


def test_true_is_not_one_even_after_one_was_seen() -> None:
    document = {"operators": [{"name": "x", "op": "InputLayer", "attributes": {"shape": [3]}}, None]}
    for units, is_good in ((1, True), (True, False), (1.0, False)):
        document["operators"][1] = {"op": "Dense", "inputs": ["x"], "attributes": {"units": units}}
        if is_good:
            OperatorGraph.from_document(document)
        else:
            with pytest.raises(GraphError, match="units cannot be"):
                OperatorGraph.from_document(document)


def test_layer_names_that_torch_reserves_or_confuses_still_build() -> None:
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=[4])
    for name in ("type", "a.b", "a_b", "forward"):
        last = builder.add("Dense", last, units=4, name=name)
    graph = builder.graph()
    assert weights_of(GraphModule(graph)) == graph.weights == 4 * 20
