"""Branches and loops of an ONNX model as plain nodes, as far as the model says what runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import costliest
from slotool.graphs.capture.onnx.folding import MAX_VALUES, known_shapes, with_shapes
from slotool.graphs.capture.onnx.inlining import Inlining, constants_of, copy_of, inner_graphs
from slotool.graphs.capture.onnx.loops import body_of, scan_body, steps_of, trips_of, unrolled, unrolled_scan
from slotool.graphs.operators import Shape

if TYPE_CHECKING:
    import onnx

# Where their constant weights are, which of their axes are multiplied with and summed over.
_WINDOWS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv")
_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")


def without_control_flow(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, int]:
    """A model whose branches and loops are the nodes that run, and how many weights the branches left out have.

    Shapes say which branch is costlier and often how many trips a loop makes, and what is within branches and loops
    says more shapes, so both go on until neither is left. Raises ``GraphError`` for a loop of which nobody knows how
    often it runs, and what onnx raises.
    """
    idle, number = 0, 0
    while any(branches_of(node) or _repeats(node) for node in model.graph.node):
        model = with_shapes(model)
        found, number = _opened(model, name, number)
        idle += found
    return model, idle


def _opened(model: onnx.ModelProto, name: str, number: int) -> tuple[int, int]:
    """Open every branch and loop but those within others; weights left out, and how many were opened ever."""
    graph, opset = model.graph, _opset(model.opset_import)
    inlining, shapes = Inlining(graph, MAX_VALUES), dict(known_shapes(graph))
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    constants = constants_of(graph)
    idle, opened, nodes, why = 0, 0, [], ""
    for node in graph.node:
        prefix = f"{node.name or f'{node.op_type.lower()}_{number + opened}'}/"
        if branches_of(node):
            taken, left = branch_taken(inlining, node, prefix, shapes, constants)
            nodes += taken
            idle += left
        elif _repeats(node):
            scans = scan_body(node) is not None
            try:
                trips = steps_of(node, shapes, opset) if scans else trips_of(node, constants)
            except GraphError as error:
                # What is opened now may say more.
                why = why or f"{name}: node {node.name or node.output[0]!r} ({node.op_type}) {error}"
                nodes.append(copy_of(node))
                continue
            nodes += (unrolled_scan if scans else unrolled)(inlining, node, trips, prefix, opset)
        else:
            nodes.append(copy_of(node))
            continue
        opened += 1
    if not opened:
        raise GraphError(f"{why}: what it costs cannot be told; export it unrolled")
    del graph.node[:]
    graph.node.extend(nodes)
    return idle, number + opened


def _repeats(node: onnx.NodeProto) -> bool:
    return body_of(node) is not None or scan_body(node) is not None


def _opset(imports: Sequence[onnx.OperatorSetIdProto]) -> int:
    return max((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), default=1)


def branches_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Both branches of an ``If``; none of any other node."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx"):
        return []
    return [entry.g for entry in node.attribute if entry.name in ("then_branch", "else_branch")]


def branch_taken(
    inlining: Inlining,
    choice: onnx.NodeProto,
    prefix: str,
    shapes: Mapping[str, Shape],
    constants: Mapping[str, onnx.TensorProto],
) -> tuple[list[onnx.NodeProto], int]:
    """The nodes of the costlier branch, and how many weights the other has. ``shapes`` and ``constants`` are of
    values around it."""
    branches = branches_of(choice)
    taken = costliest(branches, lambda branch: _flops(branch, shapes, constants), lambda branch: len(branch.node))
    idle = sum(_weights(branch) for branch in branches if branch is not taken)
    names = inlining.add_weights(taken, prefix)
    return list(inlining.nodes(taken, names, choice.output, prefix)), idle


def _flops(graph: onnx.GraphProto, shapes: Mapping[str, Shape], constants: Mapping[str, onnx.TensorProto]) -> int:
    """FLOPs of a branch's matrix products and convolutions; of branches within it the costlier one's, of loops those of
    all trips, of one where nobody knows how many there are."""
    shapes = {**shapes, **dict(known_shapes(graph)), **{each.name: tuple(each.dims) for each in graph.initializer}}
    constants = {**constants, **constants_of(graph)}
    total = 0
    for node in graph.node:
        inner = [_flops(each, shapes, constants) for each in inner_graphs(node)]
        total += max(inner) * _trips(node, shapes, constants) if inner else _product_flops(node, shapes)
    return total


def _trips(node: onnx.NodeProto, shapes: Mapping[str, Shape], constants: Mapping[str, onnx.TensorProto]) -> int:
    try:
        if scan_body(node) is not None:
            return steps_of(node, shapes)
        return 1 if body_of(node) is None else trips_of(node, constants)
    except GraphError:
        return 1


def _product_flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Where shapes are not known, those of one product with each weight."""
    inputs, made = [shapes.get(name, ()) for name in node.input], shapes.get(node.output[0], ())
    if node.op_type in _PRODUCTS and len(inputs) > 1:
        rows, columns = inputs[0], inputs[3 if node.op_type == "QLinearMatMul" else 1]
        turned = any(entry.name == "transB" and entry.i for entry in node.attribute)
        inner = columns[-1 if turned else -2 :][0] if len(columns) > 1 else rows[-1] if rows else 1
        return 2 * math.prod(made) * inner if made else 2 * math.prod(columns)
    if node.op_type in _WINDOWS and len(inputs) > 1:
        weights = inputs[3 if node.op_type == "QLinearConv" else 1]
        values = inputs[0] if node.op_type == "ConvTranspose" else made
        return 2 * math.prod(weights[1:]) * math.prod(values) if values else 2 * math.prod(weights)
    return 0


def _weights(graph: onnx.GraphProto) -> int:
    """Numbers of floating point that are a branch's own, those of the graphs within it too."""
    return sum(math.prod(tensor.dims) for tensor in _tensors(graph) if tensor.data_type not in _whole_numbers())


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (entry.t for entry in node.attribute if entry.t.dims)
        for inner in inner_graphs(node):
            yield from _tensors(inner)


def _whole_numbers() -> tuple[int, ...]:
    from onnx import TensorProto

    return TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
