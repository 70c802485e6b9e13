"""ONNX networks as chains of layers with ReLU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.importers.chain import Chain
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import InputError
from slotool.graphs.capture.onnx.reading import Node, Reading, read_model

PASSED_ON = ("Identity", "Dropout")
RESHAPING = ("Flatten", "Reshape", "Squeeze")
ARITHMETIC = ("Add", "Sub", "Mul", "Div")


def from_onnx(path: str | Path) -> MLP:
    """Return the network of an ONNX file with one input; weights in separate files next to it are read too.

    Raises ``InputError`` naming the node that breaks the chain, ``GraphError`` for a file that is no ONNX model and
    ``RunError`` when the package onnx is not installed.
    """
    reading = read_model(path)
    values = _weights(path)
    chain, current = Chain(reading.shapes[reading.input][1:]), reading.input
    for node in reading.nodes:
        data = [name for name in node.inputs if name and name not in values]
        if not data:
            values[node.outputs[0]] = _constant(chain, node, values)
            continue
        if data != [current]:
            raise chain.refuse(node.name, "where the network branches")
        _add(chain, node, [values.get(name) for name in node.inputs], reading)
        current = node.outputs[0]
    if reading.outputs != (current,):
        raise InputError("the network must have one output, that of its last layer")
    return chain.mlp()


def _weights(path: str | Path) -> dict[str, np.ndarray]:
    import onnx
    from onnx import numpy_helper

    try:
        graph = onnx.load(path).graph
        return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except Exception as error:
        # onnx raises several kinds for external weights that are missing or torn; none is ours.
        raise InputError(f"{path}: its weights cannot be read ({' '.join(str(error).split())[:160]})") from error


def _constant(chain: Chain, node: Node, values: dict[str, np.ndarray]) -> np.ndarray:
    """What hangs on constants alone."""
    if node.op == "Constant" and len(node.attributes) == 1:
        value: Any = next(iter(node.attributes.values()))
        if hasattr(value, "data_type"):
            from onnx import numpy_helper

            return np.asarray(numpy_helper.to_array(value))
        return np.asarray(value)
    if node.op == "Transpose":
        return values[node.inputs[0]].transpose(node.attributes.get("perm"))
    if node.op == "Identity":
        return values[node.inputs[0]]
    raise chain.refuse(node.name, f"{node.op} of constants")


def _add(chain: Chain, node: Node, arrays: list[Any], reading: Reading) -> None:
    """One node on the network's data, whose place in ``arrays`` is None."""
    if node.op == "Gemm" and arrays[0] is None and not node.attributes.get("transA"):
        weights = arrays[1] if node.attributes.get("transB") else arrays[1].T
        bias = arrays[2] if len(arrays) > 2 and arrays[2] is not None else 0.0
        bias = np.broadcast_to(np.asarray(bias).ravel(), len(weights)) * node.attributes.get("beta", 1.0)
        chain.dense(node.name, weights * node.attributes.get("alpha", 1.0), bias)
    elif node.op == "MatMul" and arrays[0] is None:
        chain.dense(node.name, arrays[1].T, None)
    elif node.op == "Relu":
        chain.relu(node.name)
    elif node.op == "BatchNormalization":
        factor = arrays[1] / np.sqrt(arrays[4] + node.attributes.get("epsilon", 1e-5))
        chain.scale(node.name, factor, arrays[2] - arrays[3] * factor)
    elif node.op in ARITHMETIC and _fits(node.op, arrays, reading.shapes[node.outputs[0]]):
        other = np.asarray(arrays[1] if arrays[0] is None else arrays[0], dtype=np.float64)
        known = {"Add": (1.0, other), "Sub": (1.0, -other), "Mul": (other, 0.0)}
        chain.scale(node.name, *(known[node.op] if node.op in known else (1.0 / other, 0.0)))
    elif node.op in ("Softmax", "LogSoftmax"):
        chain.softmax(node.name)
    elif node.op in RESHAPING and len(reading.shapes[node.outputs[0]]) == 2:
        chain.flatten(node.name)
    elif node.op not in PASSED_ON:
        raise chain.refuse(node.name, node.op)


def _fits(op: str, arrays: list[Any], shape: tuple[int, ...]) -> bool:
    """Whether the data come first, where that matters, and the constant is one number, one per value, or one per
    channel of an image."""
    if arrays[0] is not None and op not in ("Add", "Mul"):
        return False
    other = np.asarray(arrays[1] if arrays[0] is None else arrays[0])
    return len(shape) < 4 or other.size in (1, np.prod(shape[1:])) or other.shape[-3:] == (shape[1], 1, 1)
