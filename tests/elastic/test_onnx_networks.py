"""ONNX files become chains of dense layers with the same logits, or one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.elastic.slo_nn import importers
from slotool.errors import InputError

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def model(nodes: list[Any], weights: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",)) -> Any:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4, 3])]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes)


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (12, 8), "b1": (8,), "w2": (6, 8), "b2": (6,), "w3": (3, 6), "s": (6,), "m": (6,), "o": (6,)}
    made = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {**made, "v": rng.random(6).astype(np.float32), "c": np.array([2.5], np.float32)}


HEAD = [
    node("Flatten", "x", "flat"),
    node("Div", "flat c", "scaled"),
    node("MatMul", "scaled w1", "h0"),
    node("Add", "h0 b1", "h1"),
    node("Relu", "h1", "h2"),
]
TAIL = [
    node("Gemm", "h2 w2 b2", "h3", transB=1, alpha=0.5, beta=2.0),
    node("BatchNormalization", "h3 s o m v", "h4"),
    node("Relu", "h4", "h5"),
    node("Transpose", "w3", "w3t", perm=[1, 0]),
    node("MatMul", "h5 w3t", "y"),
]


def test_an_onnx_network_keeps_its_logits(tmp_path: Path) -> None:
    made = model(HEAD + TAIL, weights())
    onnx.save(made, tmp_path / "net.onnx")
    x = np.random.default_rng(1).normal(size=(7, 1, 4, 3)).astype(np.float32)
    expected = ReferenceEvaluator(made).run(None, {"x": x})[0]
    mlp = importers.from_onnx(tmp_path / "net.onnx")
    assert (mlp.input_shape, mlp.classes) == ((1, 4, 3), 3)
    np.testing.assert_allclose(mlp.logits(x.reshape(7, -1)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("nodes", "outputs", "sentence"),
    [
        ([*HEAD[:4], node("Sigmoid", "h1", "h2"), *TAIL], ("y",), "is Sigmoid; Node Activators take"),
        ([*HEAD[:3], node("Identity", "h0", "h2"), *TAIL], ("y",), "without a ReLU between them"),
        ([*HEAD, node("Add", "h2 h1", "sum"), node("MatMul", "sum w2t", "y")], ("y",), "branches"),
        ([*HEAD, *TAIL], ("y", "h2"), "must have one output"),
        ([HEAD[0], node("MatMul", "flat w1", "y")], ("y",), "no ReLU layer"),
    ],
)
def test_an_onnx_network_that_is_no_chain_is_refused(
    tmp_path: Path, nodes: list[Any], outputs: tuple[str, ...], sentence: str
) -> None:
    onnx.save(model(nodes, {**weights(), "w2t": weights()["w2"].T.copy()}, outputs), tmp_path / "net.onnx")
    with pytest.raises(InputError, match=sentence):
        importers.from_onnx(tmp_path / "net.onnx")
