"""Operator graphs as chains of dense layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slotool.elastic.activators.importers.chain import Chain
from slotool.elastic.activators.mlp import MLP
from slotool.graphs import OperatorGraph
from slotool.graphs.operator_node import Operator


def mlp_of_graph(graph: OperatorGraph, parameters: Mapping[str, np.ndarray]) -> MLP:
    """As ``importers.from_graph``."""
    chain, current = Chain(tuple(graph.input_shape)), graph.operators[0]
    for operator in graph.operators[1:]:
        if operator.inputs != (current.name,):
            raise chain.refuse(operator.name, "where the network branches")
        _add(chain, operator, parameters)
        current = operator
    return chain.mlp()


def _add(chain: Chain, operator: Operator, parameters: Mapping[str, np.ndarray]) -> None:
    name, op, attributes = operator.name, operator.op, operator.attributes
    if op == "Dense":
        prefix = f"layers.{name.replace('.', '_')}"
        chain.dense(name, parameters[f"{prefix}.weight"], parameters.get(f"{prefix}.bias"))
    elif op == "Flatten":
        chain.flatten(name)
    elif op not in ("ReLU", "Activation"):
        raise chain.refuse(name, op)
    activation = "relu" if op == "ReLU" else attributes.get("activation")
    if activation == "relu":
        chain.relu(name)
    elif activation is not None:
        raise chain.refuse(name, f"of activation {activation}")
