"""The most memory that a network's outputs take at one time, by when each is read last."""

from __future__ import annotations

import math

from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import Operator


def peak_activation_bytes(graph: OperatorGraph, batch_size: int = 1) -> int:
    """The most bytes that inputs and outputs take at one time for one batch, operators running one by one in order.

    An output lives from the operator that makes it to the last one that reads it; one that nothing reads, and the
    network's inputs, which the caller holds, live to the end. A view shares the memory of what it looks at. An
    activation that is an attribute of a layer reads the layer's result and writes another.

    Not counted: work space within an operator, as of a convolution that unfolds its input or reorders its weights, and
    copies that modules keep until they return; nor what a runtime saves by working in place.
    """
    owners: dict[str, str] = {}
    for operator in graph.operators:
        owners[operator.name] = owners[operator.inputs[0]] if _is_view(operator) else operator.name
    last_read = {owners[name]: at for at, operator in enumerate(graph.operators) for name in operator.inputs}
    read = {name for operator in graph.operators for name in operator.inputs}
    kept = {owners[operator.name] for operator in graph.operators if operator.name not in read or _is_input(operator)}
    values = {operator.name: math.prod(operator.shape) for operator in graph.operators if operator.op != "Constant"}
    freed = [0] * len(graph.operators)
    for name, at in last_read.items():
        freed[at] += 0 if name in kept else values.get(name, 0)
    live = peak = 0
    for operator, freed_after in zip(graph.operators, freed, strict=True):
        live += 0 if _is_view(operator) else values.get(operator.name, 0)
        # Before the activation is done, what the layer read may be gone, but not what the layer found.
        activated = max(0, values.get(operator.name, 0) - freed_after) if _activates(operator) else 0
        peak = max(peak, live + activated)
        live -= freed_after
    return graph.bytes_per_value * batch_size * peak


def _is_view(operator: Operator) -> bool:
    return operator.known and bool(operator.inputs) and operator.moved == 0


def _is_input(operator: Operator) -> bool:
    return operator.op == "InputLayer"


def _activates(operator: Operator) -> bool:
    """Whether its last step is a function of values."""
    return operator.op != "Activation" and operator.attributes.get("activation", "linear") not in ("linear", None)
