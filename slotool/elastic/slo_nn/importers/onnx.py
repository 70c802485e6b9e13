"""ONNX networks: as chains of layers with ReLU, or cut before their last dense layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.importers.chain import Chain
from slotool.elastic.slo_nn.importers.cutting import Cut, dense_layer, require_one_output
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import InputError
from slotool.graphs.capture.onnx.reading import Node, Reading, read_model
from slotool.models.adapters.onnx import OnnxModel
from slotool.models.signature import FREE
from slotool.printable import reason

PASSED_ON = ("Identity", "Dropout")
RESHAPING = ("Flatten", "Reshape", "Squeeze")
ARITHMETIC = ("Add", "Sub", "Mul", "Div")


def from_onnx(path: str | Path) -> MLP:
    """Return the network of an ONNX file with one input; weights in separate files next to it are read too.

    Raises ``InputError`` naming the node that breaks the chain, ``GraphError`` for a file that is no ONNX model and
    ``RunError`` when the package onnx is not installed.
    """
    reading = read_model(path)
    values = _constants(_loaded(path).graph)
    current = reading.inputs[0]
    if reading.axes[0] != 0:
        raise InputError(f"{path}: its input {current!r} needs an axis of examples and at least one more")
    chain = Chain(reading.shapes[current][1:])
    for node in reading.nodes:
        data = [name for name in node.inputs if name and name not in values]
        if not data:
            if node.outputs[0] not in values:
                raise chain.refuse(node.name, f"{node.op} of constants")
            continue
        if data != [current]:
            raise chain.refuse(node.name, "where the network branches")
        _add(chain, node, [values.get(name) for name in node.inputs], reading)
        current = node.outputs[0]
    if reading.outputs != (current,):
        raise InputError("the network must have one output, that of its last layer")
    return chain.mlp()


def _loaded(path: str | Path) -> Any:
    """Return the model with its weights. Raises ``InputError`` where these cannot be read."""
    import onnx

    try:
        return onnx.load(path)
    except Exception as error:
        # onnx raises several kinds for external weights that are missing or torn; none is ours.
        raise InputError(f"{path}: its weights cannot be read ({reason(error)})") from error


def _constants(graph: Any) -> dict[str, np.ndarray]:
    """Return the initializers, constants, and what transposes and identities make of them."""
    from onnx import helper, numpy_helper

    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and len(node.attribute) == 1:
            value = helper.get_attribute_value(node.attribute[0])
            constants[node.output[0]] = (
                numpy_helper.to_array(value) if hasattr(value, "data_type") else np.asarray(value)
            )
        elif node.op_type in ("Transpose", "Identity") and node.input[0] in constants:
            order = next((list(each.ints) for each in node.attribute if each.name == "perm"), None)
            array = constants[node.input[0]]
            constants[node.output[0]] = array.transpose(order) if node.op_type == "Transpose" else array
    return constants


def _add(chain: Chain, node: Node, arrays: list[Any], reading: Reading) -> None:
    """Append a node on the network's data, whose place in ``arrays`` is None."""
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
        scales = {"Add": (1.0, other), "Sub": (1.0, -other), "Mul": (other, 0.0)}
        chain.scale(node.name, *(scales[node.op] if node.op in scales else (1.0 / other, 0.0)))
    elif node.op in ("Softmax", "LogSoftmax"):
        chain.softmax(node.name)
    elif node.op in RESHAPING and len(reading.shapes[node.outputs[0]]) == 2:
        chain.flatten(node.name)
    elif node.op not in PASSED_ON:
        raise chain.refuse(node.name, node.op)


def _fits(op: str, arrays: list[Any], shape: tuple[int, ...]) -> bool:
    """True if data and constant are in order, and the constant is one number, one per value, or one per channel."""
    if arrays[0] is not None and op not in ("Add", "Mul"):
        return False
    other = np.asarray(arrays[1] if arrays[0] is None else arrays[0])
    return len(shape) < 4 or other.size in (1, np.prod(shape[1:])) or other.shape[-3:] == (shape[1], 1, 1)


ENDINGS = ("Softmax", "LogSoftmax", "Identity")


def cut_onnx(path: Path, folder: Path) -> Cut:
    """Cut an ONNX model, as ``cut``."""
    import onnx

    whole = OnnxModel(path, threads=1)
    read_model(path)
    model = _loaded(path)
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
    """Return the number of sequence positions with scores, 0 for any; None if an example has one row.

    ``scores``: shape of the output.
    """
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

    sliced, axis = f"{last.input[0]}/last", 1
    graph.initializer.append(numpy_helper.from_array(np.array(-1, dtype=np.int64), f"{sliced}/position"))
    gather = helper.make_node("Gather", [last.input[0], f"{sliced}/position"], [sliced], axis=axis)
    graph.node.insert(list(graph.node).index(last), gather)
    last.input[0] = sliced
    del graph.output[0].type.tensor_type.shape.dim[axis], graph.value_info[:]


def _last_layer(path: Path, graph: Any) -> tuple[Any, DenseLayer, int]:
    """Return the node of the layer, whose first input are the features, the layer, and the ONNX datatype of both."""
    from onnx.helper import np_dtype_to_tensor_dtype

    producers = {name: node for node in graph.node for name in node.output}
    node = producers.get(graph.output[0].name)
    while node is not None and node.op_type in ENDINGS:
        node = producers.get(node.input[0])
    constants = _constants(graph)
    bias = None
    if node is not None and node.op_type == "Add":
        inputs = [name for name in node.input if name not in constants]
        if len(inputs) == 1 and inputs[0] in producers:
            (constant,) = (name for name in node.input if name in constants)
            node, bias = producers[inputs[0]], constants[constant]
    is_product = node is not None and node.op_type in ("Gemm", "MatMul") and node.input[0] not in constants
    if node is None or not is_product or node.input[1] not in constants:
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


def _number(attribute: Any) -> float:
    return float(attribute.f if attribute.type == 1 else attribute.i)


def _front(model: Any, features: str, datatype: int, width: int) -> Any:
    """Return the model with ``features`` for its only output, and without what only its last layer needs."""
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
        needed, needed_nodes = {features}, []
        for node in reversed(nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                needed_nodes.append(node)
        weights = [tensor for tensor in graph.initializer if tensor.name in needed]
        del graph.node[:], graph.initializer[:]
        graph.node.extend(needed_nodes[::-1])
        graph.initializer.extend(weights)
    return front
