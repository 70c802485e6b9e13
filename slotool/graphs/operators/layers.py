"""Inputs and constants, products of matrices and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.libraries import functional, keras, nn, torch, torch_parts
from slotool.graphs.operators.attributes import Attributes, Shape, broadcast
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction
from slotool.graphs.operators.keras_values import Initializer, Value, in_one_order, layer_name
from slotool.graphs.operators.onnx_writer import BOOL, FLOAT, Writer

if TYPE_CHECKING:
    from torch import Tensor


class InputLayer(OperatorType):
    attributes = {"shape": REQUIRED, "dtype": "float32"}
    inputs = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(attributes["shape"], moved=0)


class Constant(OperatorType):
    """Values that are the same for every example: trained, as position embeddings, or fixed, as masks.

    ``shape`` has no batch; ``weights`` is how many trained numbers they are made of, ``flops`` the cost of their
    products, which run once for a whole batch.
    """

    attributes = {"shape": REQUIRED, "dtype": "float32", "weights": 0, "flops": 0}
    inputs = 0
    is_product = True
    has_memory = False

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(attributes["shape"], attributes["weights"], attributes["flops"], moved=0)


class Dense(OperatorType):
    attributes = {"units": REQUIRED, "bias": True, "activation": None}
    is_product = True
    feature_axis = -1
    onnx_type = FLOAT

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        *outer, features = inputs[0]
        units, positions = attributes["units"], math.prod(outer)
        bias = units if attributes["bias"] else 0
        return Effect((*outer, units), features * units + bias, 2 * features * units * positions)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        features, units = operator.input_shapes[0][-1], operator["units"]
        return nn.Linear(features, units, bias=operator["bias"], device=device)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (shape,), units = operator.input_shapes, operator["units"]
        weight = writer.weight(units, shape[-1])
        bias = [writer.weight(units)] if operator["bias"] else []
        if len(shape) == 1:
            return writer.node("Gemm", values[0], weight, *bias, transB=1)
        product = writer.node("MatMul", values[0], writer.node("Transpose", weight, perm=[1, 0]))
        return writer.node("Add", product, *bias) if bias else product

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (value,), rank = values, len(operator.shape)
        order = value.order if value.order[-1] == rank - 1 else tuple(range(rank))
        layer = keras.layers.Dense(
            operator["units"],
            activation=operator["activation"],
            use_bias=operator["bias"],
            kernel_initializer=weights,
            bias_initializer=weights,
            name=layer_name(operator.name),
        )
        return Value(layer(value.in_order(order)), order)


class MatMul(OperatorType):
    """Products of matrices [..., rows, inner] and [..., inner, columns]; leading axes stretch."""

    inputs = 2
    is_product = True
    feature_axis = -1
    onnx_type = FLOAT

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (*left, rows, inner), (*right, height, columns) = inputs
        if inner != height:
            raise GraphError(f"matrices of {list(inputs[0])} and {list(inputs[1])} cannot be multiplied")
        leading = broadcast([tuple(left), tuple(right)])
        return Effect((*leading, rows, columns), 0, 2 * math.prod(leading) * rows * inner * columns)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        first, second = operator.input_shapes
        return torch.matmul if len(first) == len(second) else lambda x, y: torch.matmul(*torch_parts.aligned(x, y))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("MatMul", *writer.aligned(writer.of_one_type(values), operator.input_shapes))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        stated = [Value.as_stated(value.stated(), len(value.order)) for value in values]
        tensors, order = in_one_order(stated, operator.input_shapes)
        return Value(keras.ops.matmul(*tensors), order)


class ScaledDotProductAttention(OperatorType):
    """Attention of query [..., heads, length, dim], key [..., heads, steps, dim], value [..., heads, steps, width].

    A mask may be added to or choose among the scores [..., length, steps]. Heads of key and value may be fewer, each
    for as many of the query's. FLOPs are those of both products over all scores, also if ``causal`` hides half of them;
    the softmax between is left out, as by torch's own counter.
    """

    attributes = {"causal": False}
    inputs = None
    is_product = True
    feature_axis = -1
    onnx_type = FLOAT

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        query, key, value, *mask = inputs
        (*outer, length, dim), (*groups, steps, depth), width = query, key, value[-1]
        if len(mask) > 1 or depth != dim or value[:-1] != key[:-1] or not _is_grouped(outer, groups):
            raise GraphError(f"attention cannot take inputs {list(map(list, inputs))}")
        if mask:
            broadcast([mask[0], (*outer, length, steps)])
        scores = math.prod(outer) * length * steps
        return Effect((*outer, length, width), 0, 2 * scores * (dim + width))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        query, key, _, *mask = operator.input_shapes
        attention = partial(
            functional.scaled_dot_product_attention,
            # torch takes a mask or hides what is to come, not both.
            is_causal=operator["causal"] and not mask,
            enable_gqa=len(query) > 2 and query[-3] != key[-3],
        )
        return partial(_attended, attention=attention)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        shapes = operator.input_shapes
        (query, key, value, *mask), shape, rank = writer.of_one_batch(values, shapes), shapes[0], len(shapes[0])
        if rank > 2 and shape[-3] != shapes[1][-3]:
            key, value = (
                _for_more_heads(writer, each, of, shape[-3]) for each, of in zip((key, value), shapes[1:3], strict=True)
            )
        # Square root of the scale on both sides, as exported.
        scale = writer.number(shape[-1] ** -0.25)
        key = writer.node("Transpose", key, perm=[*range(rank - 1), rank, rank - 1])
        scores = writer.node("MatMul", writer.node("Mul", query, scale), writer.node("Mul", key, scale))
        if mask:
            # Axes of size one where it has fewer than the scores.
            hidden = writer.aligned([mask[0], query], [shapes[3], shape])[0]
            if writer.kind(hidden) == FLOAT:
                scores = writer.node("Add", scores, hidden)
            else:
                scores = writer.node("Where", writer.cast(hidden, BOOL), scores, writer.number(-np.inf))
        elif operator["causal"]:
            scores = writer.node("Add", scores, writer.array(_later_hidden(operator)[None]))
        return writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        query, key, value = (each.stated() for each in values[:3])
        shape, rank = operator.input_shapes[0], len(operator.shape)
        if rank > 2 and shape[-3] != operator.input_shapes[1][-3]:
            times = shape[-3] // operator.input_shapes[1][-3]
            key, value = (keras.ops.repeat(each, times, axis=rank - 2) for each in (key, value))
        scores = keras.ops.matmul(query * shape[-1] ** -0.5, keras.ops.swapaxes(key, -1, -2))
        if len(values) > 3:
            scores = _masked(scores, values[3], operator.input_shapes[3], rank)
        elif operator["causal"]:
            scores = scores + _later_hidden(operator)
        return Value.as_stated(keras.ops.matmul(keras.ops.softmax(scores, axis=-1), value), rank)


def _is_grouped(outer: Sequence[int], groups: Sequence[int]) -> bool:
    """True if heads of key and value fit those of the query."""
    if list(outer) == list(groups):
        return True
    return len(outer) == len(groups) > 0 and outer[:-1] == groups[:-1] and outer[-1] % groups[-1] == 0


def _later_hidden(operator: Operator) -> np.ndarray:
    """Return what causal attention adds to the scores, [length, steps]: minus infinity for later steps."""
    query, key, *_ = operator.input_shapes
    return np.triu(np.full((query[-2], key[-2]), -np.inf, np.float32), 1)


def _attended(query: Tensor, key: Tensor, value: Tensor, *mask: Tensor, attention: TensorFunction) -> Tensor:
    """Return attention over [batch, …, heads, length, dim]: windows between batch and heads count as examples."""
    query, key, value = torch_parts.of_one_batch(query, key, value)
    windows = query.shape[1:-3]
    # A mask has axes of size one where it has fewer than the scores.
    hidden = [each.reshape(len(each), *[1] * (query.ndim - each.ndim), *each.shape[1:]) for each in mask]
    if windows:
        hidden = [each.expand(len(query), *windows, *[-1] * 3) for each in hidden]
        query, key, value, *hidden = (x.flatten(0, len(windows)) for x in (query, key, value, *hidden))
    added = hidden[0] if hidden else None
    if added is not None and not added.is_floating_point():
        added = added.bool()
    answer = attention(query, key, value, added)
    return answer.unflatten(0, (-1, *windows)) if windows else answer


def _for_more_heads(writer: Writer, value: str, shape: Shape, heads: int) -> str:
    """Write each head of keys or values out for so many of the query's."""
    *outer, few, length, width = shape
    apart = writer.shaped(value, *outer, few, 1, length, width)
    repeated = writer.node("Expand", apart, writer.integers(1, *outer, few, heads // few, length, width))
    return writer.shaped(repeated, *outer, heads, length, width)


def _masked(scores: Any, mask: Value, shape: Shape, rank: int) -> Any:
    tensor = mask.stated()
    if len(shape) < rank:
        tensor = keras.ops.reshape(tensor, (-1, *[1] * (rank - len(shape)), *shape))
    if keras.backend.standardize_dtype(tensor.dtype).startswith("float"):
        return scores + tensor
    return keras.ops.where(keras.ops.cast(tensor, "bool"), scores, -np.inf)
