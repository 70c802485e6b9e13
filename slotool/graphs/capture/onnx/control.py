"""Branches and loops of an ONNX model as plain nodes, as far as the model says what runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import costliest
from slotool.graphs.capture.onnx.folding import MAX_VALUES, OWN_DOMAINS, known_shapes, opset_of, with_shapes
from slotool.graphs.libraries import onnx
from slotool.graphs.operators import Shape


@dataclass(frozen=True)
class Inlining:
    """``graph`` is the one around; weights of more than ``MAX_VALUES`` numbers keep their shape alone."""

    graph: onnx.GraphProto

    def add_weights(self, inner: onnx.GraphProto, prefix: str) -> dict[str, str]:
        """Make the inner graph's weights those of the graph around; their names there by their own."""
        existing = {tensor.name for tensor in self.graph.initializer}
        names = {tensor.name: prefix + tensor.name for tensor in inner.initializer}
        for tensor in inner.initializer:
            if names[tensor.name] in existing:
                continue
            added = self.graph.initializer.add()
            if math.prod(tensor.dims) > MAX_VALUES:
                added.dims.extend(tensor.dims)
                added.data_type = tensor.data_type
            else:
                added.CopyFrom(tensor)
            added.name = names[tensor.name]
        return names

    def nodes(
        self, inner: onnx.GraphProto, values_in: Mapping[str, str], outputs: Sequence[str], prefix: str
    ) -> Iterator[onnx.NodeProto]:
        """Yield the inner graph's nodes with its own values renamed, as two graphs may share a name.

        ``values_in``: outer names of its inputs and weights, ``outputs``: those of its outputs, "" if unused.
        """
        names = {name for node in inner.node for name in node.output if name}
        renamed = {**{name: prefix + name for name in names}, **values_in}
        for output, outer in zip(inner.output, outputs, strict=False):
            if output.name in names and outer:
                renamed[output.name] = outer
        for node in inner.node:
            copied = deepcopy(node)
            copied.name = prefix + node.name if node.name else ""
            rename(copied, renamed)
            yield copied
        for output, outer in zip(inner.output, outputs, strict=False):
            name = renamed.get(output.name, output.name)
            if outer and name != outer:
                yield onnx.helper.make_node("Identity", [name], [outer])

    def add_constant(self, name: str, value: Any) -> str:
        """Append an initialiser of this name, and return it."""
        self.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
        return name


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename values that a node, and the graphs within it, read and make."""
    for values in (node.input, node.output):
        renamed = [names.get(name, name) for name in values]
        del values[:]
        values.extend(renamed)
    for inner in inner_graphs(node):
        for each in inner.node:
            rename(each, names)
        for value in inner.output:
            value.name = names.get(value.name, value.name)


def inner_graphs(node: onnx.NodeProto) -> list[Any]:
    return [graph for entry in node.attribute for graph in (*entry.graphs, *([entry.g] if entry.HasField("g") else []))]


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a graph by their names."""
    scanned = {
        node.output[0]: entry.t
        for node in graph.node
        if node.op_type == "Constant"
        for entry in node.attribute
        if entry.name == "value"
    }
    return scanned | {tensor.name: tensor for tensor in graph.initializer}


# Nodes that a loop may become: capture takes seconds for so many.
MAX_UNROLLED = 10_000
# Exporters write the largest number there is for a loop that ends by a condition.
MAX_TRIPS = 2**31 - 2
# Versions from which the axes of ``Unsqueeze`` are an input, and a ``Scan`` has no sequence lengths.
_AXES_ARE_INPUT, _WITHOUT_BATCH = 13, 9
_PASS_ON = ("Identity", "Cast")


def body_of(node: onnx.NodeProto) -> onnx.GraphProto | None:
    """Return the body of a ``Loop`` or a ``Scan``; None of any other node."""
    if node.op_type not in ("Loop", "Scan") or node.domain not in OWN_DOMAINS:
        return None
    return next((entry.g for entry in node.attribute if entry.name == "body"), None)


def trips_of(
    node: onnx.NodeProto, shapes: Mapping[str, Shape], constants: Mapping[str, onnx.TensorProto], opset: int
) -> int:
    """Return the number of times that a ``Loop`` or a ``Scan`` runs its body.

    Raises ``GraphError``, with the end of a sentence, if the number is unknown or too large to unroll.
    """
    body = body_of(node)
    assert body is not None
    trips = _trips(node, body, constants) if node.op_type == "Loop" else _steps(node, shapes, opset)
    if not 0 < trips * len(body.node) <= MAX_UNROLLED:
        raise GraphError(f"runs its body of {len(body.node):,} nodes {trips:,} times")
    return trips


def _trips(node: onnx.NodeProto, body: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> int:
    count, condition = (*node.input, "", "")[:2]
    trips = _value(constants.get(count))
    if not count or (trips or 0) > MAX_TRIPS:
        raise GraphError("ends by a condition on values, so the model does not say how often it runs")
    if trips is None:
        raise GraphError("takes its number of trips from values, so the model does not say how often it runs")
    if not _stays_true(body, body.output[0].name, condition, constants):
        raise GraphError(f"may end before its {trips:,.0f} trips by a condition on values")
    return int(trips)


def _steps(node: onnx.NodeProto, shapes: Mapping[str, Shape], opset: int) -> int:
    """Return the size of the axis that a ``Scan`` goes along."""
    if opset < _WITHOUT_BATCH:
        raise GraphError(f"is of version {opset}, which takes the lengths of its sequences as values")
    _, scanned = _inputs(node)
    shape = shapes.get(scanned[0], ())
    axis = _numbers(node, "scan_input_axes", len(scanned))[0]
    if not -len(shape) <= axis < len(shape):
        raise GraphError("goes along an axis whose size the model does not say, so nobody knows how often it runs")
    return shape[axis]


def unrolled(inlining: Inlining, node: onnx.NodeProto, trips: int, prefix: str, opset: int) -> Iterator[onnx.NodeProto]:
    """Yield the body for each trip, in a ``Scan`` with its own part of the data; weights repeat by trip."""
    body = body_of(node)
    assert body is not None
    weights, (values, scanned) = inlining.add_weights(body, prefix), _inputs(node)
    carried, outputs = list(node.output[: len(values)]), list(node.output[len(values) :])
    names, of_loop = [value.name for value in body.input], {}
    if node.op_type == "Loop":
        number, condition, *names = names
        of_loop = {condition: inlining.add_constant(f"{prefix}on", True)}
    along, backwards = (_numbers(node, f"scan_input_{what}", len(scanned)) for what in ("axes", "directions"))
    for trip in range(trips):
        trip_prefix = f"{prefix}{trip}/"
        values_in = {**weights, **of_loop, **dict(zip(names, values, strict=False))}
        if of_loop:
            values_in[number] = inlining.add_constant(f"{trip_prefix}trip", trip)
        for at, source in enumerate(scanned):
            row = inlining.add_constant(f"{trip_prefix}row_{at}", trips - 1 - trip if backwards[at] else trip)
            values_in[names[len(values) + at]] = f"{trip_prefix}part_{at}"
            yield onnx.helper.make_node("Gather", [source, row], [f"{trip_prefix}part_{at}"], axis=along[at])
        after = [f"{trip_prefix}carried_{at}" for at in range(len(values))] if trip < trips - 1 else carried
        parts = [f"{trip_prefix}made_{at}" if name else "" for at, name in enumerate(outputs)]
        yield from inlining.nodes(body, values_in, [*([""] if of_loop else []), *after, *parts], trip_prefix)
        values = after
    axes, turned = (_numbers(node, f"scan_output_{what}", len(outputs)) for what in ("axes", "directions"))
    for at, name in enumerate(outputs):
        if name:
            order = range(trips)[::-1] if turned[at] else range(trips)
            yield from _stacked([f"{prefix}{trip}/made_{at}" for trip in order], name, inlining, opset, axes[at])


def _stacked(parts: list[str], name: str, inlining: Inlining, opset: int, along: int) -> Iterator[onnx.NodeProto]:
    """Yield nodes that stack all trips' results along a new axis."""
    axis = [inlining.add_constant(f"{name}/axis", [along])] if opset >= _AXES_ARE_INPUT else []
    for part in parts:
        row = onnx.helper.make_node("Unsqueeze", [part, *axis], [f"{part}/row"])
        if not axis:
            row.attribute.append(onnx.helper.make_attribute("axes", [along]))
        yield row
    yield onnx.helper.make_node("Concat", [f"{part}/row" for part in parts], [name], axis=along)


def _stays_true(body: onnx.GraphProto, name: str, condition: str, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """True if a value of the body is true on every trip."""
    if name == body.input[1].name:
        return not condition or bool(_value(constants.get(condition)))
    made_by = {output: node for node in body.node for output in node.output}
    node = made_by.get(name)
    if node is None:
        names = {tensor.name: tensor for tensor in body.initializer}
        return bool(_value(names.get(name, constants.get(name))))
    if node.op_type == "Constant":
        return bool(_value(next((entry.t for entry in node.attribute if entry.name == "value"), None)))
    return node.op_type in _PASS_ON and _stays_true(body, node.input[0], condition, constants)


def _value(tensor: onnx.TensorProto | None) -> float | None:
    """Return the one number of a constant."""
    if tensor is None or math.prod(tensor.dims) != 1 or tensor.data_location == tensor.EXTERNAL:
        return None
    return float(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])


def _inputs(node: onnx.NodeProto) -> tuple[list[str], list[str]]:
    """Return the values carried from trip to trip, and the scanned ones."""
    if node.op_type == "Loop":
        return list(node.input[2:]), []
    count = next(entry.i for entry in node.attribute if entry.name == "num_scan_inputs")
    return list(node.input[: len(node.input) - count]), list(node.input[len(node.input) - count :])


def _numbers(node: onnx.NodeProto, name: str, count: int) -> Sequence[int]:
    opened: Any = next((entry.ints for entry in node.attribute if entry.name == name), None)
    return [0] * count if opened is None else list(opened)


# Position of constant weights, and their axes that are multiplied with and summed over.
_WINDOWS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")


def without_control_flow(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, int]:
    """Return a model with branches and loops replaced by the nodes that run, and the number of weights left out.

    Shapes determine the costlier branch and often the number of a loop's trips; nodes in branches and loops determine
    further shapes. So both steps alternate until no branch or loop is left. Raises ``GraphError`` for a loop with an
    unknown number of trips, and onnx's errors.
    """
    idle, number = 0, 0
    while any(branches_of(node) or body_of(node) is not None for node in model.graph.node):
        model = with_shapes(model)
        opened, number = _opened(model, name, number)
        idle += opened
    return model, idle


def _opened(model: onnx.ModelProto, name: str, number: int) -> tuple[int, int]:
    """Open every branch and loop but those within others; weights left out, and how many were opened ever."""
    graph, opset = model.graph, opset_of(model)
    inlining, shapes = Inlining(graph), dict(known_shapes(graph))
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    constants = constants_of(graph)
    idle, opened, nodes, why = 0, 0, [], ""
    for node in graph.node:
        prefix = f"{node.name or f'{node.op_type.lower()}_{number + opened}'}/"
        if branches_of(node):
            chosen, unused = branch_taken(inlining, node, prefix, shapes, constants)
            nodes += chosen
            idle += unused
        elif body_of(node) is not None:
            try:
                trips = trips_of(node, shapes, constants, opset)
            except GraphError as error:
                # The opened graph may reveal more.
                why = why or f"{name}: node {node.name or node.output[0]!r} ({node.op_type}) {error}"
                nodes.append(deepcopy(node))
                continue
            nodes += unrolled(inlining, node, trips, prefix, opset)
        else:
            nodes.append(deepcopy(node))
            continue
        opened += 1
    if not opened:
        raise GraphError(f"{why}: what it costs cannot be told; export it unrolled")
    del graph.node[:]
    graph.node.extend(nodes)
    return idle, number + opened


def branches_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return both branches of an ``If``; none of any other node."""
    if node.op_type != "If" or node.domain not in OWN_DOMAINS:
        return []
    return [entry.g for entry in node.attribute if entry.name in ("then_branch", "else_branch")]


def branch_taken(
    inlining: Inlining,
    choice: onnx.NodeProto,
    prefix: str,
    shapes: Mapping[str, Shape],
    constants: Mapping[str, onnx.TensorProto],
) -> tuple[list[onnx.NodeProto], int]:
    """Return the nodes of the costlier branch, and the number of the other's weights.

    ``shapes`` and ``constants`` are of values around it.
    """
    branches = branches_of(choice)
    chosen = costliest(branches, lambda branch: _flops(branch, shapes, constants), lambda branch: len(branch.node))
    idle = sum(_weights(branch) for branch in branches if branch is not chosen)
    names = inlining.add_weights(chosen, prefix)
    return list(inlining.nodes(chosen, names, choice.output, prefix)), idle


def _flops(graph: onnx.GraphProto, shapes: Mapping[str, Shape], constants: Mapping[str, onnx.TensorProto]) -> int:
    """Return FLOPs of a branch's matrix products and convolutions.

    For inner branches the costlier one counts, for loops all trips, or one if unknown.
    """
    shapes = {**shapes, **dict(known_shapes(graph)), **{each.name: tuple(each.dims) for each in graph.initializer}}
    constants = {**constants, **constants_of(graph)}
    total = 0
    for node in graph.node:
        inner = [_flops(each, shapes, constants) for each in inner_graphs(node)]
        trips = 1
        with suppress(GraphError):
            trips = 1 if body_of(node) is None else trips_of(node, shapes, constants, _WITHOUT_BATCH)
        total += max(inner) * trips if inner else _product_flops(node, shapes)
    return total


def _product_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Return a product's FLOPs; without shapes, those of one product with each weight."""
    inputs, outputs = [shapes.get(name, ()) for name in node.input], shapes.get(node.output[0], ())
    if node.op_type in _PRODUCTS and len(inputs) > 1:
        rows, columns = inputs[0], inputs[3 if node.op_type == "QLinearMatMul" else 1]
        turned = any(entry.name == "transB" and entry.i for entry in node.attribute)
        inner = columns[-1 if turned else -2 :][0] if len(columns) > 1 else rows[-1] if rows else 1
        return 2 * math.prod(outputs) * inner if outputs else 2 * math.prod(columns)
    if node.op_type in _WINDOWS and len(inputs) > 1:
        weights = inputs[3 if node.op_type == "QLinearConv" else 1]
        values = inputs[0] if node.op_type == "ConvTranspose" else outputs
        return 2 * math.prod(weights[1:]) * math.prod(values) if values else 2 * math.prod(weights)
    return 0


def _weights(graph: onnx.GraphProto) -> int:
    """Return the numbers of floating point that are a branch's own, those of the graphs within it too."""
    kinds = onnx.TensorProto
    whole_numbers = kinds.INT32, kinds.INT64, kinds.BOOL, kinds.STRING
    return sum(math.prod(tensor.dims) for tensor in _tensors(graph) if tensor.data_type not in whole_numbers)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (entry.t for entry in node.attribute if entry.t.dims)
        for inner in inner_graphs(node):
            yield from _tensors(inner)
