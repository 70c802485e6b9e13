"""An operator graph as a Keras functional model, images channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.indices import Indices, is_trained
from slotool.graphs.libraries import keras
from slotool.graphs.operators import OPERATORS, Operator
from slotool.graphs.operators.base import cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, usual_order


def functional_model(graph: OperatorGraph, weights: Initializer) -> keras.Model:
    """Return the model whose layers are named as the operators; ``weights(shape, dtype)`` fills kernels and biases.

    Each input is [batch, *shape], but images, [batch, height, width, channels], and so is an output that is one.
    Transpositions only change how values are read; what needs an image finds it channels last. ``Flatten`` keeps the
    order in which its values lie. Raises ``GraphError`` for an operator that cannot be built.
    """
    values: dict[str, Value] = {}
    indices = Indices(graph)
    for operator in graph.operators:
        name = operator.name
        if operator.op == "InputLayer":
            order = usual_order(len(operator.shape))
            shape = tuple(operator.shape[axis] for axis in order)
            values[name] = Value(keras.Input(shape, dtype=operator.attributes.get("dtype")), order)
        elif operator.op == "Constant":
            values[name] = _constant(operator, indices, weights)
        elif name in indices.unsure:
            raise cannot_be_built(operator, "Keras", f"{operator.op} of computed places")
        else:
            values[name] = _built(operator, [values[source] for source in operator.inputs], weights)
    inputs = [values[operator.name].tensor for operator in graph.inputs]
    end = values[graph.operators[-1].name].for_layer()
    return keras.Model(inputs[0] if len(inputs) == 1 else inputs, end)


def channels_last(values: Any) -> Any:
    """Return an array of images, [batch, channels, height, width], with channels last; any other as it is."""
    return np.ascontiguousarray(np.moveaxis(values, 1, -1)) if values.ndim == 4 else values


def _constant(operator: Operator, indices: Indices, weights: Initializer) -> Value:
    shape = (1, *operator.shape)
    if is_trained(operator):
        return Value.as_stated(weights(shape), len(operator.shape))
    filled = indices.filled(operator, np.random.default_rng(0), 1)
    return Value.as_stated(keras.ops.convert_to_tensor(filled), len(operator.shape))


def _built(operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
    if not operator.known:
        raise cannot_be_built(operator, "Keras")
    try:
        return OPERATORS[operator.op].keras(operator, values, weights)
    except (AttributeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:160]
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in Keras ({words})") from error
