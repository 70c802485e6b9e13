"""ONNX models as operator graphs, node by node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import Drafts, batch_first, contraction, in_a_row
from slotool.graphs.capture.onnx.calls import RECURRENT, REDUCTIONS, Batched, Call, batch_of
from slotool.graphs.capture.onnx.fused import TO_FIRST, TO_LAST
from slotool.graphs.capture.onnx.operators import ANY_LAYOUT, STEPS, chain_of, fourier_flops, product_flops
from slotool.graphs.capture.onnx.patterns import join_patterns, without_empty
from slotool.graphs.capture.onnx.reading import Constant, InputShape, Node, Reading, constant_of, read_model
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.libraries import onnx
from slotool.graphs.operators import Shape

# Operators that keep a constant's values in order.
RESHAPING = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
FLOATS = ("float32", "float16", "bfloat16", "float64")
TAKE_AXES = ("Unsqueeze", *REDUCTIONS)
# Operators of ours whose constants of more than one number are inputs like any other.
TAKES_CONSTANTS = (
    *("Add", "Multiply", "Elementwise", "Where", "Concatenate", "MatMul", "Gather", "GatherElements"),
    "ScaledDotProductAttention",
)

# Operators that make constants from a shape, which are weights if a layer reads them as such.
_GENERATED = ("ConstantOfShape", "Expand", "RandomNormal", "RandomUniform", "Tile")
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "MatMul", "Gemm", *RECURRENT)

# Attributes of windows that divide sizes.
_AT_LEAST_ONE = ("strides", "dilations", "kernel_shape", "group")
# A single number beside their data is a setting, such as the 2 of a square, no weight.
TAKE_NUMBERS = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Clip", "Pad", "Where", "Dropout")
# All of their numbers are settings.
TAKE_SIZES = ("Resize", "Upsample", "OneHot")
# Input weights, recurrent weights and biases of recurrent layers; their other constants are lengths and first states.
TRAINED = (1, 2, 3)


def capture_onnx(source: str | Path | onnx.ModelProto, input_shape: InputShape = ()) -> OperatorGraph:
    """Return the graph of a model, from its file or loaded already; weights are never computed with.

    The inputs' first axis is the batch; it may be free. For other free axes ``input_shape`` states the sizes: of one
    example without the batch, or by the inputs' names. The batch is followed through views, and where windows or heads
    are folded into it. Weights are initialisers and constants that are no single settings and no integers of 32 or 64
    bits; those that several nodes have in common are counted once, see ``OperatorGraph.shared_weights``. Of an ``If``
    the branch with more FLOPs counts as what runs, and the weights of the other as weights alone; the body of a
    ``Loop`` or a ``Scan`` is there as often as it runs.
    Images that the model turns to channels last are followed, so the graph has them first. Nodes that slotool does not
    know are kept as ``onnx.<op_type>`` with the shape and the weights they have, and the FLOPs of their matrix
    products: see ``OperatorGraph.unknown``.
    Raises ``GraphError`` for a file that is missing, torn or no ONNX model, for a model whose shapes cannot be
    inferred, and for a loop of which nobody knows how often it runs; ``MissingPackageError`` when the package onnx is
    not installed.
    """
    reading = without_empty(read_model(source, input_shape))
    walk = _Walk(reading)
    for node in walk.nodes:
        walk.call(node)
    outputs = [walk.names[name] for name in reading.outputs if name in walk.names]
    values = [walk.names[name] for name in reading.inputs]
    if all(walk.drafts.source(name) in values for name in outputs):
        raise GraphError(f"{reading.name}: computes nothing from its input")
    shared, unused = weights_apart(walk.nodes, walk.constants, walk.origins)
    if reading.idle_weights + unused:
        walk.drafts.idle_weights(reading.idle_weights + unused)
    graph = walk.drafts.graph([*outputs], "onnx", walk.starts)
    return replace(graph, element_type=reading.element_type, shared_weights=min(shared, graph.weights))


class _Walk:
    """Goes through a model's nodes in the order in which they run.

    ``names`` holds the layer of every value that depends on the network's input, ``channels_last`` those of them that
    are images with the channels last, ``constants`` all other values.
    """

    def __init__(self, reading: Reading):
        self._reading = reading
        self.drafts = Drafts("onnx")
        self.constants = dict(reading.constants)
        # Constants of the model that a constant is computed from.
        self.origins: dict[str, frozenset[str]] = {}
        self._compute_constants()
        self.nodes = [node for node in join_patterns(reading, self.constants) if node.outputs[0] not in self.constants]
        users = (name for node in self.nodes for name in node.inputs)
        self._used = Counter(users) + Counter(reading.outputs)
        self.channels_last = self._input_channels_last()
        self.batched: dict[str, Batched] = {}
        self.names: dict[str, str] = {}
        self.starts = list[str]()
        for name, dtype, axis in zip(reading.inputs, reading.dtypes, reading.axes, strict=True):
            shape = self._shape(name, "input", last=name in self.channels_last, axis=axis)
            typed = {} if dtype in FLOATS else {"dtype": dtype}
            start, self.names[name] = self.drafts.add_input(name, shape, **typed)
            self.starts.append(start)
        self._turns: dict[str, str] = {}

    def call(self, node: Node) -> None:
        """Append what a node is."""
        if self._only_turns(node):
            return
        if node.op == "Split" and self._parts(node):
            return
        inputs, last = self._inputs(node)
        shape = self._shape(node.outputs[0], node.op, last=last, node=node)
        call = Call(
            node=node,
            values=self._values(node),
            constants={at: self.constants[name] for at, name in enumerate(node.inputs) if name in self.constants},
            output=self.batched[node.outputs[0]],
            opset=self._reading.opset,
            inputs=tuple(self.drafts.shape(name) for name in inputs),
            channels_last=last,
        )
        self.names[node.outputs[0]] = self._add(call, inputs)
        if last and len(shape) == 3:
            self.channels_last.add(node.outputs[0])
        for name in node.outputs[1:]:
            if not self._used[name]:
                continue
            if node.op in RECURRENT:
                self._last_states(node, name)
                continue
            others, chain = self._shape(name, node.op, node=node), chain_of(call)
            places = {**chain[0][1], "indices": True} if node.op == "TopK" and chain else None
            self.names[name] = self.drafts.add(node.name, node.op, inputs, places, others, 0)

    def _last_states(self, node: Node, name: str) -> None:
        """Append last states of a recurrent layer whose states of every step are used too: a part of them.

        The other state of an LSTM, of equal size, is taken for it.
        """
        shape, every = self._shape(name, node.op, node=node), self.names[node.outputs[0]]
        steps, *inner = self.drafts.shape(every)
        slice_of_steps = {"axis": 0, "start": steps - 1, "size": 1}
        last = self.drafts.add(f"{node.name}.last", "Slice", [every], slice_of_steps, (1, *inner), 0)
        self.names[name] = self.drafts.add(f"{node.name}.state", "Reshape", [last], {"shape": shape}, shape, 0)

    def _add(self, call: Call, inputs: list[str]) -> str:
        node = call.node
        output = self._chained(call, inputs) or self._stepped(call, inputs)
        if output is not None:
            return output
        flops = product_flops(call) or fourier_flops(call)
        return self.drafts.add(node.name, node.op, inputs, None, call.shape, weights_of(node, call.constants), flops)

    def _values(self, node: Node) -> dict[int, Batched]:
        return {at: self.batched[name] for at, name in enumerate(node.inputs) if name in self.batched}

    def _with_axes(self, node: Node) -> Node:
        """Return the node with ``axes`` as an attribute, an input in newer versions."""
        constant = self.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op not in TAKE_AXES or "axes" in node.attributes or constant is None or constant.values is None:
            return node
        return replace(node, attributes={**node.attributes, "axes": [int(axis) for axis in constant.values]})

    def _chained(self, call: Call, inputs: list[str]) -> str | None:
        """Append a node as operators in order, on values whose batch may be anywhere; return the last."""
        node, chain = call.node, chain_of(call)
        if chain is None:
            return None
        if not chain:
            return inputs[0] if self.drafts.shape(inputs[0]) == call.shape else None
        takes_constants = chain[0][0] in TAKES_CONSTANTS
        if takes_constants and call.channels_last and not all(each.single for each in call.constants.values()):
            return None
        sources = inputs
        if takes_constants and not call.channels_last:
            sources = self._with_constants(node, call.output, call.constants)
        weights = None if takes_constants else weights_of(node, call.constants)
        (name, op, attributes, _), *others = in_a_row(*chain)
        steps = [(name, op, attributes, tuple(range(len(sources)))), *others]
        return next(iter(self.drafts.add_agreeing(node.name, steps, sources, [call.shape], weights)), None)

    def _stepped(self, call: Call, inputs: list[str]) -> str | None:
        """Translate a node into steps, of which several may take one value."""
        node, output, constants = call.node, call.output, call.constants
        sources, weights = inputs, weights_of(node, constants)
        steps = STEPS[node.op](call) if node.op in STEPS else None
        if node.op == "Einsum":
            axes = [value.axis if (value := call.values.get(at)) else None for at in range(len(node.inputs))]
            if output.axis is None or any(value.windows > 1 for value in (output, *call.values.values())):
                return None
            subscripts = batch_first(str(call.attribute("equation")), axes, output.axis)
            sources, weights = self._with_constants(node, output, constants), 0
            steps = contraction(subscripts, list(map(self.drafts.shape, sources)), [axis is None for axis in axes])
        if not steps:
            return None
        return next(iter(self.drafts.add_agreeing(node.name, steps, sources, [output.example], weights)), None)

    def _with_constants(self, node: Node, output: Batched, constants: Mapping[int, Constant]) -> list[str]:
        """Return the layers a node takes, its constants of more than one number among them."""
        steps, looks_up = [], node.op in ("Gather", "GatherElements")
        for at, name in enumerate(node.inputs):
            constant = constants.get(at)
            if name in self.names:
                steps.append(self._turned(name) if name in self.channels_last else self.names[name])
            elif constant is not None and (not constant.single or node.op in ("Concat", "Gather", "MatMul")):
                steps.append(
                    self._constant(
                        name, constant, output, whole=node.op in ("Gather", "Einsum"), places=looks_up and at == 1
                    )
                )
        return steps

    def _constant(self, name: str, constant: Constant, output: Batched, *, whole: bool, places: bool) -> str:
        shape = constant.shape
        if output.axis is not None and len(shape) == len(output.shape) and not whole:
            shape = Batched(shape, output.axis, max(1, shape[output.axis] // self._reading.batch)).example
        typed = {"dtype": "int64"} if places else {}
        attributes = {"shape": shape or (1,), "weights": constant.weights, **typed}
        return self.drafts.add(f"{name}.constant", "Constant", (), attributes, shape or (1,), constant.weights)

    def _parts(self, node: Node) -> bool:
        """Append the outputs of a split as slices of its input; return True if all can be."""
        value = self.batched.get(node.inputs[0])
        wholes = [self._reading.shapes.get(name) for name in node.outputs]
        axis = node.attributes.get("axis", 0)
        inner = None if value is None else value.inner(axis)
        if value is None or inner is None or None in wholes or (value.windows > 1 and inner == value.axis):
            return False
        source, start = self.names[node.inputs[0]], 0
        if node.inputs[0] in self.channels_last:
            source = self._turned(node.inputs[0])
        for name, whole in zip(node.outputs, wholes, strict=True):
            assert whole is not None
            size = whole[axis]
            output = replace(value, shape=whole)
            attributes = {"axis": inner, "start": start, "size": size}
            self.batched[name], start = output, start + size
            self.names[name] = self.drafts.add(node.name, "Slice", [source], attributes, output.example, 0)
        return True

    def _compute_constants(self) -> None:
        """Compute everything that does not depend on the network's input, or only on its shape."""
        data, weights = {*self._reading.inputs}, _weights_taken(self._reading.nodes)
        for node in self._reading.nodes:
            absent = {*node.inputs} - data - {*self.constants, ""}
            if absent:
                takes = f"node {node.name!r} takes {min(absent)!r}"
                raise GraphError(f"{self._reading.name}: {takes}, which no node before it makes")
            for name in _AT_LEAST_ONE:
                value = node.attributes.get(name, 1)
                if min(value if isinstance(value, list) else [value], default=1) < 1:
                    where = f"{self._reading.name}: node {node.name!r}"
                    raise GraphError(f"{where} has {name} of {value}, where each must be at least 1")
            if data.intersection(node.inputs) and node.op not in ("Shape", "Size"):
                data.update(node.outputs)
                continue
            output = constant_of(node, self._reading.name) if node.op == "Constant" else None
            if node.op in _GENERATED and node.outputs[0] in weights:
                shape = self._reading.shapes.get(node.outputs[0], ())
                output = Constant(shape, math.prod(shape))
            for name in node.outputs:
                self.constants[name] = output or self._derived(node, name)
                # Exporters write a weight once that two parameters are equal in, as they often are before training.
                if output is None and node.op != "Identity":
                    sources = [each for each in node.inputs if each in self.constants]
                    self.origins[name] = frozenset[str]().union(*(_origins_of(each, self.origins) for each in sources))

    def _derived(self, node: Node, output: str) -> Constant:
        """Return a node's result from constants; a part of a constant has only its share of weights."""
        constants = [self.constants[name] for name in node.inputs if name in self.constants]
        weights, shape = sum(constant.weights for constant in constants), self._reading.shapes.get(output)
        values = constants[0].values if constants and node.op in RESHAPING else None
        return Constant(shape or (), weights if shape is None else min(weights, math.prod(shape)), values)

    def _input_channels_last(self) -> set[str]:
        """Return the input, if all that is done with it is to turn it to channels first."""
        steps = set()
        for name in self._reading.inputs:
            users = [node for node in self.nodes if name in node.inputs]
            turned = [node for node in users if node.op == "Transpose" and node.attributes.get("perm") == TO_FIRST]
            image = len(self._reading.shapes.get(name, ())) == len(TO_FIRST)
            if image and users and len(turned) == self._used[name]:
                steps.add(name)
        return steps

    def _only_turns(self, node: Node) -> bool:
        """True if a node moves an image's channels, which is a matter of layout: no layer, but remembered."""
        if node.op != "Transpose":
            return False
        value, output, order = node.inputs[0], node.outputs[0], node.attributes.get("perm")
        if self.batched[value] != Batched(self.batched[value].shape) or output not in self._reading.shapes:
            return False
        to_first = value in self.channels_last and order == TO_FIRST
        image = len(self.drafts.shape(self.names[value])) == 3
        to_last = value not in self.channels_last and order == TO_LAST and image
        if to_first or to_last:
            self.names[output] = self.names[value]
            self.batched[output] = Batched(self._reading.shapes[output])
            self.channels_last |= {output} if to_last else set()
        return to_first or to_last

    def _inputs(self, node: Node) -> tuple[list[str], bool]:
        """Return a node's layers, and True if it runs on images stored channels last, else transposed before it."""
        data = [name for name in node.inputs if name in self.names]
        last = [name for name in data if name in self.channels_last]
        if last and len(last) == len(data) and node.op in ANY_LAYOUT and not self._has_places(node):
            return [self.names[name] for name in data], True
        return [self._turned(name) if name in last else self.names[name] for name in data], False

    def _has_places(self, node: Node) -> bool:
        """True if a constant has other axes than that of channels, which are last in it."""
        shapes = [self.constants[name].shape for name in node.inputs if name in self.constants]
        return node.op in ("Add", "Sub", "Mul", "Div") and any(math.prod(shape[:-1]) > 1 for shape in shapes)

    def _turned(self, value: str) -> str:
        if value not in self._turns:
            channels, height, width = self.drafts.shape(self.names[value])
            shape = (height, width, channels)
            self._turns[value] = self.drafts.add(
                f"{value}.turned", "Transpose", [self.names[value]], {"axes": (1, 2, 0)}, shape, 0
            )
        return self._turns[value]

    def _shape(
        self, value: str, op: str, *, last: bool = False, node: Node | None = None, axis: int | None = None
    ) -> Shape:
        """Return a value's shape without the batch, which is at ``axis`` of an input, channels first."""
        if value not in self._reading.shapes:
            name = "input" if node is None else f"node {node.name!r}"
            why = ""
            if op.startswith("ai.onnx.ml."):
                why = (
                    "; it is a classical model's, whose cost no graph tells: measure the model, as slotool family does"
                )
            raise GraphError(f"{self._reading.name}: {name} ({op}) has an output whose shape cannot be inferred{why}")
        whole, batch = self._reading.shapes[value], self._reading.batch
        values = {} if node is None else self._values(node)
        if node is None:
            result = Batched(whole, axis)
        elif not values:
            result = Batched(whole) if whole[:1] == (batch,) else Batched(whole, None)
        else:
            result = batch_of(self._with_axes(node), values, whole, batch)
        self.batched[value] = result
        shape = result.example
        return (shape[2], shape[0], shape[1]) if last and len(shape) == 3 else shape


def _weights_taken(nodes: Sequence[Node]) -> set[str]:
    """Return the names of values that layers take as weights, and of what these are turned from."""
    generated = {name for node in nodes if node.op in _GENERATED for name in node.outputs}
    used = set[str]()
    for node in reversed(nodes):
        # Beside statistics that were measured, ones and zeros are no scale and no shift.
        if node.op in _WITH_WEIGHTS or (node.op == "BatchNormalization" and generated.issuperset(node.inputs[3:])):
            used.update(node.inputs[1:])
        elif node.op in (*RESHAPING, "Transpose") and used.intersection(node.outputs):
            used.add(node.inputs[0])
    return used


def weights_of(node: Node, constants: Mapping[int, Constant]) -> int:
    """Return the number of weights in a node's constants, by position."""
    return sum(constant.weights for at, constant in constants.items() if _is_trained(node, at, constant))


def _origins_of(name: str, origins: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the constants that the model holds from which this one is computed, or itself."""
    return origins.get(name, frozenset((name,)))


def weights_apart(
    nodes: Sequence[Node], constants: Mapping[str, Constant], origins: Mapping[str, frozenset[str]]
) -> tuple[int, int]:
    """Return the number of weights that nodes share, beyond the first use, and of unused ones.

    Unused are parts of constants, such as positions of longer texts.
    """
    shared = unused = 0
    for sources, used in _by_origin(_uses(nodes, constants), origins):
        whole = sum(constants[name].weights for name in sources if not constants[name].single)
        shared, unused = shared + max(0, used - whole), unused + max(0, whole - used)
    return shared, unused


def _uses(nodes: Sequence[Node], constants: Mapping[str, Constant]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        for at, name in enumerate(node.inputs):
            constant = constants.get(name)
            if constant is not None and not constant.single and _is_trained(node, at, constant):
                yield name, constant.weights


def _by_origin(uses: Iterable[tuple[str, int]], origins: Mapping[str, frozenset[str]]) -> list[tuple[set[str], int]]:
    """Return the constants from which some of these are made together, and how many weights all uses of these have."""
    groups: dict[str, tuple[set[str], int]] = {}
    for name, weights in uses:
        parts = _origins_of(name, origins)
        joined = list({id(groups[source]): groups[source] for source in parts if source in groups}.values())
        sources = parts.union(*(group for group, _ in joined))
        group = (set(sources), weights + sum(used for _, used in joined))
        groups |= dict.fromkeys(sources, group)
    return list({id(group): group for group in groups.values()}.values())


def _is_trained(node: Node, at: int, constant: Constant) -> bool:
    if node.op in TAKE_SIZES or (node.op in RECURRENT and at not in TRAINED):
        return False
    return not (constant.single and node.op in TAKE_NUMBERS)
