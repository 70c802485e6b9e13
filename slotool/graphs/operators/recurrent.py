"""Recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, nn, torch_parts
from slotool.graphs.operators.attributes import Attributes, Shape
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, is_computed, layer_name
from slotool.graphs.operators.onnx_writer import Writer

# Weights of a recurrent layer that stay in the last cache from step to step, as numbers: 16 MiB of float32.
CACHED_WEIGHTS = 2**22


class _Recurrent(OperatorType, abstract=True):
    """Recurrent layer over (steps, features), or (sequences, steps, features), with a state of ``units`` numbers.

    Each sequence is one more example. It may have initial states as further inputs, each of as many numbers as its
    output, layer by layer, each in both directions. ``projection``: size of its output, made of the state by one more
    product, if it is not the state itself (Sak, Senior and Beaufays 2014). ``biases``: number for each gate, two as in
    torch, ONNX and Keras' GRU, or one as in Keras' other layers.

    Each step waits for the one before: it reads again the state's weights that no cache holds, and takes ``step_calls``
    kernels of its own. All steps of an LSTM without a projection are one kernel, as in oneDNN. ``gate_order``: torch's
    gates in the order of ONNX.
    """

    attributes = {"units": REQUIRED, "layers": 1, "bidirectional": False, "bias": True, "biases": 2}
    inputs = None
    is_product = True
    feature_axis = -1
    reads_weights_again = True
    step_calls: ClassVar[int] = 1
    torch_name: ClassVar[str]
    onnx_op: ClassVar[str]
    onnx_options: ClassVar[dict[str, int]] = {}
    gate_order: ClassVar[tuple[int, ...]]

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        *sequences, steps, features = inputs[0]
        if len(sequences) > 1:
            raise GraphError(f"a recurrent layer cannot take inputs of {list(inputs[0])}")
        gates, units = len(self.gate_order), attributes["units"]
        layers, directions = attributes["layers"], 1 + attributes["bidirectional"]
        bias = attributes["biases"] * gates * units if attributes["bias"] else 0
        projection = attributes.get("projection", 0)
        answer = projection or units
        states = directions * layers * answer
        if inputs[1:] and (sequences or {*map(math.prod, inputs[1:])} != {states}):
            raise GraphError(f"a recurrent layer cannot begin with states of {list(map(list, inputs[1:]))}")
        # Each layer after the first reads all directions of the one before.
        matrices = gates * units * (features + answer + (layers - 1) * (directions * answer + answer))
        matrices += layers * units * projection
        weights = directions * (matrices + layers * bias)
        flops = directions * 2 * matrices * steps * math.prod(sequences)
        shape = (*sequences, steps, directions * answer)
        state = gates * units * answer + units * projection
        again = directions * layers * (steps - 1) * max(0, state - CACHED_WEIGHTS)
        waits = directions * layers * steps * (self.step_calls or bool(projection))
        return Effect(shape, weights, flops, math.prod(inputs[0]) + math.prod(shape) + again, 1 + waits)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        attributes = operator.complete
        projection = {"proj_size": attributes["projection"]} if attributes.get("projection") else {}
        layer = getattr(nn, self.torch_name)(
            operator.input_shapes[0][-1],
            attributes["units"],
            attributes["layers"],
            bias=attributes["bias"],
            batch_first=True,
            bidirectional=attributes["bidirectional"],
            device=device,
            **projection,
        )
        return torch_parts.Recurrent(layer)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        """Append layers whose gates are in another order than torch's, both directions and biases in one matrix."""
        (*sequences, steps, features), attributes = operator.input_shapes[0], operator.complete
        units, directions = attributes["units"], 1 + attributes["bidirectional"]
        if attributes.get("projection"):
            raise cannot_be_built(operator, "ONNX", "an LSTM with a projection")
        # Several sequences of one example are as good as examples.
        x = writer.node("Reshape", values[0], writer.integers(-1, steps, features)) if sequences else values[0]
        x = writer.node("Transpose", x, perm=[1, 0, 2])
        layers = attributes["layers"]
        states = self._both([_first_states(writer, value, layers * directions, units) for value in values[1:]])
        for layer in range(layers):
            rows = (writer.integers(layer * directions), writer.integers((layer + 1) * directions), writer.integers(0))
            states_of_side = [writer.node("Slice", state, *rows) for state in states] if layers > 1 else states
            sides = [self._gates(writer, units, features, attributes["bias"]) for _ in range(directions)]
            joined = [writer.node("Concat", *parts, axis=0) for parts in zip(*sides, strict=True)]
            direction = "bidirectional" if directions == 2 else "forward"
            operands = [*joined, *[""] * (4 - len(joined)), *states_of_side] if states_of_side else joined
            outputs = writer.node(
                self.onnx_op, x, *operands, hidden_size=units, direction=direction, **self.onnx_options
            )
            features = directions * units
            x = writer.node(
                "Reshape", writer.node("Transpose", outputs, perm=[0, 2, 1, 3]), writer.integers(0, 0, features)
            )
        x = writer.node("Transpose", x, perm=[1, 0, 2])
        return writer.node("Reshape", x, writer.integers(-1, *sequences, steps, features)) if sequences else x

    def _gates(self, writer: Writer, units: int, features: int, bias: bool) -> list[str]:
        """Return weights of the input, of the state and, if any, biases, with an axis for the direction in front."""
        count = len(self.gate_order)
        sizes = [(count * units, features), (count * units, units)] + ([(count * units,)] * 2 if bias else [])
        turned = []
        for size in sizes:
            parts = writer.nodes_of("Split", count, writer.weight(*size), axis=0, num_outputs=count)
            turned.append(writer.node("Concat", *(parts[gate] for gate in self.gate_order), axis=0))
        if bias:
            turned[2:] = [writer.node("Concat", *turned[2:], axis=0)]
        return [writer.node("Unsqueeze", part, writer.integers(0)) for part in turned]

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        attributes = operator.complete
        if len(operator.input_shapes[0]) != 2 or not is_computed(values[0]):
            raise cannot_be_built(operator, "Keras", f"{operator.op} over several sequences")
        if attributes.get("projection"):
            raise cannot_be_built(operator, "Keras", "an LSTM with a projection")
        x = values[0].stated()
        directions = 1 + attributes["bidirectional"]
        rows = directions * attributes["layers"]
        states = [keras.ops.reshape(value.stated(), (-1, rows, attributes["units"])) for value in values[1:]]
        states = self._both(states)
        for number in range(attributes["layers"]):
            states_of_side = [[state[:, number * directions + side] for state in states] for side in range(directions)]
            sides = [
                _one_way(operator, number, weights, side > 0, x, states_of_side[side]) for side in range(directions)
            ]
            x = sides[0] if directions == 1 else keras.ops.concatenate(sides, axis=-1)
        return Value.as_stated(x, 2)

    def _both(self, states: list[Any]) -> list[Any]:
        """Return first states as ONNX and Keras take them."""
        return states


def _first_states(writer: Writer, value: str, layers: int, units: int) -> str:
    """Return states with an axis for layers and directions in front."""
    if layers == 1:
        return writer.node("Reshape", value, writer.integers(1, -1, units))
    return writer.node("Transpose", writer.node("Reshape", value, writer.integers(-1, layers, units)), perm=[1, 0, 2])


def _one_way(
    operator: Operator, number: int, weights: Initializer, backwards: bool, x: Any, states: Sequence[Any]
) -> Any:
    """Return one direction of a recurrent layer.

    ``keras.layers.Bidirectional`` copies its layer by its serialised form, which our weights lack.
    """
    layer = getattr(keras.layers, operator.op)(
        operator["units"],
        return_sequences=True,
        go_backwards=backwards,
        use_bias=operator["bias"],
        kernel_initializer=weights,
        recurrent_initializer=weights,
        name=f"{layer_name(operator.name)}_{number}{'_backwards' if backwards else ''}",
    )
    steps = layer(x, initial_state=list(states)) if states else layer(x)
    return keras.ops.flip(steps, axis=1) if backwards else steps


class LSTM(_Recurrent):
    attributes = {**_Recurrent.attributes, "projection": 0}
    step_calls = 0
    torch_name = onnx_op = "LSTM"
    gate_order = (0, 3, 1, 2)

    def _both(self, states: list[Any]) -> list[Any]:
        """Return the hidden state and the cell's; one that is alone stands for both."""
        return [*states, states[-1]][:2] if states else states


class GRU(_Recurrent):
    torch_name = onnx_op = "GRU"
    onnx_options = {"linear_before_reset": 1}
    gate_order = (1, 0, 2)


class SimpleRNN(_Recurrent):
    torch_name = onnx_op = "RNN"
    gate_order = (0,)
