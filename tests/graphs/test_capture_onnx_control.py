"""Branches and loops of ONNX models: what runs, as often as it runs, or why nobody knows."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slotool.errors import GraphError
from slotool.graphs.capture import capture_onnx, capture_torch
from slotool.graphs.torch_module import GraphModule

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")
helper = onnx.helper
BOOL, INT64 = onnx.TensorProto.BOOL, onnx.TensorProto.INT64


def weight(name: str, *shape: int) -> Any:
    return onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)


def number(name: str, value: Any) -> Any:
    return onnx.numpy_helper.from_array(np.array(value), name)


def value(name: str, kind: int = 1, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(nodes: list[Any], weights: list[Any], shape: tuple[int, ...] = (2, 4), opset: int = 17) -> Any:
    """A model of these nodes; their first input is ``x``, the last one's first output the model's."""
    graph = helper.make_graph(nodes, "net", [value("x", 1, shape)], [value(nodes[-1].output[0])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


@pytest.mark.parametrize("deep", [False, True])
def test_of_two_branches_the_one_with_more_flops_is_walked_and_the_weights_of_both_count(deep: bool) -> None:
    # Both branches call a value by one name, and take one of the outer graph.
    nodes = [helper.make_node("MatMul", ["h", "wide"], ["a"]), helper.make_node("MatMul", ["a", "narrow"], ["r"])]
    out = value("r", 1, [2, 4])
    long = helper.make_graph(nodes, "long", [], [out], [weight("wide", 4, 64), weight("narrow", 64, 4)])
    short = helper.make_graph([helper.make_node("MatMul", ["h", "w"], ["r"])], "s", [], [out], [weight("w", 4, 4)])
    if deep:
        inner = helper.make_node("If", ["yes"], ["r"], then_branch=long, else_branch=short)
        long = helper.make_graph([inner], "deep", [], [out])
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["h"]),
        helper.make_node("If", ["yes"], ["b"], then_branch=short, else_branch=long),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    graph = capture_onnx(model_of(nodes, [number("yes", True)]))
    assert [(o.op, o.shape) for o in graph.operators if o.op != "Constant"] == [
        ("InputLayer", (4,)),
        ("Activation", (4,)),
        ("Dense", (64,)),
        ("Dense", (4,)),
    ]
    assert graph.operators[-1].attributes["activation"] == "relu"
    assert graph.weights == 2 * 4 * 64 + (2 if deep else 1) * 4 * 4
    assert graph.matrix_flops == 2 * 2 * 4 * 64


class FewWeights(nn.Module):
    """A convolution of few weights over an image, or a layer of many on what is left of it by pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 30)
        self.back = nn.Linear(30, 3)

    def window(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.dense(x.mean((2, 3))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.window, self.pooled, (x,))


def test_a_branch_is_chosen_as_that_of_a_torch_cond_is() -> None:
    conv = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["c"], ["r"], axes=[2, 3], keepdims=0),
    ]
    dense = [
        helper.make_node("ReduceMean", ["x"], ["p"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["p", "d"], ["e"]),
        helper.make_node("MatMul", ["e", "b"], ["r"]),
    ]
    window = helper.make_graph(conv, "window", [], [value("r")], [weight("k", 3, 3, 3, 3)])
    pooled = helper.make_graph(dense, "pooled", [], [value("r")], [weight("d", 3, 30), weight("b", 30, 3)])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["high"], keepdims=0),
        helper.make_node("Greater", ["high", "zero"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=pooled, else_branch=window),
    ]
    graph = capture_onnx(model_of(nodes, [number("zero", np.float32(0))], (2, 3, 16, 16)))
    twin = capture_torch(FewWeights(), (3, 16, 16))
    ours, theirs = ([o.op for o in each.operators if o.op in ("Conv2D", "Dense")] for each in (graph, twin))
    assert ours == theirs == ["Conv2D"]
    assert graph.weights == 3 * 3 * 9 + 2 * 90


def loop(trips: str, keeps_on: str = "on", condition: str = "", **more: Any) -> Any:
    """A loop whose body multiplies what is carried with ``w`` and gives it out at each trip, too."""
    nodes = [
        helper.make_node("MatMul", ["h", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["g"]),
        helper.make_node("Identity", ["g"], ["each"]),
        helper.make_node("ReduceMax", ["g"], ["high"], keepdims=0),
        helper.make_node("Cast", ["high"], ["by_values"], to=BOOL),
        helper.make_node("Identity", ["on"], ["passed"]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", INT64, []), value("on", BOOL, []), value("h")],
        [value(keeps_on, BOOL, []), value("g"), value("each")],
        more.pop("weights", []),
    )
    return helper.make_node("Loop", [trips, condition, "x"], ["last", "every"], body=body, **more)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("keeps_on", ["on", "passed"])
def test_a_loop_of_a_constant_number_of_trips_is_its_body_so_many_times(keeps_on: str, opset: int) -> None:
    nodes = [loop("n", keeps_on), helper.make_node("Sigmoid", ["last"], ["y"])]
    graph = capture_onnx(model_of(nodes, [number("n", 5), weight("w", 4, 4)], opset=opset))
    assert [operator.op for operator in graph.operators] == ["InputLayer", *["Dense"] * 5, "Activation"]
    assert graph.matrix_flops == 5 * 2 * 4 * 4
    # The weights are the same on each trip.
    assert graph.weights == 16


def test_weights_within_the_body_are_those_of_every_trip() -> None:
    nodes = [loop("n", condition="yes", weights=[weight("w", 4, 4)]), helper.make_node("Sigmoid", ["last"], ["y"])]
    graph = capture_onnx(model_of(nodes, [number("n", [3]), number("yes", True)]))
    assert graph.matrix_flops == 3 * 2 * 4 * 4
    assert graph.weights == 16


def test_what_every_trip_gives_out_is_stacked() -> None:
    nodes = [loop("n"), helper.make_node("Transpose", ["every"], ["y"], perm=[1, 0, 2])]
    graph = capture_onnx(model_of(nodes, [number("n", 3), weight("w", 4, 4)]))
    assert (graph.output_shape, graph.unknown) == ((3, 4), ())
    assert graph.matrix_flops == 3 * 2 * 4 * 4


def test_trips_that_follow_from_the_shape_of_the_input_are_known() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["n"]),
        loop("n"),
        helper.make_node("Sigmoid", ["last"], ["y"]),
    ]
    graph = capture_onnx(model_of(nodes, [number("one", 1), weight("w", 4, 4)]))
    assert [operator.op for operator in graph.operators].count("Dense") == 4


def scanned(steps: Any = 5, opset: int = 17) -> Any:
    """A running state of (2, 3) over the middle axis of (2, steps, 3), from the last on; each state goes out again."""
    nodes = [
        helper.make_node("Add", ["h", "x_t"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["after"]),
        helper.make_node("Identity", ["after"], ["each"]),
    ]
    body = helper.make_graph(nodes, "body", [value("h"), value("x_t")], [value("after"), value("each")])
    start = helper.make_node("ReduceMean", ["x"], ["start"], axes=[1], keepdims=0)
    axes = {"scan_input_axes": [1], "scan_input_directions": [1]}
    axes |= {"scan_output_axes": [1], "scan_output_directions": [1]} if opset > 8 else {}
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1, **axes)
    graph = helper.make_graph([start, scan], "net", [value("x", 1, (2, steps, 3))], [value("y", 1, (2, steps, 3))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_a_scan_is_its_body_once_for_each_step_and_computes_the_same() -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = scanned()
    graph = capture_onnx(model)
    assert not graph.unknown
    assert [operator.op for operator in graph.operators].count("Add") == 5
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        found = GraphModule(graph)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("steps", "opset", "why"),
    [(5, 8, r"\(Scan\) is of version 8"), (20_000, 17, r"runs its body of 3 nodes 20,000 times")],
)
def test_a_scan_that_cannot_be_unrolled_is_refused(steps: int, opset: int, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        capture_onnx(scanned(steps, opset))


def test_loops_and_branches_within_each_other_are_opened() -> None:
    inner = helper.make_graph([loop("n"), helper.make_node("Identity", ["last"], ["r"])], "many", [], [value("r")])
    once = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["r"])], "once", [], [value("r")])
    nodes = [
        helper.make_node("If", ["yes"], ["b"], then_branch=once, else_branch=inner),
        helper.make_node("Sigmoid", ["b"], ["y"]),
    ]
    graph = capture_onnx(model_of(nodes, [number("n", 3), number("yes", True), weight("w", 4, 4)]))
    assert [operator.op for operator in graph.operators].count("Dense") == 3


@pytest.mark.parametrize(
    ("trips", "keeps_on", "why"),
    [
        ("", "on", "ends by a condition on values, so the model does not say how often it runs"),
        ("most", "on", "ends by a condition on values"),
        ("n", "by_values", "may end before its 5 trips by a condition on values"),
        ("count", "on", "takes its number of trips from values"),
        ("million", "on", r"runs its body of 6 nodes 1,000,000 times"),
    ],
)
def test_a_loop_of_which_nobody_knows_how_often_it_runs_is_refused(trips: str, keeps_on: str, why: str) -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["high"], keepdims=0),
        helper.make_node("Cast", ["high"], ["count"], to=INT64),
        loop(trips, keeps_on, condition="yes", name="decode"),
        helper.make_node("Sigmoid", ["last"], ["y"]),
    ]
    constants = [number("n", 5), number("million", 10**6), number("most", 2**63 - 1), number("yes", True)]
    with pytest.raises(GraphError, match=rf"node 'decode' \(Loop\) {why}.*; export it unrolled"):
        capture_onnx(model_of(nodes, [*constants, weight("w", 4, 4)]))


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, 0]
        for at in range(x.size(1)):
            h = torch.tanh(self.cell(h + x[:, at]))
        return h


def test_a_scripted_loop_exported_by_torch_is_that_of_the_traced_one() -> None:
    module, x, file = Steps().eval(), torch.zeros(2, 6, 8), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(torch.jit.script(module), (x,), file, dynamo=False, opset_version=17)
    model = onnx.load_from_string(file.getvalue())
    assert any(node.op_type == "Loop" for node in model.graph.node)
    graph, twin = capture_onnx(model), capture_torch(module, (6, 8))
    assert graph.matrix_flops == twin.matrix_flops
    assert not graph.unknown
    assert graph.weights == twin.weights == 72
