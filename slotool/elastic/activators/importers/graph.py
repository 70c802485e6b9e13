"""Operator graphs as chains of convolutional and dense layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slotool.elastic.activators.importers.chain import Chain
from slotool.elastic.activators.mlp import MLP
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import pair, window_padding


def mlp_of_graph(graph: OperatorGraph, parameters: Mapping[str, np.ndarray]) -> MLP:
    """As ``importers.from_graph``."""
    chain, current = Chain(tuple(graph.input_shape)), graph.operators[0]
    for operator in graph.operators[1:]:
        if operator.inputs != (current.name,):
            raise chain.refuse(operator.name, "where the network branches")
        _add(chain, operator, current.shape, parameters)
        current = operator
    return chain.mlp()


def _add(chain: Chain, operator: Operator, shape: tuple[int, ...], parameters: Mapping[str, np.ndarray]) -> None:
    """``shape``: of what comes in."""
    name, op, attributes = operator.name, operator.op, operator.attributes
    if op == "Dense":
        chain.dense(name, *_weights(operator, parameters))
    elif op == "Conv2D":
        if attributes.get("groups", 1) != 1 or pair(attributes.get("dilation", 1)) != (1, 1):
            raise chain.refuse(name, "a grouped or dilated convolution")
        stride = pair(attributes.get("stride", 1))
        chain.convolution(name, *_weights(operator, parameters), stride, window_padding(attributes, shape))
    elif op == "MaxPooling2D":
        kernel, stride = pair(attributes["kernel"]), pair(attributes.get("stride", 1))
        chain.max_pool(name, kernel, stride, not any(window_padding(attributes, shape)))
    elif op == "Flatten":
        chain.flatten(name)
    elif op not in ("ReLU", "Activation"):
        raise chain.refuse(name, op)
    activation = "relu" if op == "ReLU" else attributes.get("activation")
    if activation == "relu":
        chain.relu(name)
    elif activation is not None:
        raise chain.refuse(name, f"of activation {activation}")


def _weights(operator: Operator, parameters: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
    # Uneven padding is a layer of its own, and the convolution then the second of two.
    prefix = f"layers.{operator.name.replace('.', '_')}."
    own = {name.rpartition(".")[2]: array for name, array in parameters.items() if name.startswith(prefix)}
    return own["weight"], own.get("bias")
