"""Small integers that an ONNX model computes from constants and shapes: exporters write sizes and paddings that way."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from slotool.graphs.libraries import onnx
from slotool.graphs.operators import Shape

# Domains of ONNX's own operators.
OWN_DOMAINS = ("", "ai.onnx")
# Constants this small may say how a layer works (sizes, axes, paddings, bounds); larger ones are weights.
MAX_VALUES = 64
# Sizes of so many axes are computed in floating point.
MAX_FLOATS = 8
KEEP_SHAPE = (
    "GroupNormalization",
    "LayerNormalization",
    "SimplifiedLayerNormalization",
    "RMSNormalization",
    "Gelu",
    "Swish",
    "HardSwish",
    "Mish",
)
COMPUTED = {
    *("Add", "Ceil", "Clip", "Div", "Equal", "Floor", "Max", "Min", "Mod", "Mul", "Neg", "ReduceProd", "Sub", "Where"),
    *("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    *("Constant", "ConstantOfShape", "Shape", "Size"),
}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators in a model."""
    return max((entry.version for entry in model.opset_import if entry.domain in OWN_DOMAINS), default=1)


def with_shapes(model: onnx.ModelProto, empty: Iterable[str] = ()) -> onnx.ModelProto:
    """Return a copy with inferred shapes, in which small integers that depend on shapes and constants are initialisers.

    ``empty``: inputs without elements. Each helps to find more of the other, so both go on until neither does. Raises
    what onnx raises.
    """
    while True:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        passed_on = _pass_on_shapes(model.graph)
        if not _fold(model, empty) and not passed_on:
            return model


def _pass_on_shapes(graph: onnx.GraphProto) -> bool:
    """Set the output shape of operators that keep it, if onnx infers none; return True if there were any.

    These are versions from before the operators were standard.
    """
    values, shapes = {value.name: value for value in (*graph.value_info, *graph.output)}, dict(known_shapes(graph))
    sources = {value.name: value for value in (*graph.input, *values.values())}
    changed = False
    for node in graph.node:
        if node.op_type not in KEEP_SHAPE or node.input[0] not in shapes or node.output[0] in shapes:
            continue
        info = values.get(node.output[0]) or graph.value_info.add(name=node.output[0])
        info.type.CopyFrom(sources[node.input[0]].type)
        changed = True
    return changed


def known_shapes(graph: onnx.GraphProto) -> Iterator[tuple[str, Shape]]:
    """Yield values with a size for every axis."""
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        if value.type.HasField("tensor_type") and kind.HasField("shape"):
            dims = kind.shape.dim
            if all(axis.HasField("dim_value") and axis.dim_value > 0 for axis in dims):
                yield value.name, tuple(axis.dim_value for axis in dims)


def empty_values(graph: onnx.GraphProto, inputs: Iterable[str]) -> frozenset[str]:
    """Return the names of values without elements: these inputs, their results, and parts of other values.

    For others a size of 0 may mean that an exporter did not know it.
    """
    sized = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}
    empty = set(inputs)
    for node in graph.node:
        for name in node.output if node.op_type == "Slice" or empty.intersection(node.input) else ():
            if any(axis.HasField("dim_value") and axis.dim_value == 0 for axis in sized.get(name, ())):
                empty.add(name)
    return frozenset(empty)


def _fold(model: onnx.ModelProto, empty: Iterable[str]) -> bool:
    """Replace nodes by their integers, and the floats that sizes are computed from; return True if any."""
    graph, opsets = model.graph, model.opset_import
    values: dict[str, np.ndarray] = {}
    for tensor in graph.initializer:
        is_whole = tensor.data_type in (tensor.INT32, tensor.INT64, tensor.BOOL)
        if is_whole and math.prod(tensor.dims) <= MAX_VALUES and tensor.data_location != tensor.EXTERNAL:
            values[tensor.name] = onnx.numpy_helper.to_array(tensor)
    numbers = dict(_numbers(graph))
    values |= numbers
    shapes, nodes, folded = dict(known_shapes(graph)), [], False
    dims = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    shapes |= {name: tuple(axis.dim_value for axis in dims[name]) for name in empty}
    for node in graph.node:
        info = _computed(node, values, shapes, opsets)
        if info is None or (info.dtype.kind == "f" and not _is_size(node, values, numbers)):
            nodes.append(node)
            continue
        folded = True
        values[node.output[0]] = info
        graph.initializer.append(onnx.numpy_helper.from_array(info, node.output[0]))
    if folded:
        del graph.node[:]
        graph.node.extend(nodes)
    return folded


def _numbers(graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    """Single numbers of floating point, through which exporters compute sizes."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors |= {name: entry.t for name in node.output for entry in node.attribute if entry.HasField("t")}
    for name, tensor in tensors.items():
        inside = tensor.data_location != tensor.EXTERNAL
        if tensor.data_type == tensor.FLOAT and math.prod(tensor.dims) == 1 and inside:
            yield name, onnx.numpy_helper.to_array(tensor)


def _is_size(node: Any, values: dict[str, np.ndarray], numbers: Container[str]) -> bool:
    """True if floats that a node makes go back to integers. Those of a file's own numbers alone may be weights."""
    if node.op_type == "Cast":
        return values[node.input[0]].dtype.kind != "f"
    return any(name in values and name not in numbers and values[name].dtype.kind == "f" for name in node.input)


def _computed(node: Any, values: dict[str, np.ndarray], shapes: dict[str, Shape], opsets: Any) -> np.ndarray | None:
    """Return the one output of a node, if it is a few integers and its inputs are known."""
    if node.domain or node.op_type not in COMPUTED or len(node.output) != 1:
        return None
    inputs = [name for name in node.input if name]
    if node.op_type in ("Shape", "Size"):
        if inputs[0] not in shapes:
            return None
        feeds = {inputs[0]: np.broadcast_to(np.int64(0), shapes[inputs[0]])}
    elif any(name not in values for name in inputs):
        return None
    else:
        feeds = {name: values[name] for name in inputs}
    if node.op_type == "ConstantOfShape" and math.prod(feeds[inputs[0]].tolist()) > MAX_VALUES:
        return None
    try:
        value = np.asarray(_run(node, feeds, opsets))
    except Exception:
        # A node that contradicts itself makes nothing that we could use; shape inference says what is wrong with it.
        return None
    few = value.size <= (MAX_VALUES if value.dtype.kind in "ib" else MAX_FLOATS)
    return value if few and value.dtype.kind in "ibf" else None


def _run(node: onnx.NodeProto, feeds: dict[str, Any], opsets: Sequence[onnx.OperatorSetIdProto]) -> Any:
    """Return the output of one node, by the meaning its operator has in this version: only a whole model says which."""
    from onnx.reference import ReferenceEvaluator

    kind_of, describe = onnx.helper.np_dtype_to_tensor_dtype, onnx.helper.make_tensor_value_info
    inputs = [describe(name, kind_of(value.dtype), value.shape) for name, value in feeds.items()]
    info = onnx.helper.make_empty_tensor_value_info(node.output[0])
    graph = onnx.helper.make_graph([node], "node", inputs, [info])
    outputs: Any = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets)).run(None, feeds)
    return next(iter(outputs))
