"""Capture of what public ONNX files have: inputs without a first axis of examples, weights that nodes generate, and
operators of new versions; where torch has the same network, the graph is that of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from slotool.errors import GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_onnx, capture_torch

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")
helper = onnx.helper
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model_of(
    nodes: list[Any], inputs: dict[str, Any], weights: dict[str, np.ndarray] | None = None, opset: int = 21
) -> Any:
    """A model of these nodes and inputs, whole numbers where a name ends in "ids"; the last output is the model's."""
    starts = [
        helper.make_tensor_value_info(name, INT64 if name.endswith("ids") else FLOAT, shape)
        for name, shape in inputs.items()
    ]
    held = [onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    end = helper.make_tensor_value_info(nodes[-1].output[-1], 1, None)
    graph = helper.make_graph(nodes, "net", starts, [end], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def one(op: str, inputs: dict[str, Any], weights: dict[str, np.ndarray] | None = None, **attributes: Any) -> Any:
    opset = attributes.pop("opset", 21)
    return model_of([helper.make_node(op, [*inputs, *(weights or {})], ["y"], **attributes)], inputs, weights, opset)


def shapes_of(graph: OperatorGraph) -> list[tuple[int, ...]]:
    return [operator.shape for operator in graph.operators if operator.op == "InputLayer"]


class Forward(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(x)


def test_class_ids_are_a_number_for_each_example() -> None:
    table = {"table": np.ones((10, 8), np.float32)}
    nodes = [helper.make_node("Gather", ["table", "ids"], ["row"]), helper.make_node("Add", ["x", "row"], ["y"])]
    for shape in (["n"], ["batch"]):
        graph = capture_onnx(model_of(nodes, {"x": ["batch", 8], "ids": shape}, table))
        assert not graph.unknown
        assert (shapes_of(graph), graph.weights, graph.output_shape) == ([(8,), (1,)], 80, (8,))


def test_a_scalar_is_the_same_for_every_example() -> None:
    graph = capture_onnx(one("Mul", {"x": ["n", 8], "rate": []}))
    assert not graph.unknown
    assert (shapes_of(graph), graph.output_shape) == ([(8,), (1,)], (8,))


@pytest.mark.parametrize(
    ("sequence", "state"),
    [
        (["t", "n", 6], [2, "n", 8]),
        ([7, None, 6], [2, None, 8]),
        ([7, 1, 6], [2, 1, 8]),
    ],
)
def test_the_batch_of_recurrent_states_is_their_second_axis(sequence: list[Any], state: list[Any]) -> None:
    weights = {"w": np.ones((2, 24, 6), np.float32), "r": np.ones((2, 24, 8), np.float32)}
    names = ["turned", "w", "r", "", "", "state"]
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("GRU", names, ["y"], hidden_size=8, direction="bidirectional"),
    ]
    first = [sequence[1], sequence[0], sequence[2]]
    sizes = {"x": (7, 6)} if sequence[0] == "t" else ()
    graph = capture_onnx(model_of(nodes, {"x": first, "state": state}, weights), sizes)
    assert not graph.unknown
    assert shapes_of(graph) == [(7, 6), (2, 8)]
    assert graph.matrix_flops == 2 * 7 * 2 * (24 * 6 + 24 * 8)


def test_an_input_of_another_size_is_that_of_every_example() -> None:
    graph = capture_onnx(one("MatMul", {"x": [4, 2, 3], "matrix": [3, 5]}))
    assert (shapes_of(graph), graph.output_shape, graph.matrix_flops) == ([(2, 3), (3, 5)], (2, 5), 2 * 2 * 3 * 5)


def test_a_model_of_one_axis_computes_one_example() -> None:
    assert capture_onnx(one("Relu", {"x": [16]})).output_shape == (16,)
    assert capture_onnx(one("Relu", {"x": ["samples"]}), (16,)).output_shape == (16,)


def test_an_empty_cache_is_left_out() -> None:
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["keys"], axis=2),
        helper.make_node("Shape", ["past"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "two"], ["length"]),
        helper.make_node("Add", ["length", "step"], ["end"]),
        helper.make_node("Slice", ["keys", "zero", "end", "axis"], ["last"]),
        helper.make_node("Relu", ["last"], ["y"]),
    ]
    numbers = {"two": [2], "zero": [0], "axis": [2], "step": [3]}
    held = {name: np.array(value) for name, value in numbers.items()}
    model = model_of(nodes, {"x": ["n", 4, 5, 8], "past": ["n", 4, "past", 8]}, held)
    graph = capture_onnx(model, {"past": (4, 0, 8)})
    assert (shapes_of(graph), graph.output_shape) == ([(4, 5, 8)], (4, 3, 8))
    assert shapes_of(capture_onnx(model, {"past": (4, 2, 8)})) == [(4, 5, 8), (4, 2, 8)]


def test_all_missing_sizes_are_named_at_once() -> None:
    model = one("Concat", {"x": ["n", "t", 8], "y0": ["n", 3, 8], "z": ["n", "u", 8]}, axis=1)
    with pytest.raises(GraphError, match=r"'x' .*\[n, t, 8\] and 'z' .*\[n, u, 8\].*'x=32,8;z=32,8'"):
        capture_onnx(model)


def generating(op: str, name: str, shape: list[int]) -> list[Any]:
    sizes = helper.make_node("Constant", [], ["sizes"], value_ints=shape)
    if op.startswith("Random"):
        return [helper.make_node(op, [], [name], shape=shape)]
    number = helper.make_node("Constant", [], ["number"], value_float=0.5)
    return [sizes, number, helper.make_node(op, ["number", "sizes"] if op == "Expand" else ["sizes"], [name])]


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "RandomNormal", "RandomUniform"])
@pytest.mark.parametrize("turned", [False, True])
def test_generated_weights_are_weights(op: str, turned: bool) -> None:
    if turned:
        nodes = [
            *generating(op, "stored", [6, 8]),
            helper.make_node("Transpose", ["stored"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        graph = capture_onnx(model_of(nodes, {"x": ["n", 8]}))
        assert (graph.weights, graph.flops, graph.operators[-1].op) == (48, 96, "Dense")
        return
    nodes = [*generating(op, "w", [4, 3, 3, 3]), helper.make_node("Conv", ["x", "w"], ["y"])]
    graph = capture_onnx(model_of(nodes, {"x": ["n", 3, 8, 8]}))
    assert (graph.weights, graph.flops, graph.operators[-1].op) == (108, 2 * 27 * 4 * 36, "Conv2D")


@pytest.mark.parametrize("as_features", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_torch(as_features: bool, masked: bool) -> None:
    shape = ["n", 5, 24] if as_features else ["n", 3, 5, 8]
    options: dict[str, Any] = {"q_num_heads": 3, "kv_num_heads": 3} if as_features else {}
    weights = {"mask": np.zeros((5, 5), np.float32)} if masked else {}
    model = one(
        "Attention", {"x": shape, "k": shape, "v": shape}, weights, opset=23, is_causal=int(not masked), **options
    )
    graph = capture_onnx(model)
    assert not graph.unknown
    assert graph.matrix_flops == 2 * 2 * 3 * 5 * 5 * 8
    (attention,) = (operator for operator in graph.operators if operator.op == "ScaledDotProductAttention")
    assert attention["causal"] is not masked
    assert len(attention.inputs) == 3 + masked


def test_attention_behind_a_cache_reads_all_of_it() -> None:
    sizes = {"x": ["n", 1, 24], "k": ["n", 1, 8], "v": ["n", 1, 8]}
    cache = {"key": ["n", 1, 6, 8], "value": ["n", 1, 6, 8]}
    names = ["x", "k", "v", "", "key", "value"]
    node = helper.make_node("Attention", names, ["y", "keys", "values"], q_num_heads=3, kv_num_heads=1)
    graph = capture_onnx(model_of([node], {**sizes, **cache}, opset=23))
    assert not graph.unknown
    assert graph.output_shape == (1, 7, 8)


def test_a_group_normalisation_of_new_versions_is_that_of_torch() -> None:
    weights = {"scale": np.ones(6, np.float32), "bias": np.zeros(6, np.float32)}
    graph = capture_onnx(one("GroupNormalization", {"x": ["n", 6, 4, 4]}, weights, num_groups=3))
    assert graph.id == capture_torch(nn.GroupNorm(3, 6), (6, 4, 4)).id


@pytest.mark.parametrize(
    ("op", "attributes", "module", "shape"),
    [
        ("LogSoftmax", {"axis": -1}, nn.LogSoftmax(-1), (5, 8)),
        ("LogSoftmax", {"axis": 1, "opset": 11}, nn.LogSoftmax(-1), (8,)),
        ("SpaceToDepth", {"blocksize": 2}, nn.PixelUnshuffle(2), (4, 6, 8)),
        ("Trilu", {"upper": 0}, Forward(torch.tril), (4, 5, 5)),
        ("Trilu", {}, Forward(torch.triu), (5, 5)),
    ],
)
def test_functions_of_a_value_are_those_of_torch(
    op: str, attributes: dict[str, Any], module: nn.Module, shape: tuple[int, ...]
) -> None:
    graph = capture_onnx(one(op, {"x": ["n", *shape]}, **attributes))
    assert not graph.unknown
    assert graph.id == capture_torch(module, shape).id


def test_a_local_response_normalisation_is_known() -> None:
    graph = capture_onnx(one("LRN", {"x": ["n", 8, 6, 6]}, size=5))
    assert [(operator.op, operator["size"]) for operator in graph.operators[1:]] == [("LocalResponseNormalization", 5)]


def test_places_of_the_largest_values_are_known() -> None:
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=-1)
    used = helper.make_node("Cast", ["places"], ["y"], to=FLOAT)
    graph = capture_onnx(model_of([node, used], {"x": ["n", 8]}, {"k": np.array([3])}))
    assert not graph.unknown
    assert graph.operators[-2]["indices"] is True


def test_a_lookup_by_several_axes_is_known() -> None:
    graph = capture_onnx(one("GatherND", {"x": ["n", 4, 5, 8], "ids": ["n", 7, 2]}, batch_dims=1))
    assert not graph.unknown
    assert graph.output_shape == (7, 8)


def test_one_hot_is_that_of_torch() -> None:
    weights = {"depth": np.array([10]), "values": np.array([0, 1], np.float32)}
    graph = capture_onnx(one("OneHot", {"ids": ["n", 5]}, weights))
    like = Forward(lambda x: functional.one_hot(x, 10).float())
    torchs = capture_torch(like, (5,), "int64")
    assert not graph.unknown
    assert (graph.output_shape, graph.flops) == ((5, 10), torchs.flops)


@pytest.mark.parametrize("masked", [False, True])
def test_a_deformable_convolution_has_its_samples_and_its_product(masked: bool) -> None:
    weights = {"w": np.ones((6, 4, 3, 3), np.float32), "b": np.ones(6, np.float32)}
    inputs = {"x": ["n", 4, 8, 8], "offset": ["n", 18, 6, 6], **({"mask": ["n", 9, 6, 6]} if masked else {})}
    names = ["x", "w", "offset", "b", *(["mask"] if masked else [])]
    graph = capture_onnx(model_of([helper.make_node("DeformConv", names, ["y"])], inputs, weights))
    assert not graph.unknown
    assert (graph.weights, graph.output_shape) == (6 * 36 + 6, (6, 6, 6))
    assert graph.matrix_flops == 2 * 6 * 36 * 36
