"""Branches and loops of an ONNX model as plain nodes, as far as the model says what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotool.errors import GraphError
from slotool.graphs.capture.onnx.branches import branch_taken, branches_of
from slotool.graphs.capture.onnx.folding import MAX_VALUES, known_shapes, with_shapes
from slotool.graphs.capture.onnx.inlining import Inlining, constants_of, copy_of
from slotool.graphs.capture.onnx.loops import body_of, trips_of, unrolled
from slotool.graphs.capture.onnx.scans import scan_body, steps_of, unrolled_scan

if TYPE_CHECKING:
    import onnx


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
