"""Products, attention, norms, reductions and functions of values in Keras, for values whose axes lie in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, channel_axis
from slotool.profiling.backends.keras_values import (
    Function,
    Initializer,
    Value,
    alike,
    is_computed,
    layer_name,
    without,
)

# torch's epsilon, so that both backends compute the same.
EPSILON = 1e-5
# What they are called in ``keras.ops``, if otherwise.
_UNARY = {"not": "logical_not", "is_finite": "isfinite", "is_nan": "isnan", "bitwise_not": "bitwise_not"} | {
    name: name
    for name in (
        *("negative", "reciprocal", "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2"),
        *("round", "rsqrt", "sign", "sin", "sinh", "cosh", "sqrt", "square", "tan", "trunc"),
    )
}
# With the number that stands for a second input: a graph does not hold the one that was there.
_BINARY: dict[str, tuple[str, float]] = {
    "subtract": ("subtract", 1),
    "divide": ("divide", 2),
    "floor_divide": ("floor_divide", 2),
    "remainder": ("mod", 2),
    "power": ("power", 2),
    "maximum": ("maximum", 0),
    "minimum": ("minimum", 0),
    "equal": ("equal", 0),
    "not_equal": ("not_equal", 0),
    "less": ("less", 0),
    "less_equal": ("less_equal", 0),
    "greater": ("greater", 0),
    "greater_equal": ("greater_equal", 0),
    "and": ("logical_and", 1),
    "or": ("logical_or", 0),
    "xor": ("logical_xor", 0),
}
_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "Max": "max", "Min": "min", "Product": "prod", "Variance": "var"}
_LOGICAL = {"Any": "any", "All": "all"}


def _dense(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    import keras

    (value,), last = values, len(inputs[0]) - 1
    order = value.order if value.order[-1] == last else tuple(range(len(inputs[0])))
    layer = keras.layers.Dense(
        operator.attributes["units"],
        activation=operator.attributes.get("activation"),
        use_bias=operator.attributes.get("bias", True),
        kernel_initializer=weights,
        bias_initializer=weights,
        name=layer_name(operator),
    )
    return Value(layer(value.in_order(order)), order)


def _embedding(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    import keras

    vocabulary, units = operator.attributes["vocabulary"], operator.attributes["units"]
    layer = keras.layers.Embedding(vocabulary, units, embeddings_initializer=weights, name=layer_name(operator))
    return Value.as_stated(layer(values[0].stated()), len(operator.shape))


def _mat_mul(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    stated = [Value.as_stated(value.stated(), len(value.order)) for value in values]
    tensors, order = alike(stated, inputs)
    return Value(keras.ops.matmul(*tensors), order)


def _attention(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    query, key, value = (each.stated() for each in values[:3])
    shape, rank = inputs[0], len(inputs[0])
    if rank > 2 and shape[-3] != inputs[1][-3]:
        times = shape[-3] // inputs[1][-3]
        key, value = (keras.ops.repeat(each, times, axis=rank - 2) for each in (key, value))
    turned = keras.ops.swapaxes(key, -1, -2)
    scores = keras.ops.matmul(query * shape[-1] ** -0.5, turned)
    if len(values) > 3:
        scores = _masked(scores, values[3], inputs[3], rank)
    elif operator.attributes.get("causal"):
        hidden = np.triu(np.full((shape[-2], inputs[1][-2]), -np.inf, np.float32), 1)
        scores = scores + hidden
    return Value.as_stated(keras.ops.matmul(keras.ops.softmax(scores, axis=-1), value), rank)


def _masked(scores: Any, mask: Value, shape: Shape, rank: int) -> Any:
    import keras

    tensor = mask.stated()
    if len(shape) < rank:
        tensor = keras.ops.reshape(tensor, (-1, *[1] * (rank - len(shape)), *shape))
    if keras.backend.standardize_dtype(tensor.dtype).startswith("float"):
        return scores + tensor
    return keras.ops.where(keras.ops.cast(tensor, "bool"), scores, -np.inf)


def _norm(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    """Layer, RMS, batch and group norm. Statistics and factors keep Keras's own start."""
    import keras

    (value,), attributes, kind = values, operator.attributes, operator.op
    options: dict[str, Any] = {"epsilon": EPSILON, "name": layer_name(operator)}
    if kind != "RMSNormalization":
        options |= {part: attributes.get(part, True) for part in ("scale", "center")}
    usual = channel_axis(inputs[0])
    if kind == "LayerNormalization":
        axes = sorted(value.at(axis) for axis in attributes.get("axes", (usual,)))
        options["axis"] = axes if len(axes) > 1 else axes[0]
    elif kind == "RMSNormalization":
        (axis,) = attributes.get("axes", (usual,))
        options["axis"] = value.at(axis)
    elif kind == "GroupNormalization":
        options |= {"groups": attributes["groups"], "axis": value.at(0)}
    else:
        options["axis"] = value.at(attributes.get("axis", usual))
    return Value(getattr(keras.layers, kind)(**options)(value.tensor), value.order)


def _softmax(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    at = values[0].at(operator.attributes.get("axis", channel_axis(inputs[0])))
    return Value(keras.layers.Softmax(axis=at, name=layer_name(operator))(values[0].tensor), values[0].order)


def _activation(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    import keras

    name = operator.attributes.get("activation", "relu")
    if name == "softmax":
        return _softmax(operator, inputs, values, weights)
    layer = keras.layers.Activation(name, name=layer_name(operator))
    return Value(layer(values[0].tensor), values[0].order)


def _rescaling(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    # A factor of one would be left out.
    return Value(keras.layers.Rescaling(1 / 255, name=layer_name(operator))(values[0].tensor), values[0].order)


def _folded(name: str) -> Function:
    def build(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
        import keras

        tensors, order = alike(values, inputs)
        if len(values) > 1 and all(map(is_computed, values)):
            return Value(getattr(keras.layers, operator.op)(name=layer_name(operator))(tensors), order)
        return Value(reduce(getattr(keras.ops, name), tensors), order)

    return build


def _elementwise(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    name = operator.attributes["function"]
    if name == "clamp":
        return Value(keras.ops.clip(values[0].tensor, -1, 1), values[0].order)
    if name in _UNARY:
        return Value(getattr(keras.ops, _UNARY[name])(values[0].tensor), values[0].order)
    if name not in _BINARY:
        raise GraphError(f"operator {operator.name!r}: {name} cannot be built in Keras")
    called, number = _BINARY[name]
    tensors, order = alike(values, inputs)
    return Value(getattr(keras.ops, called)(*tensors, *[number] * (2 - len(tensors))), order)


def _where(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    """A number stands for each value that is missing: 1 for the first, 0 for the other."""
    import keras

    (condition, *others), order = alike(values, inputs)
    missing = [1.0, 0.0] if not others else [0.0]
    return Value(keras.ops.where(keras.ops.cast(condition, "bool"), *others, *missing[: 2 - len(others)]), order)


def _cast(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
    import keras

    return Value(keras.ops.cast(values[0].tensor, operator.attributes["dtype"]), values[0].order)


def _reduction(name: str, convert: Callable[[Any], Any] | None = None) -> Function:
    def build(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], _: Initializer) -> Value:
        import keras

        (value,), axes = values, operator.attributes["axes"]
        keepdims = operator.attributes.get("keepdims", False)
        tensor = value.tensor if convert is None else convert(value.tensor)
        made = getattr(keras.ops, name)(tensor, axis=tuple(value.at(axis) for axis in axes), keepdims=keepdims)
        return Value(made, value.order if keepdims else without(value.order, axes))

    return build


def _as_bool(tensor: Any) -> Any:
    import keras

    return keras.ops.cast(tensor, "bool")


def _recurrent(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    import keras

    attributes = operator.attributes
    if len(inputs[0]) != 2 or not is_computed(values[0]):
        raise GraphError(f"operator {operator.name!r}: {operator.op} over several sequences cannot be built in Keras")
    if attributes.get("projection"):
        raise GraphError(f"operator {operator.name!r}: an LSTM with a projection cannot be built in Keras")
    x = values[0].stated()
    # An LSTM that is given one state takes it for both.
    directions = 1 + attributes.get("bidirectional", False)
    rows = directions * attributes.get("layers", 1)
    states = [keras.ops.reshape(value.stated(), (-1, rows, attributes["units"])) for value in values[1:]]
    states = [*states, states[-1]][:2] if states and operator.op == "LSTM" else states
    for number in range(attributes.get("layers", 1)):
        own = [[state[:, number * directions + side] for state in states] for side in range(directions)]
        sides = [_one_way(operator, number, weights, side > 0, x, own[side]) for side in range(directions)]
        x = sides[0] if directions == 1 else keras.ops.concatenate(sides, axis=-1)
    return Value.as_stated(x, 2)


def _one_way(
    operator: Operator, number: int, weights: Initializer, backwards: bool, x: Any, states: Sequence[Any]
) -> Any:
    """One direction of a recurrent layer. ``keras.layers.Bidirectional`` copies its layer by what can be written to a
    file, as our weights cannot."""
    import keras

    layer = getattr(keras.layers, operator.op)(
        operator.attributes["units"],
        return_sequences=True,
        go_backwards=backwards,
        use_bias=operator.attributes.get("bias", True),
        kernel_initializer=weights,
        recurrent_initializer=weights,
        name=f"{layer_name(operator)}_{number}{'_backwards' if backwards else ''}",
    )
    steps = layer(x, initial_state=list(states)) if states else layer(x)
    return keras.ops.flip(steps, axis=1) if backwards else steps


ARITHMETIC: dict[str, Function] = {
    "Dense": _dense,
    "Embedding": _embedding,
    "MatMul": _mat_mul,
    "ScaledDotProductAttention": _attention,
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _recurrent),
    **dict.fromkeys(("BatchNormalization", "LayerNormalization", "RMSNormalization", "GroupNormalization"), _norm),
    "Softmax": _softmax,
    "Activation": _activation,
    "ReLU": _activation,
    "Rescaling": _rescaling,
    "Add": _folded("add"),
    "Multiply": _folded("multiply"),
    "Elementwise": _elementwise,
    "Where": _where,
    "Cast": _cast,
    **{kind: _reduction(name) for kind, name in _REDUCTIONS.items()},
    **{kind: _reduction(name, _as_bool) for kind, name in _LOGICAL.items()},
}
