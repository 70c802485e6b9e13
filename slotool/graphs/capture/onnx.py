"""ONNX models as operator graphs, node by node."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.onnx_nodes import ANY_LAYOUT, AROUND, SAME, NodeCall, product_flops, translate
from slotool.graphs.capture.onnx_patterns import join_patterns
from slotool.graphs.capture.onnx_reading import Constant, Node, Reading, constant_of, read_model
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import Shape

if TYPE_CHECKING:
    import onnx

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
# They keep a constant's values in their order.
RESHAPING = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
# One number next to their data is a setting, such as the 2 of a square, no weight.
TAKE_NUMBERS = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Clip", "Pad", "Where", "Dropout")
# So are all of these' numbers.
TAKE_SIZES = ("Resize", "Upsample")


def capture_onnx(source: str | Path | onnx.ModelProto) -> OperatorGraph:
    """The graph of a model of one input, from its file or loaded already; weights are never computed with.

    The input's first axis is the batch; it may be free, the others must be fixed. Weights are initialisers and
    constants that are no single settings and no integers of 32 or 64 bits; one that two nodes share counts for each.
    Images that the model turns to channels last are followed, so the graph has them first. Nodes that slotool does not
    know are kept as ``onnx.<op_type>`` with the shape and the weights they have, and the FLOPs of their matrix
    products: see ``OperatorGraph.unknown``.
    Raises ``GraphError`` for a file that is missing, torn or no ONNX model, and for a model that has several inputs or
    whose shapes cannot be inferred; ``MissingPackageError`` when the package onnx is not installed.
    """
    reading = read_model(source)
    walk = _Walk(reading)
    for node in walk.nodes:
        walk.call(node)
    outputs = [walk.names[name] for name in reading.outputs if name in walk.names]
    if all(walk.drafts.source(name) == walk.names[reading.input] for name in outputs):
        raise GraphError(f"{reading.name}: computes nothing from its input")
    return replace(walk.drafts.graph(outputs, "onnx"), element_type=reading.element_type)


class _Walk:
    """Goes through a model's nodes in the order in which they run.

    ``names`` holds the layer of every value that depends on the network's input, ``channels_last`` those of them that
    are images with the channels last, ``constants`` all other values.
    """

    def __init__(self, reading: Reading):
        self._reading = reading
        self.drafts = Drafts("onnx")
        self.constants = dict(reading.constants)
        self._compute_constants()
        self.nodes = [node for node in join_patterns(reading, self.constants) if node.outputs[0] not in self.constants]
        users = (name for node in self.nodes for name in (*node.inputs, *node.captured))
        self._used = Counter(users) + Counter(reading.outputs)
        self.channels_last = self._input_channels_last()
        shape = self._shape(reading.input, "input", last=bool(self.channels_last))
        layer = self.drafts.add(reading.input, "InputLayer", (), {"shape": shape}, shape)
        self.names = {reading.input: layer}
        self._turns: dict[str, str] = {}

    def call(self, node: Node) -> None:
        """Append what a node is."""
        if self._only_turns(node):
            return
        inputs, last = self._inputs(node)
        shape = self._shape(node.outputs[0], node.op, last=last, node=node)
        call = NodeCall(
            node=node,
            inputs=tuple(self.drafts.shape(name) for name in inputs),
            shape=shape,
            constants={at: self.constants[name] for at, name in enumerate(node.inputs) if name in self.constants},
            opset=self._reading.opset,
            channels_last=last,
        )
        self.names[node.outputs[0]] = self._add(call, inputs)
        if last and len(shape) == 3:
            self.channels_last.add(node.outputs[0])
        for name in node.outputs[1:]:
            if self._used[name]:
                others = self._shape(name, node.op, node=node)
                self.names[name] = self.drafts.add(node.name, node.op, inputs, None, others, 0)

    def _add(self, call: NodeCall, inputs: list[str]) -> str:
        node, translated = call.node, translate(call)
        if translated == SAME:
            return inputs[0]
        if translated is None:
            return self.drafts.add(node.name, node.op, inputs, None, call.shape, _weights(call), product_flops(call))
        op, attributes = translated
        if op == "Activation":
            return self.drafts.add_activation(node.name, attributes["activation"], inputs, call.shape)
        if AROUND in attributes:
            top, bottom, left, right = around = attributes.pop(AROUND)
            channels, height, width = call.inputs[0]
            padded = (channels, height + top + bottom, width + left + right)
            inputs = [self.drafts.add(f"{node.name}.padding", "ZeroPadding2D", inputs, {"padding": around}, padded)]
        return self.drafts.add(node.name, op, inputs, attributes, call.shape, _weights(call))

    def _compute_constants(self) -> None:
        """Everything that does not depend on the network's input, or on its shape alone."""
        data = {self._reading.input}
        for node in self._reading.nodes:
            absent = {*node.inputs} - data - {*self.constants, ""}
            if absent:
                takes = f"node {node.name!r} takes {min(absent)!r}"
                raise GraphError(f"{self._reading.name}: {takes}, which no node before it makes")
            if data.intersection((*node.inputs, *node.captured)) and node.op not in ("Shape", "Size"):
                data.update(node.outputs)
                continue
            made = constant_of(node, self._reading.name) if node.op == "Constant" else None
            for name in node.outputs:
                self.constants[name] = made or self._derived(node, name)

    def _derived(self, node: Node, output: str) -> Constant:
        """What a node makes of constants: behind a part of one there are only so many of its weights."""
        known = [self.constants[name] for name in node.inputs if name in self.constants]
        weights, shape = sum(constant.weights for constant in known), self._reading.shapes.get(output)
        values = known[0].values if known and node.op in RESHAPING else None
        return Constant(shape or (), weights if shape is None else min(weights, math.prod(shape)), values)

    def _input_channels_last(self) -> set[str]:
        """The input, if all that is done with it is to turn it to channels first."""
        users = [node for node in self.nodes if self._reading.input in node.inputs]
        turned = [node for node in users if node.op == "Transpose" and node.attributes.get("perm") == TO_FIRST]
        return {self._reading.input} if users and len(turned) == self._used[self._reading.input] else set()

    def _only_turns(self, node: Node) -> bool:
        """Whether a node moves an image's channels, which is a matter of layout: no layer, but remembered."""
        if node.op != "Transpose":
            return False
        value, made, order = node.inputs[0], node.outputs[0], node.attributes.get("perm")
        if value in self.channels_last and order == TO_FIRST:
            self.names[made] = self.names[value]
            return True
        image = len(self.drafts.shape(self.names[value])) == 3
        if value not in self.channels_last and order == TO_LAST and image:
            self.names[made] = self.names[value]
            self.channels_last.add(made)
            return True
        return False

    def _inputs(self, node: Node) -> tuple[list[str], bool]:
        """The layers a node takes, and whether it runs on images whose channels are last: where it cannot, they are
        turned before it."""
        data = [name for name in (*node.inputs, *node.captured) if name in self.names]
        last = [name for name in data if name in self.channels_last]
        if last and len(last) == len(data) and node.op in ANY_LAYOUT:
            return [self.names[name] for name in data], True
        return [self._turned(name) if name in last else self.names[name] for name in data], False

    def _turned(self, value: str) -> str:
        if value not in self._turns:
            channels, height, width = self.drafts.shape(self.names[value])
            shape = (height, width, channels)
            self._turns[value] = self.drafts.add(f"{value}.turned", "Transpose", [self.names[value]], None, shape, 0)
        return self._turns[value]

    def _shape(self, value: str, op: str, *, last: bool = False, node: Node | None = None) -> Shape:
        """A value's shape without the batch, channels first."""
        if value not in self._reading.shapes:
            name = "input" if node is None else f"node {node.name!r}"
            raise GraphError(f"{self._reading.name}: {name} ({op}) has an output whose shape cannot be inferred")
        shape = self._reading.shapes[value]
        shape = _share(shape, self._reading.batch)
        return (shape[2], shape[0], shape[1]) if last and len(shape) == 3 else shape


def _share(shape: Shape, batch: int) -> Shape:
    """One example's share of a value: without its first axis if that is the batch, else with that axis divided which a
    node has mixed the batch into."""
    if shape and shape[0] == batch:
        return shape[1:]
    mixed = next((axis for axis, size in enumerate(shape) if size % batch == 0), None) if batch > 1 else None
    if mixed is None:
        return shape
    return (*shape[:mixed], shape[mixed] // batch, *shape[mixed + 1 :])


def _weights(call: NodeCall) -> int:
    op, constants = call.node.op, call.constants.values()
    if op in TAKE_SIZES:
        return 0
    return sum(constant.weights for constant in constants if not (constant.single and op in TAKE_NUMBERS))
