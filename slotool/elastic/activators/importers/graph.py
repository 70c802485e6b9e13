"""Operator graphs as chains of convolutional and dense layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slotool.elastic.activators.convolution import ConvLayer
from slotool.elastic.activators.mlp import MLP, DenseLayer, Layer
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.graph import Operator
from slotool.graphs.operators import pair, window_padding


def mlp_of_graph(graph: OperatorGraph, parameters: Mapping[str, np.ndarray]) -> MLP:
    """As ``importers.from_graph``."""
    layers, rest = _convolutional_front(graph.operators, parameters)
    for operator in _dense_chain(rest):
        prefix = f"layers.{operator.name.replace('.', '_')}"
        weights = np.ascontiguousarray(parameters[f"{prefix}.weight"], dtype=np.float32)
        bias = parameters.get(f"{prefix}.bias", np.zeros(len(weights)))
        layers.append(DenseLayer(operator.name, weights, np.ascontiguousarray(bias, dtype=np.float32)))
    return MLP(tuple(graph.input_shape), tuple(layers))


def _convolutional_front(
    operators: Sequence[Operator], parameters: Mapping[str, np.ndarray]
) -> tuple[list[Layer], Sequence[Operator]]:
    """The convolutions that a chain of operators begins with, and the operators left; ``operators[0]`` is the input.

    ``(Conv2D → ReLU? → MaxPooling2D?)*``, where ReLU may be the convolution's own. Raises ``InputError``, naming the
    operator, for a convolution that is not followed by ReLU, and for groups, dilation and pooling of another kind.
    """
    layers: list[Layer] = []
    at, before = 1, operators[0]
    while at < len(operators) and operators[at].op == "Conv2D" and operators[at].inputs == (before.name,):
        convolution, rectified, pool = operators[at], operators[at].attributes.get("activation") == "relu", 1
        last, at = convolution, at + 1
        if at < len(operators) and not rectified and _is_relu(operators[at], last):
            rectified, last, at = True, operators[at], at + 1
        if not rectified:
            raise InputError(f"operator {convolution.name!r} has no ReLU; a channel can be dropped only before ReLU")
        if at < len(operators) and operators[at].op == "MaxPooling2D" and operators[at].inputs == (last.name,):
            pool, last, at = _pool(operators[at], last), operators[at], at + 1
        layers.append(_layer(convolution, before.shape, pool, parameters))
        before = last
    return layers, [before, *operators[at:]] if layers else operators


def _is_relu(operator: Operator, before: Operator) -> bool:
    kind = (
        "relu"
        if operator.op == "ReLU"
        else operator.attributes.get("activation")
        if operator.op == "Activation"
        else None
    )
    return kind == "relu" and operator.inputs == (before.name,)


def _pool(operator: Operator, before: Operator) -> int:
    kernel, stride = pair(operator.attributes["kernel"]), pair(operator.attributes.get("stride", 1))
    around = window_padding(operator.attributes, before.shape)
    if len({*kernel, *stride}) > 1 or any(around):
        raise InputError(f"operator {operator.name!r} pools windows that overlap or are not square, or with padding")
    return int(kernel[0])


def _layer(operator: Operator, shape: tuple[int, ...], pool: int, parameters: Mapping[str, np.ndarray]) -> ConvLayer:
    attributes = operator.attributes
    if attributes.get("groups", 1) != 1 or pair(attributes.get("dilation", 1)) != (1, 1):
        raise InputError(
            f"operator {operator.name!r} is a grouped or dilated convolution, which Node Activators do not support"
        )
    # Uneven padding is a layer of its own, and the convolution then the second of two.
    prefix = f"layers.{operator.name.replace('.', '_')}."
    own = {name.rpartition(".")[2]: array for name, array in parameters.items() if name.startswith(prefix)}
    weights = np.ascontiguousarray(own["weight"], dtype=np.float32)
    bias = own.get("bias", np.zeros(len(weights)))
    channels, height, width = shape
    return ConvLayer(
        operator.name,
        weights,
        np.ascontiguousarray(bias, dtype=np.float32),
        (channels, height, width),
        pair(attributes.get("stride", 1)),
        window_padding(attributes, shape),
        pool,
    )


def _dense_chain(operators: Sequence[Operator]) -> Sequence[Operator]:
    """The ``Dense`` operators of a chain with ReLU after all but the last; a ReLU may be an operator of its own."""
    dense: list[Operator] = []
    activations: list[str | None] = []
    before = operators[0]
    for operator in operators[1:]:
        if operator.inputs != (before.name,):
            raise _refusal(operator, "does not follow the operator before it, so the network is no chain")
        if operator.op == "Dense":
            if len(before.shape) != 1:
                raise _refusal(operator, f"takes inputs of shape {before.shape}, which must be flattened first")
            dense.append(operator)
            activations.append(operator.attributes.get("activation"))
        elif operator.op in ("ReLU", "Activation") and dense and activations[-1] is None:
            activations[-1] = operator.attributes.get("activation", "relu")
        elif operator.op != "Flatten" or dense:
            raise _refusal(operator, f"is {operator.op}; Node Activators take Conv2D and Dense layers with ReLU")
        before = operator
    for operator, activation in list(zip(dense, activations, strict=True))[:-1]:
        if activation != "relu":
            raise _refusal(operator, f"has the activation {activation}; a node can be dropped only before ReLU")
    if dense and activations[-1] is not None:
        raise _refusal(dense[-1], f"ends the network with {activations[-1]}; it must give plain logits")
    return dense


def _refusal(operator: Operator, reason: str) -> InputError:
    return InputError(f"operator {operator.name!r} {reason}")
