"""Products, attention, recurrent layers and norms in ONNX, written as PyTorch's own export writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, channel_axis, per_channel
from slotool.profiling.backends.onnx_arithmetic import rescale
from slotool.profiling.backends.onnx_writer import BOOL, EPSILON, FLOAT, INT32, INT64, Layer, Writer


def _dense(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    units = operator.attributes["units"]
    weight = writer.weight(units, inputs[0][-1])
    bias = [writer.weight(units)] if operator.attributes.get("bias", True) else []
    if len(inputs[0]) == 1:
        return writer.node("Gemm", values[0], weight, *bias, transB=1)
    product = writer.node("MatMul", values[0], writer.node("Transpose", weight, perm=[1, 0]))
    return writer.node("Add", product, *bias) if bias else product


def _embedding(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    table = writer.weight(operator.attributes["vocabulary"], operator.attributes["units"])
    places = values[0] if writer.kind(values[0]) == INT32 else writer.cast(values[0], INT64)
    return writer.node("Gather", table, places, axis=0)


def _mat_mul(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("MatMul", *writer.aligned(writer.alike(values), inputs))


def _attention(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    (query, key, value, *mask), shape = writer.of_one_batch(values, inputs), inputs[0]
    if len(shape) > 2 and shape[-3] != inputs[1][-3]:
        key, value = (
            _for_more_heads(writer, each, of, shape[-3]) for each, of in zip((key, value), inputs[1:3], strict=True)
        )
    rank = len(shape)
    # As exported: the square root of the scale on both sides.
    scale = writer.number(shape[-1] ** -0.25)
    key = writer.node("Transpose", key, perm=[*range(rank - 1), rank, rank - 1])
    scores = writer.node("MatMul", writer.node("Mul", query, scale), writer.node("Mul", key, scale))
    if mask:
        scores = _masked(writer, scores, writer.aligned([mask[0]], [inputs[3]])[0], inputs[3], rank)
    elif operator.attributes.get("causal"):
        hidden = np.triu(np.full((1, shape[-2], inputs[1][-2]), -np.inf, np.float32), 1)
        scores = writer.node("Add", scores, writer.array(hidden))
    return writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)


def _for_more_heads(writer: Writer, value: str, shape: Shape, heads: int) -> str:
    """Each head of keys or values written out for so many of the query's."""
    *outer, few, length, width = shape
    apart = writer.shaped(value, *outer, few, 1, length, width)
    repeated = writer.node("Expand", apart, writer.integers(1, *outer, few, heads // few, length, width))
    return writer.shaped(repeated, *outer, heads, length, width)


def _masked(writer: Writer, scores: str, mask: str, shape: Shape, rank: int) -> str:
    if len(shape) < rank:
        mask = writer.shaped(mask, *[1] * (rank - len(shape)), *shape)
    if writer.kind(mask) == FLOAT:
        return writer.node("Add", scores, mask)
    return writer.node("Where", writer.cast(mask, BOOL), scores, writer.number(-np.inf))


def _recurrent(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """torch keeps its gates in another order, and both directions and biases apart."""
    (*sequences, steps, features), attributes = inputs[0], operator.attributes
    units, directions = attributes["units"], 1 + attributes.get("bidirectional", False)
    if attributes.get("projection"):
        raise GraphError(f"operator {operator.name!r}: an LSTM with a projection cannot be built in ONNX")
    op, order, options = {
        "LSTM": ("LSTM", (0, 3, 1, 2), {}),
        "GRU": ("GRU", (1, 0, 2), {"linear_before_reset": 1}),
        "SimpleRNN": ("RNN", (0,), {}),
    }[operator.op]
    # Several sequences of one example are as good as examples.
    x = writer.node("Reshape", values[0], writer.integers(-1, steps, features)) if sequences else values[0]
    x = writer.node("Transpose", x, perm=[1, 0, 2])
    # An LSTM that is given one state takes it for both.
    layers = attributes.get("layers", 1)
    states = [_first_states(writer, value, layers * directions, units) for value in values[1:]]
    states = [*states, states[-1]][:2] if states and operator.op == "LSTM" else states
    for layer in range(layers):
        rows = (writer.integers(layer * directions), writer.integers((layer + 1) * directions), writer.integers(0))
        own = [writer.node("Slice", state, *rows) for state in states] if layers > 1 else states
        sides = [_gates(writer, order, units, features, bias=attributes.get("bias", True)) for _ in range(directions)]
        joined = [writer.node("Concat", *parts, axis=0) for parts in zip(*sides, strict=True)]
        direction = "bidirectional" if directions == 2 else "forward"
        given = [*joined, *[""] * (4 - len(joined)), *own] if own else joined
        made = writer.node(op, x, *given, hidden_size=units, direction=direction, **options)
        features = directions * units
        x = writer.node("Reshape", writer.node("Transpose", made, perm=[0, 2, 1, 3]), writer.integers(0, 0, features))
    x = writer.node("Transpose", x, perm=[1, 0, 2])
    return writer.node("Reshape", x, writer.integers(-1, *sequences, steps, features)) if sequences else x


def _first_states(writer: Writer, value: str, layers: int, units: int) -> str:
    """With an axis for layers and directions in front."""
    if layers == 1:
        return writer.node("Reshape", value, writer.integers(1, -1, units))
    return writer.node("Transpose", writer.node("Reshape", value, writer.integers(-1, layers, units)), perm=[1, 0, 2])


def _gates(writer: Writer, order: Sequence[int], units: int, features: int, *, bias: bool) -> list[str]:
    """Weights of the input, of the state and, if any, biases, with an axis for the direction in front."""
    count = len(order)
    sizes = [(count * units, features), (count * units, units)] + ([(count * units,)] * 2 if bias else [])
    turned = []
    for size in sizes:
        parts = writer.nodes_of("Split", count, writer.weight(*size), axis=0, num_outputs=count)
        turned.append(writer.node("Concat", *(parts[gate] for gate in order), axis=0))
    if bias:
        turned[2:] = [writer.node("Concat", *turned[2:], axis=0)]
    return [writer.node("Unsqueeze", part, writer.integers(0)) for part in turned]


def _batch_norm(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    shape = inputs[0]
    axis = operator.attributes.get("axis", channel_axis(shape))
    parts = _scale_and_shift(writer, operator, shape[axis])
    statistics = [writer.weight(shape[axis], trained=False) for _ in range(2)]
    order = [axis, *(other for other in range(len(shape)) if other != axis)]
    x = writer.node("BatchNormalization", writer.turned(values[0], order), *parts, *statistics, epsilon=EPSILON)
    return writer.turned(x, np.argsort(order).tolist())


def _layer_norm(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axes, order = _axes_last(operator, inputs[0])
    parts = _scale_and_shift(writer, operator, *(inputs[0][axis] for axis in axes))
    x = writer.turned(values[0], order)
    x = writer.node("LayerNormalization", x, *parts, axis=-len(axes), epsilon=EPSILON)
    return writer.turned(x, np.argsort(order).tolist())


def _rms_norm(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    axes, order = _axes_last(operator, inputs[0])
    x = writer.turned(values[0], order)
    squares = writer.node("Pow", x, writer.number(2.0))
    mean = writer.node("ReduceMean", squares, writer.integers(*range(-len(axes), 0)), keepdims=1)
    x = writer.node("Div", x, writer.node("Sqrt", writer.node("Add", mean, writer.number(EPSILON))))
    if operator.attributes.get("scale", True):
        x = writer.node("Mul", x, writer.weight(*(inputs[0][axis] for axis in axes)))
    return writer.turned(x, np.argsort(order).tolist())


def _axes_last(operator: Operator, shape: Shape) -> tuple[list[int], list[int]]:
    """The axes that are normalised, and the order of axes in which they are the last."""
    axes = list(operator.attributes.get("axes", (channel_axis(shape),)))
    return axes, [*(axis for axis in range(len(shape)) if axis not in axes), *axes]


def _group_norm(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """As exported: an instance norm over groups, then the scale and shift of each channel."""
    channels, groups = inputs[0][0], operator.attributes["groups"]
    grouped = writer.shaped(values[0], groups, math.prod(inputs[0]) // groups)
    ones, zeros = writer.repeated(1.0, groups), writer.repeated(0.0, groups)
    x = writer.node("InstanceNormalization", grouped, ones, zeros, epsilon=EPSILON)
    x = writer.shaped(x, *inputs[0])
    for part, op in (("scale", "Mul"), ("center", "Add")):
        if operator.attributes.get(part, True):
            around = [1] * (len(inputs[0]) - 1)
            trained = writer.node("Reshape", writer.weight(channels), writer.integers(channels, *around))
            x = writer.node(op, x, trained)
    return x


def _response_norm(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("LRN", values[0], size=operator.attributes["size"])


def _scale_and_shift(writer: Writer, operator: Operator, *sizes: int) -> list[str]:
    """ONNX wants both; one that is not trained is made of nothing but its neutral number."""
    parts = []
    for part, neutral in (("scale", 1.0), ("center", 0.0)):
        if operator.attributes.get(part, True):
            parts.append(writer.weight(*sizes))
        else:
            made = writer.repeated(neutral, math.prod(sizes))
            parts.append(made if len(sizes) == 1 else writer.node("Reshape", made, writer.integers(*sizes)))
    return parts


def _normalization(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    if operator.attributes.get("fixed"):
        return rescale(writer, operator, inputs, values)
    mean, deviation = (writer.weight(*per_channel(inputs[0]), trained=False) for _ in range(2))
    return writer.node("Div", writer.node("Sub", values[0], mean), deviation)


def _layer_scale(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Mul", values[0], writer.weight(*per_channel(inputs[0])))


WEIGHTED: dict[str, Layer] = {
    "Dense": _dense,
    "Embedding": _embedding,
    "MatMul": _mat_mul,
    "ScaledDotProductAttention": _attention,
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _recurrent),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "GroupNormalization": _group_norm,
    "LocalResponseNormalization": _response_norm,
    "Normalization": _normalization,
    "LayerScale": _layer_scale,
}
