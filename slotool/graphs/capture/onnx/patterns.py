"""Several ONNX nodes that are one layer: exporters spell out activations that ONNX had no operator for, and biases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from slotool.graphs.capture.onnx.reading import Constant, Node, Reading

# Operator of the factor, a function of x, and of its product with x.
GATES = {("Sigmoid",): "Swish", ("HardSigmoid",): "HardSwish", ("Tanh", "Softplus"): "Mish"}


def join_patterns(reading: Reading, constants: Mapping[str, Constant]) -> list[Node]:
    """Return the nodes in order, with patterns as one node each.

    These are ``Gelu``, ``Swish``, ``Mish``, ``HardSwish``, and ``MatMul`` or ``Conv`` with a bias added after it, as
    third input.
    """
    return _Joining(reading, constants).run()


def without_empty(reading: Reading) -> Reading:
    """Return the model without empty values, such as slices for a roll by nothing, or a cache before the first token.

    Concatenations keep the rest of their inputs.
    """
    nodes = [_without(reading.empty, node) for node in reading.nodes if not reading.empty.issuperset(node.outputs)]
    return replace(reading, nodes=tuple(nodes))


def _without(empty: Container[str], node: Node) -> Node:
    remaining = tuple(name for name in node.inputs if name not in empty)
    if node.op != "Concat" or remaining == node.inputs:
        return node
    return replace(node, op="Concat" if len(remaining) > 1 else "Identity", inputs=remaining)


class _Joining:
    def __init__(self, reading: Reading, constants: Mapping[str, Constant]):
        self._reading, self._constants = reading, constants
        used = (name for node in reading.nodes for name in node.inputs)
        self._uses = Counter(used) + Counter(reading.outputs)
        self._nodes_by_value: dict[str, Node] = {}
        self._absorbed: list[str] = []

    def run(self) -> list[Node]:
        rules: dict[str, list[Callable[[Node], Node | None]]] = {"Add": [self._bias], "Mul": [self._gated, self._gelu]}
        for node in self._reading.nodes:
            self._absorbed = []
            joined = next(filter(None, (rule(node) for rule in rules.get(node.op, []))), None)
            if joined is not None:
                for name in self._absorbed:
                    del self._nodes_by_value[name]
            for name in node.outputs:
                self._nodes_by_value[name] = joined or node
        # A node of several outputs stands there once for each.
        return list({id(node): node for node in self._nodes_by_value.values()}.values())

    def _only_used_here(self, value: str, op: str) -> Node | None:
        """Return the node of this operator that makes ``value``, if nobody else needs the value."""
        node = self._nodes_by_value.get(value)
        return node if node is not None and node.op == op and self._uses[value] == 1 else None

    def _single(self, value: str) -> bool:
        return value in self._constants and self._constants[value].single

    def _bias(self, node: Node) -> Node | None:
        for value, other in (node.inputs, node.inputs[::-1]):
            bias = self._constants.get(other)
            layer = self._only_used_here(value, "MatMul") or self._only_used_here(value, "Conv")
            if bias is None or layer is None or len(layer.inputs) != 2 or layer.inputs[1] not in self._constants:
                continue
            weight = self._constants[layer.inputs[1]].shape
            units, axis = (weight[0], -3) if layer.op == "Conv" else (weight[-1], -1)
            around = [1] * len(bias.shape)
            if len(bias.shape) >= -axis:
                around[axis] = units
            if bias.shape and bias.shape == tuple(around) and bias.weights == units:
                self._absorbed = [value]
                return replace(layer, inputs=(*layer.inputs, other), outputs=node.outputs)
        return None

    def _gated(self, node: Node) -> Node | None:
        for value, gate in (node.inputs, node.inputs[::-1]):
            for chain, activation in GATES.items():
                absorbed, inner = [], gate
                for op in chain:
                    producer = self._only_used_here(inner, op)
                    if producer is None:
                        break
                    absorbed.append(inner)
                    inner = producer.inputs[0]
                if len(absorbed) == len(chain) and inner == value:
                    self._absorbed = absorbed
                    return replace(node, op=activation, inputs=(value,), attributes={})
        return None

    def _gelu(self, node: Node) -> Node | None:
        """Return 0.5 · x · (1 + erf(x / √2)), in whichever order it is multiplied."""
        numbers, factors, absorbed = 0, [], []
        waiting = list(node.inputs)
        while waiting:
            value = waiting.pop()
            product = self._only_used_here(value, "Mul")
            if self._single(value):
                numbers += 1
            elif product is not None:
                absorbed.append(value)
                waiting += product.inputs
            else:
                factors.append(value)
        if numbers != 1 or len(factors) != 2:
            return None
        for value, one_plus in (factors, factors[::-1]):
            inner = self._error_function_of(one_plus)
            if inner is not None and inner[0] == value:
                self._absorbed = [*absorbed, one_plus, *inner[1]]
                return replace(node, op="Gelu", inputs=(value,), attributes={})
        return None

    def _error_function_of(self, value: str) -> tuple[str, list[str]] | None:
        """Return the x of a ``value`` = 1 + erf(x · constant), and the values between."""
        total = self._only_used_here(value, "Add")
        erf_at = next((name for name in total.inputs if not self._single(name)), "") if total else ""
        erf = self._only_used_here(erf_at, "Erf")
        if total is None or erf is None or not any(map(self._single, total.inputs)):
            return None
        scaled = self._only_used_here(erf.inputs[0], "Div") or self._only_used_here(erf.inputs[0], "Mul")
        if scaled is None or not any(map(self._single, scaled.inputs)):
            return None
        x = next((name for name in scaled.inputs if not self._single(name)), "")
        return x, [erf_at, erf.inputs[0]]
