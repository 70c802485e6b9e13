"""Branches of an ONNX model: of each ``If`` the nodes of the branch with more weights, in its place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def with_branches(graph: onnx.GraphProto, max_values: int) -> int:
    """Put the nodes of branches into ``graph``; how many weights the branches that are left out have. Weights of more
    than ``max_values`` numbers keep their shape alone."""
    idle, nodes = 0, []
    for position, node in enumerate(graph.node):
        branches = [entry.g for entry in node.attribute if entry.name in ("then_branch", "else_branch")]
        if node.op_type != "If" or node.domain not in ("", "ai.onnx") or len(branches) != 2:
            nodes.append(node)
            continue
        # Branches within branches first, so that what is taken has none.
        idle += sum(with_branches(branch, max_values) for branch in branches)
        costly, other = sorted(branches, key=lambda each: (_weights(each), len(each.node)), reverse=True)
        idle += _weights(other)
        nodes += _taken(graph, node, costly, f"{node.name or f'if_{position}'}/", max_values)
    if len(nodes) != len(graph.node) or any(a is not b for a, b in zip(nodes, graph.node, strict=True)):
        copies = [_copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return idle


def _taken(
    graph: onnx.GraphProto, choice: onnx.NodeProto, branch: onnx.GraphProto, prefix: str, max_values: int
) -> Iterator[onnx.NodeProto]:
    """The nodes of a branch, its own values renamed: two branches may use one name."""
    import onnx

    made = {name for node in branch.node for name in node.output if name}
    own = {name: prefix + name for name in (*made, *(tensor.name for tensor in branch.initializer))}
    for inner, outer in zip(branch.output, choice.output, strict=True):
        if inner.name in made and outer:
            own[inner.name] = outer
    for tensor in branch.initializer:
        _add_weights(graph, tensor, own[tensor.name], max_values)
    for node in branch.node:
        copy = _copy(node)
        copy.name = prefix + node.name if node.name else ""
        _rename(copy, own)
        yield copy
    for inner, outer in zip(branch.output, choice.output, strict=True):
        name = own.get(inner.name, inner.name)
        if outer and name != outer:
            yield onnx.helper.make_node("Identity", [name], [outer])


def _add_weights(graph: onnx.GraphProto, tensor: onnx.TensorProto, name: str, max_values: int) -> None:
    if math.prod(tensor.dims) > max_values:
        graph.initializer.add(name=name, dims=tensor.dims, data_type=tensor.data_type)
        return
    added = graph.initializer.add()
    added.CopyFrom(tensor)
    added.name = name


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Values that a node, and the graphs within it, takes and makes."""
    for values in (node.input, node.output):
        renamed = [names.get(name, name) for name in values]
        del values[:]
        values.extend(renamed)
    for entry in node.attribute:
        for inner in (*entry.graphs, *([entry.g] if entry.HasField("g") else [])):
            for each in inner.node:
                _rename(each, names)
            for value in inner.output:
                value.name = names.get(value.name, value.name)


def _weights(graph: onnx.GraphProto) -> int:
    """Numbers of floating point that are a branch's own."""
    import onnx

    whole = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.STRING)
    constants = [entry.t for node in graph.node if node.op_type == "Constant" for entry in node.attribute]
    tensors = [*graph.initializer, *(tensor for tensor in constants if tensor.dims)]
    return sum(math.prod(tensor.dims) for tensor in tensors if tensor.data_type not in whole)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
