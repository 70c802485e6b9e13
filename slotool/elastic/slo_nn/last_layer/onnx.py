"""ONNX networks, cut before their last dense layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.last_layer.cutting import Cut, dense_layer, require_one_output
from slotool.elastic.slo_nn.mlp import DenseLayer
from slotool.errors import InputError
from slotool.graphs.capture.onnx.reading import read_model
from slotool.models.adapters.onnx import OnnxModel
from slotool.models.signature import FREE
from slotool.printable import reason

ENDINGS = ("Softmax", "LogSoftmax", "Identity")


def cut_onnx(path: Path, folder: Path) -> Cut:
    """As ``cut``."""
    import onnx

    whole = OnnxModel(path, threads=1)
    read_model(path)
    try:
        model = onnx.load(path)
    except Exception as error:
        # onnx raises several kinds for external weights that are missing or torn; none is ours.
        raise InputError(f"{path}: its weights cannot be read ({reason(error)})") from error
    require_one_output(str(path), len(model.graph.output))
    node, layer, datatype = _last_layer(path, model.graph)
    positions = _positions(path, whole.signature.outputs[0].shape)
    front, whole_file = folder / "front.onnx", path
    try:
        if positions is not None:
            _score_last_position(model.graph, node)
            whole_file = folder / "last-position.onnx"
            onnx.save(model, whole_file)
            whole = OnnxModel(whole_file, threads=1)
        onnx.save(_front(model, node.input[0], datatype, layer.inputs), front)
    except ValueError as error:
        raise InputError(f"{path}: its front is too large for one ONNX file ({reason(error)})") from error
    return Cut(front, layer, whole, "ONNX Runtime", positions, whole_file)


def _positions(path: Path, scores: Sequence[int]) -> int | None:
    """Of how many positions of a sequence there are scores, 0 for any number; None where an example has one row.
    ``scores``: shape of the output."""
    if len(scores) not in (2, 3):
        raise InputError(
            f"{path} gives an output of {len(scores)} dimensions; tables need scores [examples, classes], or "
            "[examples, positions, classes]"
        )
    if len(scores) == 2:
        return None
    return 0 if scores[1] == FREE else scores[1]


def _score_last_position(graph: Any, last: Any) -> None:
    """Let the layer ``last`` score the last position alone; its output loses the axis of the positions."""
    from onnx import helper, numpy_helper

    taken, axis = f"{last.input[0]}/last", 1
    graph.initializer.append(numpy_helper.from_array(np.array(-1, dtype=np.int64), f"{taken}/position"))
    gather = helper.make_node("Gather", [last.input[0], f"{taken}/position"], [taken], axis=axis)
    graph.node.insert(list(graph.node).index(last), gather)
    last.input[0] = taken
    del graph.output[0].type.tensor_type.shape.dim[axis], graph.value_info[:]


def _last_layer(path: Path, graph: Any) -> tuple[Any, DenseLayer, int]:
    """The node of the layer, whose first input are the features, the layer, and the ONNX datatype of both."""
    from onnx.helper import np_dtype_to_tensor_dtype

    made = {name: node for node in graph.node for name in node.output}
    node = made.get(graph.output[0].name)
    while node is not None and node.op_type in ENDINGS:
        node = made.get(node.input[0])
    constants = _constants(graph)
    bias = None
    if node is not None and node.op_type == "Add":
        inputs = [name for name in node.input if name not in constants]
        if len(inputs) == 1 and inputs[0] in made:
            (constant,) = (name for name in node.input if name in constants)
            node, bias = made[inputs[0]], constants[constant]
    known = node is not None and node.op_type in ("Gemm", "MatMul") and node.input[0] not in constants
    if node is None or not known or node.input[1] not in constants:
        what = "an input" if node is None else node.op_type
        raise InputError(f"{path}: the last layer is {what}, not a dense layer with weights of its own")
    datatype = np_dtype_to_tensor_dtype(constants[node.input[1]].dtype)
    weights, settings = constants[node.input[1]], {each.name: _number(each) for each in node.attribute}
    if node.op_type == "Gemm":
        weights = (weights if settings.get("transB") else weights.T) * settings.get("alpha", 1.0)
        if len(node.input) > 2 and node.input[2]:
            bias = constants[node.input[2]] * settings.get("beta", 1.0)
    else:
        weights = weights.T
    if settings.get("transA") or weights.ndim != 2:
        raise InputError(f"{path}: the last layer {node.name or node.output[0]!r} is no dense layer on features")
    return node, dense_layer(node.name or "last", weights, bias), datatype


def _constants(graph: Any) -> dict[str, np.ndarray]:
    from onnx import numpy_helper

    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t"):
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        elif node.op_type in ("Transpose", "Identity") and node.input[0] in found:
            array = found[node.input[0]]
            order = next((list(each.ints) for each in node.attribute if each.name == "perm"), None)
            found[node.output[0]] = array.transpose(order) if node.op_type == "Transpose" else array
    return found


def _number(attribute: Any) -> float:
    return float(attribute.f if attribute.type == 1 else attribute.i)


def _front(model: Any, features: str, datatype: int, width: int) -> Any:
    """The model with ``features`` for its only output, and without what only its last layer needs."""
    import onnx

    front = onnx.ModelProto()
    front.CopyFrom(model)
    graph = front.graph
    batch = graph.input[0].type.tensor_type.shape.dim
    free = batch[0].dim_param or (batch[0].dim_value if batch and batch[0].dim_value else "batch")
    del graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info(features, datatype, [free, width]))
    nodes = list(graph.node)
    if not any(each.type in (5, 10) for node in nodes for each in node.attribute):  # no graphs within nodes
        needed, kept = {features}, []
        for node in reversed(nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                kept.append(node)
        weights = [tensor for tensor in graph.initializer if tensor.name in needed]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(kept[::-1])
        graph.initializer.extend(weights)
    return front
