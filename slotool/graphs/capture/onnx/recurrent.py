"""Recurrent ONNX operators. Theirs have steps first, then the batch, and an axis for the directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotool.graphs.capture.onnx.calls import Batched, Call, Chain
from slotool.graphs.capture.onnx.reading import Constant, Node
from slotool.graphs.operators import Shape

# Input weights, recurrent weights and biases; the other constants are lengths and states to start from.
TRAINED = (1, 2, 3)
SEQUENCE_RANK = 4


def recurrent_batch(node: Node, at: int, value: Batched, shape: Shape) -> int | None:
    """Where the batch is in the states after every step [steps, directions, batch, units] or the last ones
    [directions, batch, units]; with ``layout`` 1 it is first everywhere."""
    if at != 0:
        return None
    return 0 if node.attributes.get("layout", 0) else len(shape) - 2


def _recurrent(op: str) -> Callable[[Call], Chain]:
    def recurrent(call: Call) -> Chain:
        weight, value = call.constants.get(1), call.values.get(0)
        if value is None or weight is None or len(weight.shape) != 3 or len(value.shape) != 3:
            return None
        units, steps = call.attribute("hidden_size", 0), value.example[0]
        directions, bias = weight.shape[0], call.constants.get(3, Constant(())).weights > 0
        layer = {"units": units, "bidirectional": directions == 2, "bias": bias}
        chain: list[tuple[str, dict[str, object]]] = [(op, layer)]
        if value.windows > 1:
            return _of_several(call, chain, value, directions) if value.axis == 1 and len(call.values) == 1 else None
        if len(call.made.shape) < SEQUENCE_RANK:
            chain.append(("Slice", {"axis": 0, "start": steps - 1, "size": 1}))
        if call.made.example != (steps, directions * units):
            chain.append(("Reshape", {"shape": call.made.example}))
        return chain

    return recurrent


def _of_several(call: Call, layer: list[tuple[str, dict[str, Any]]], value: Batched, directions: int) -> Chain:
    """Over several sequences of each example, which ours has before their steps."""
    (steps, sequences, _), units = value.example, call.attribute("hidden_size", 0)
    begin: list[tuple[str, dict[str, Any]]] = [("Transpose", {"axes": (1, 0, 2)}), *layer]
    if len(call.made.shape) == SEQUENCE_RANK:
        every = ("Reshape", {"shape": (sequences, steps, directions, units)})
        return [*begin, every, ("Transpose", {"axes": (1, 2, 0, 3)})]
    last = ("Slice", {"axis": 1, "start": steps - 1, "size": 1})
    ends = ("Reshape", {"shape": (sequences, directions, units)})
    return [*begin, last, ends, ("Transpose", {"axes": (1, 0, 2)})]


RECURRENT: dict[str, Callable[[Call], Chain]] = {
    "LSTM": _recurrent("LSTM"),
    "GRU": _recurrent("GRU"),
    "RNN": _recurrent("SimpleRNN"),
}
