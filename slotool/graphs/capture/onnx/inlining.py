"""The nodes of an inner graph of an ONNX model (a branch, the body of a loop) as nodes of the graph around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Inlining:
    """``graph`` is the one around; weights of more than ``max_values`` numbers keep their shape alone."""

    graph: onnx.GraphProto
    max_values: int

    def add_weights(self, inner: onnx.GraphProto, prefix: str) -> dict[str, str]:
        """Make the inner graph's weights those of the graph around; their names there by their own."""
        known = {tensor.name for tensor in self.graph.initializer}
        names = {tensor.name: prefix + tensor.name for tensor in inner.initializer}
        for tensor in inner.initializer:
            if names[tensor.name] not in known:
                self._add(tensor, names[tensor.name])
        return names

    def nodes(
        self, inner: onnx.GraphProto, given: Mapping[str, str], outputs: Sequence[str], prefix: str
    ) -> Iterator[onnx.NodeProto]:
        """The inner graph's nodes, its own values renamed: two graphs may use one name. ``given`` are names of its
        inputs and weights in the graph around, ``outputs`` those its outputs get there; "" where nobody takes one."""
        import onnx

        made = {name for node in inner.node for name in node.output if name}
        own = {**{name: prefix + name for name in made}, **given}
        for output, outer in zip(inner.output, outputs, strict=False):
            if output.name in made and outer:
                own[output.name] = outer
        for node in inner.node:
            copied = copy_of(node)
            copied.name = prefix + node.name if node.name else ""
            rename(copied, own)
            yield copied
        for output, outer in zip(inner.output, outputs, strict=False):
            name = own.get(output.name, output.name)
            if outer and name != outer:
                yield onnx.helper.make_node("Identity", [name], [outer])

    def _add(self, tensor: onnx.TensorProto, name: str) -> None:
        if math.prod(tensor.dims) > self.max_values:
            self.graph.initializer.add(name=name, dims=tensor.dims, data_type=tensor.data_type)
            return
        added = self.graph.initializer.add()
        added.CopyFrom(tensor)
        added.name = name


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Values that a node, and the graphs within it, takes and makes."""
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
    """Constants of a graph by their names."""
    held = {
        node.output[0]: entry.t
        for node in graph.node
        if node.op_type == "Constant"
        for entry in node.attribute
        if entry.name == "value"
    }
    return held | {tensor.name: tensor for tensor in graph.initializer}


def copy_of(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied
