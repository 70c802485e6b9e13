"""An operator graph as an ONNX model, the way PyTorch's own export writes one; its weights are handed over apart."""

from __future__ import annotations

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.indices import Indices, batch_free, is_trained
from slotool.graphs.libraries import onnx
from slotool.graphs.operators import OPERATORS, Operator, channel_axis
from slotool.graphs.operators.base import cannot_be_built
from slotool.graphs.operators.elementwise import ACTIVATIONS
from slotool.graphs.operators.onnx_writer import FLOAT, INT64, KINDS, Weight, Writer

__all__ = ["Weight", "input_names", "onnx_model"]

# The first that has Gelu; onnxruntime runs it since 1.17.
OPSET = 20
IR_VERSION = 9


def input_names(graph: OperatorGraph) -> list[str]:
    """Return the names of the model's inputs, in order: ``input``, then ``input_1`` and on."""
    return ["input", *(f"input_{at}" for at in range(1, len(graph.inputs)))]


def onnx_model(graph: OperatorGraph, batch_size: int) -> tuple[onnx.ModelProto, list[Weight]]:
    """Return the model, inputs ``input_names`` and output ``output``, [batch_size, *shape], and the weights it needs.

    Inputs are of the graph's types, the output is float32. Weights are in the order, and of the shapes, of
    ``GraphModule``'s parameters; being external they do not count towards the 2 GB that a protobuf message can hold.
    Raises ``GraphError`` for an operator that cannot be built.
    """
    writer, free, indices = Writer(batch_size), batch_free(graph), Indices(graph)
    values: dict[str, str] = {}
    starts, names = [], iter(input_names(graph))
    for operator in graph.operators:
        writer.operator = operator.name
        if operator.op == "InputLayer":
            values[operator.name] = name = next(names)
            writer.kinds[name] = _kind(operator)
            shape = [batch_size, *operator.shape]
            starts.append(onnx.helper.make_tensor_value_info(name, _kind(operator), shape))
            continue
        if operator.op == "Constant":
            value = _constant(writer, operator, indices)
        else:
            value = _built(writer, operator, indices, [values[name] for name in operator.inputs])
        values[operator.name] = value
        if operator.name in free:
            writer.free.add(value)
    last = writer.cast(values[graph.operators[-1].name], FLOAT)
    writer.nodes.append(onnx.helper.make_node("Identity", [last], ["output"]))
    end = onnx.helper.make_tensor_value_info("output", FLOAT, [batch_size, *graph.output_shape])
    body = onnx.helper.make_graph(writer.nodes, graph.kind, starts, [end], writer.initialisers)
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=IR_VERSION), writer.weights


def _kind(operator: Operator) -> int:
    dtype = operator.attributes.get("dtype", "float32")
    if dtype not in KINDS:
        raise cannot_be_built(operator, "ONNX", f"values of {dtype}")
    return KINDS[dtype]


def _constant(writer: Writer, operator: Operator, indices: Indices) -> str:
    if is_trained(operator):
        return writer.weight(1, *operator.shape)
    name = writer.array(indices.filled(operator, np.random.default_rng(0), 1))
    writer.kinds[name] = _kind(operator)
    return name


def _built(writer: Writer, operator: Operator, indices: Indices, values: list[str]) -> str:
    # A type of slotool's may be stated in a file that was written before it was one.
    if not operator.known:
        raise cannot_be_built(operator, "ONNX")
    if operator.name in indices.unsure:
        position, limit = indices.bound_of(operator)
        places = writer.cast(values[position], INT64)
        values[position] = writer.node("Clip", places, writer.number(0, INT64), writer.number(limit - 1, INT64))
        writer.kinds[values[position]] = INT64
        if places in writer.free:
            writer.free.add(values[position])
    kind = OPERATORS[operator.op].onnx_kind(operator, [writer.kind(value) for value in values])
    value = OPERATORS[operator.op].onnx(writer, operator, values)
    if kind != FLOAT and value not in values:
        writer.kinds[value] = kind
    return _activated(writer, operator, value)


def _activated(writer: Writer, operator: Operator, value: str) -> str:
    """Append the operator's activation with torch's constants; silu is spelt out as by exporters."""
    activation = operator.attributes.get("activation")
    if activation is None:
        return value
    if activation == "softmax":
        return writer.node("Softmax", value, axis=1 + channel_axis(operator.shape))
    if activation == "silu":
        return writer.node("Mul", value, writer.node("Sigmoid", value))
    if activation == "relu6":
        return writer.node("Clip", value, writer.number(0.0), writer.number(6.0))
    names = ACTIVATIONS.get(activation)
    if names is None or names.onnx is None:
        raise GraphError(f"operator {operator.name!r}: unknown activation {activation!r}")
    return writer.node(names.onnx, value, **names.onnx_attributes)
