"""Small ONNX files, node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import helper

Tensors = list[tuple[str, int, list[Any]]]


def save(path: Path, nodes: list[Any], inputs: Tensors, outputs: Tensors) -> None:
    """Write a model of these nodes; tensors have a name, a type and a shape."""
    sides = [[helper.make_tensor_value_info(*tensor) for tensor in side] for side in (inputs, outputs)]
    graph = helper.make_graph(nodes, "graph", *sides)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def save_scaling(path: Path, factor: float, shape: list[Any] | None = None) -> None:
    """Write a model that multiplies ``x`` by ``factor`` as ``y``; by default [n, 2]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    by = helper.make_node("Constant", [], ["by"], value_float=float(factor))
    tensor = onnx.TensorProto.FLOAT, shape or ["n", 2]
    save(path, [by, helper.make_node("Mul", ["x", "by"], ["y"])], [("x", *tensor)], [("y", *tensor)])
