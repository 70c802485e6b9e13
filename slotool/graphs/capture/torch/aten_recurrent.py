"""ATen calls of recurrent layers, as operators."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import fx

from slotool.graphs.capture.batch_axis import axis_of
from slotool.graphs.capture.torch.nodes import arguments_of
from slotool.graphs.capture.torch.values import Call, Untranslatable, Value
from slotool.graphs.operators import Shape

Names = list[str]
Translator = Callable[[Call], Names]


def recurrent(op: str) -> Translator:
    """A recurrent layer over (steps, features); its last state is the last step of its output."""

    def translate(call: Call) -> Names:
        value = call.data("input")
        directions = 1 + bool(call["bidirectional"])
        steps_axis, rank = value.at(1 if call["batch_first"] else 0), len(value.shape)
        if rank not in (2, 3):
            raise Untranslatable("no steps of features")
        answer = call.out.whole[-1] // directions
        given = {"layers": call["num_layers"], "bias": bool(call["has_biases"]), **_units(call, op, answer)}
        # Sequences that are folded with the batch come first.
        order = [*(axis for axis in range(rank - 1) if axis != steps_axis), steps_axis, rank - 1]
        source = call.emit.transpose(call.source(value), order)
        first = _first_states(call, directions * given["layers"] * answer) if rank == 2 else []
        name = call.emit.add(op, [source, *first], **given, bidirectional=directions == 2)
        if call.emit.weights != sum(math.prod(each.whole) for each in call["params"]):
            raise Untranslatable("other weights than such a layer has")
        states = []
        for out in call.outs[1:]:
            last = call.emit.add("Slice", name, axis=rank - 2, start=value.shape[steps_axis] - 1, size=1)
            states.append(_state(call, last, out.shape))
        return [call.emit.transpose(name, [order.index(axis) for axis in range(rank)]), *states]

    return translate


def cell(op: str) -> Translator:
    """A cell: a recurrent layer over one step. The state of an LSTM besides its output is taken for that."""

    def translate(call: Call) -> Names:
        value, (units,) = call.data("input"), call["w_hh"].whole[-1:]
        if len(value.shape) != 1:
            raise Untranslatable("no features of one step")
        step = call.emit.reshape(call.source(value), (1, *value.shape))
        name = call.emit.add(op, [step, *_first_states(call, units)], units=units, bias=call["b_ih"] is not None)
        trained = [each for each in (call[key] for key in ("w_ih", "w_hh", "b_ih", "b_hh")) if each is not None]
        if call.emit.weights != sum(math.prod(each.whole) for each in trained):
            raise Untranslatable("other weights than such a cell has")
        return [call.emit.reshape(name, (units,))] * len(call.outs)

    return translate


def steps_over_examples(name: str, node: fx.Node, batch: int) -> bool:
    """Whether a recurrent layer takes the axis of the batch for steps, as one that has steps first does of inputs whose
    first axis is the batch."""
    if name not in RECURRENT or name.endswith("_cell"):
        return False
    arguments = arguments_of(node)
    found = axis_of(arguments.get("input") or (), batch)
    return found is not None and found[0] == int(bool(arguments.get("batch_first")))


def _first_states(call: Call, size: int) -> list[str]:
    """What it begins with, where that is computed, as a decoder's by an encoder."""
    given = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    states = [each for each in given if isinstance(each, Value) and each.is_data and math.prod(each.shape) == size]
    return [call.source(each) for each in states]


def _state(call: Call, last: str, shape: Shape) -> str:
    """A layer's last state, which is there already: a view of ``last``, the last step of what the layer answers, as
    often as there are layers; empty where it is of another size."""
    size, wanted = math.prod(call.emit.shape(last)), math.prod(shape)
    if wanted % size:
        return ""
    if wanted == size:
        return call.emit.reshape(last, shape)
    row = call.emit.reshape(last, [1, size])
    return call.emit.reshape(call.emit.add("Expand", row, shape=(wanted // size, size)), shape)


def _units(call: Call, op: str, answer: int) -> dict[str, int]:
    """Of an LSTM the matrix of the state, [4 × units, answer], tells units from what a projection makes of them."""
    units = call["params"][1].whole[0] // 4 if op == "LSTM" else answer
    return {"units": units, **({"projection": answer} if units != answer else {})}


RECURRENT: dict[str, Translator] = {
    "lstm": recurrent("LSTM"),
    "gru": recurrent("GRU"),
    "rnn_tanh": recurrent("SimpleRNN"),
    "rnn_relu": recurrent("SimpleRNN"),
    "lstm_cell": cell("LSTM"),
    "gru_cell": cell("GRU"),
    "rnn_tanh_cell": cell("SimpleRNN"),
    "rnn_relu_cell": cell("SimpleRNN"),
}
