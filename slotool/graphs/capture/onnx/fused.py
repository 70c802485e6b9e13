"""Operators that ONNX Runtime fuses as the standard ones that they stand for, so that a capture knows them.

A file that it optimised, or that its transformer tools made, has operators of the domain ``com.microsoft``, of which
the package onnx infers no shapes. A new one is an entry of ``_REWRITES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.libraries import onnx

# The domain of the operators that ONNX Runtime fuses.
MICROSOFT = "com.microsoft"
# Axes of images, channels last and channels first.
TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
# Attributes of fused operators that the plain ones do not have.
_OF_FUSIONS = ("activation", "activation_params")


class Writer:
    """Nodes that stand for ``node``, whose constants become initialisers of the graph, which have these ``shapes``."""

    def __init__(self, graph: onnx.GraphProto, node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]]):
        self._graph, self._node, self._shapes = graph, node, shapes
        self._attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
        self._prefix = next(filter(None, (node.name, *node.output)))
        self.inputs = list(node.input)
        self.nodes: list[onnx.NodeProto] = []
        self._names = 0

    def attribute(self, name: str, default: Any) -> Any:
        value = self._attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] != ""

    def gives(self, position: int) -> bool:
        return position < len(self._node.output) and self._node.output[position] != ""

    def shape(self, name: str) -> Sequence[int] | None:
        """Return an initialiser's shape."""
        return self._shapes.get(name)

    def add(self, op: str, inputs: Iterable[str], **attributes: Any) -> str:
        """Append a node; the name of what it makes."""
        name = self._name()
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def keep(self, op: str, inputs: Iterable[str]) -> str:
        """Append a node with the attributes of the one in whose place it stands."""
        attributes = {key: value for key, value in self._attributes.items() if key not in _OF_FUSIONS}
        return self.add(op, inputs, **attributes)

    def finish(self, value: str) -> bool:
        """Make ``value`` the node's output and return True."""
        self.finish_as(value, 0)
        return True

    def finish_as(self, value: str, position: int) -> str:
        """Make ``value`` the node's output at this position and return its new name."""
        name = str(self._node.output[position])
        last = self.nodes[-1] if self.nodes else None
        if last is not None and list(last.output) == [value]:
            last.output[0], last.name = name, self._prefix
        else:
            self.nodes.append(onnx.helper.make_node("Identity", [value], [name], name=name))
        return name

    def numbers(self, values: Sequence[int]) -> str:
        """Return a constant of whole numbers: axes, sizes."""
        return self._constant(np.array(values, np.int64))

    def floats(self, values: Sequence[float] | float) -> str:
        return self._constant(np.array(values, np.float32))

    def weights(self, shape: Sequence[int]) -> str:
        """Return the weights of a shape alone."""
        name = self._name()
        self._graph.initializer.add(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
        return name

    def part(self, value: str, start: int, end: int, axis: int) -> str:
        return self.add("Slice", [value, *(self.numbers([number]) for number in (start, end, axis))])

    def heads(self, value: str, heads: int) -> str:
        """Return [batch, steps, heads x size] as [batch, heads, steps, size]."""
        apart = self.add("Reshape", [value, self.numbers([0, 0, heads, -1])])
        return self.add("Transpose", [apart], perm=[0, 2, 1, 3])

    def _constant(self, values: np.ndarray) -> str:
        name = self._name()
        self._graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        return name

    def _name(self) -> str:
        self._names += 1
        return f"{self._prefix}/{self._names}"


# Domain of convolutions in blocks of channels, for one kind of processor.
BLOCKED = "com.microsoft.nchwc"
Rewrite = Callable[[Writer], bool]


def without_fusions(graph: onnx.GraphProto, name: str) -> None:
    """Rewrite a graph in place; operators that are not known, and those with what is not followed, stay as they are.

    Raises ``GraphError`` for a file that was optimised for one kind of processor.
    """
    if any(node.domain == BLOCKED for node in graph.node):
        raise GraphError(
            f"{name} was optimised for the processor of one machine, with channels in blocks ({BLOCKED}): capture the "
            "file that it was made from, or optimise that with GraphOptimizationLevel.ORT_ENABLE_EXTENDED"
        )
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    written: list[onnx.NodeProto] = []
    for node in graph.node:
        rewrite = (_REWRITES if node.domain == MICROSOFT else _STANDARD).get(node.op_type)
        writer = Writer(graph, node, shapes)
        written += writer.nodes if rewrite is not None and rewrite(writer) else [node]
    del graph.node[:]
    graph.node.extend(written)


def _activated(writer: Writer, value: str) -> str:
    """Append the activation that is part of the operator."""
    activation = writer.attribute("activation", "")
    if not activation:
        return value
    numbers = writer.attribute("activation_params", [])
    if activation == "Clip":
        return writer.add("Clip", [value, *map(writer.floats, numbers)])
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    return writer.add(activation, [value], **dict(zip(names, numbers, strict=False)))


def _convolution(writer: Writer) -> bool:
    """Write a convolution, with a third input added before its activation."""
    output = writer.keep("Conv", writer.inputs[:3])
    if writer.has(3):
        output = writer.add("Add", [output, writer.inputs[3]])
    return writer.finish(_activated(writer, output))


def _plain(op: str) -> Rewrite:
    return lambda writer: writer.finish(writer.keep(op, writer.inputs))


def _matrix_product(writer: Writer) -> bool:
    """Write a product of matrices that may be transposed, times a number."""
    if writer.attribute("transBatchA", 0) or writer.attribute("transBatchB", 0):
        return False
    left, right = writer.inputs[:2]
    turned = [writer.attribute(name, 0) for name in ("transA", "transB")]
    if turned[1] and len(writer.shape(right) or ()) == 2:
        right, turned[1] = writer.add("Transpose", [right], perm=[1, 0]), 0
    if any(turned):
        rows, columns = ("ji" if turned[0] else "ij"), ("kj" if turned[1] else "jk")
        output = writer.add("Einsum", [left, right], equation=f"...{rows},...{columns}->...ik")
    else:
        output = writer.add("MatMul", [left, right])
    scale = writer.attribute("alpha", 1.0)
    return writer.finish(output if scale == 1.0 else writer.add("Mul", [output, writer.floats(scale)]))


def _packed_product(writer: Writer) -> bool:
    """Write a product with weights of a few bits each, several in a number of the file."""
    weight = writer.weights([writer.attribute("K", 0), writer.attribute("N", 0)])
    output = writer.add("MatMul", [writer.inputs[0], weight])
    return writer.finish(writer.add("Add", [output, writer.inputs[5]]) if writer.has(5) else output)


def _skip_norm(norm: str, bias: int) -> Rewrite:
    """Return a sum, and its normalisation; the sum may be used, too."""

    def skip_norm(writer: Writer) -> bool:
        total = writer.add("Add", writer.inputs[:2])
        if writer.has(bias):
            total = writer.add("Add", [total, writer.inputs[bias]])
        if writer.gives(3):
            total = writer.finish_as(total, 3)
        trained = [name for name in writer.inputs[2:bias] if name]
        return writer.finish(writer.add(norm, [total, *trained], axis=-1))

    return skip_norm


def _embedded(writer: Writer) -> bool:
    """Write words, their positions and their segments, added and normalised."""
    tokens, segments, words, places, kinds, scale, centre = writer.inputs[:7]
    value = writer.add("Gather", [words, tokens])
    if writer.has(8):
        value = writer.add("Add", [value, writer.add("Gather", [places, writer.inputs[8]])])
    else:
        length = writer.add("Slice", [writer.add("Shape", [tokens]), writer.numbers([1]), writer.numbers([2])])
        value = writer.add("Add", [value, writer.add("Slice", [places, writer.numbers([0]), length])])
    if segments and kinds:
        value = writer.add("Add", [value, writer.add("Gather", [kinds, segments])])
    if writer.gives(2):
        value = writer.finish_as(value, 2)
    return writer.finish(writer.add("LayerNormalization", [value, scale, centre], axis=-1))


def _biased(*chain: str) -> Rewrite:
    """Return an activation of what may have a bias added to it."""

    def biased(writer: Writer) -> bool:
        value = writer.inputs[0]
        for name in filter(None, writer.inputs[1:]):
            value = writer.add("Add", [value, name])
        for op in chain:
            value = writer.add(op, [value])
        return writer.finish(value)

    return biased


def _gated(writer: Writer) -> bool:
    """Write x · sigmoid(1.702 x) like a Swish."""
    value = writer.inputs[0]
    return writer.finish(writer.add("Mul", [value, writer.add("Sigmoid", [value])]))


def _attention(writer: Writer) -> bool:
    """Write attention of one input with one projection matrix for queries, keys and values."""
    weight = writer.shape(writer.inputs[1])
    if weight is None or len(weight) != 2 or writer.has(4):
        return False
    sizes = writer.attribute("qkv_hidden_sizes", []) or [weight[1] // 3] * 3
    joined = writer.add("MatMul", writer.inputs[:2])
    if writer.has(2):
        joined = writer.add("Add", [joined, writer.inputs[2]])
    ends = [sum(sizes[: at + 1]) for at in range(3)]
    parts = [writer.part(joined, end - size, end, 2) for size, end in zip(sizes, ends, strict=True)]
    return writer.finish(_attended(writer, parts, writer.attribute("num_heads", 1)))


def _multi_head(writer: Writer) -> bool:
    """Write attention of projected queries, keys and values, which may have biases."""
    if not (writer.has(1) and writer.has(2)) or writer.has(6):
        return False
    parts = writer.inputs[:3]
    if writer.has(3):
        size = (writer.shape(writer.inputs[3]) or [0])[0] // 3
        biases = [writer.part(writer.inputs[3], at * size, (at + 1) * size, 0) for at in range(3)]
        parts = [writer.add("Add", [value, bias]) for value, bias in zip(parts, biases, strict=True)]
    return writer.finish(_attended(writer, parts, writer.attribute("num_heads", 1)))


def _grouped(writer: Writer) -> bool:
    """Write attention with fewer heads of keys and values than of queries, after those of earlier steps.

    Their rotary positions, a few values each, are left out.
    """
    if not (writer.has(1) and writer.has(2)):
        return False
    heads = writer.attribute("num_heads", 1)
    groups = writer.attribute("kv_num_heads", heads)
    apart = writer.add("Reshape", [writer.inputs[0], writer.numbers([0, 0, groups, heads // groups, -1])])
    parts = [writer.add("Transpose", [apart], perm=[0, 2, 3, 1, 4])]
    for at in (1, 2):
        value = writer.heads(writer.inputs[at], groups)
        if writer.has(at + 2):
            value = writer.add("Concat", [writer.inputs[at + 2], value], axis=2)
        if writer.gives(at):
            value = writer.finish_as(value, at)
        shape = writer.add("Shape", [value])
        one, rest = (writer.part(shape, *ends, 0) for ends in ((0, 2), (2, 4)))
        shape = writer.add("Concat", [one, writer.numbers([1]), rest], axis=0)
        parts.append(writer.add("Reshape", [value, shape]))
    query, key, value = parts
    output = _scored(writer, query, key, value, [0, 1, 2, 4, 3])
    joined = writer.add("Transpose", [output], perm=[0, 3, 1, 2, 4])
    return writer.finish(writer.add("Reshape", [joined, writer.numbers([0, 0, -1])]))


def _standard_attention(writer: Writer) -> bool:
    """Rewrite attention of heads within the features, or behind earlier steps, as one of heads that stand apart.

    Returns False where nothing has to be rewritten.
    """
    heads = [writer.attribute(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    if not heads[0] and not writer.has(4) and not writer.gives(1):
        return False
    parts = [writer.heads(name, count) if count else name for name, count in zip(writer.inputs, heads, strict=False)]
    for at in (1, 2):
        if writer.has(at + 3):
            parts[at] = writer.add("Concat", [writer.inputs[at + 3], parts[at]], axis=2)
        if writer.gives(at):
            parts[at] = writer.finish_as(parts[at], at)
    masks = writer.inputs[3:4] if writer.has(3) else []
    output = writer.add("Attention", [*parts, *masks], is_causal=writer.attribute("is_causal", 0))
    if heads[0]:
        output = writer.add("Transpose", [output], perm=[0, 2, 1, 3])
        output = writer.add("Reshape", [output, writer.numbers([0, 0, -1])])
    return writer.finish(output)


def _attended(writer: Writer, parts: Sequence[str], heads: int) -> str:
    query, key, value = (writer.heads(name, heads) for name in parts)
    output = _scored(writer, query, key, value, [0, 1, 3, 2])
    joined = writer.add("Transpose", [output], perm=[0, 2, 1, 3])
    return writer.add("Reshape", [joined, writer.numbers([0, 0, -1])])


def _scored(writer: Writer, query: str, key: str, value: str, turned: Sequence[int]) -> str:
    """Append the products of attention without masks, whose values are unknown."""
    scores = writer.add("MatMul", [query, writer.add("Transpose", [key], perm=turned)])
    scaled = writer.add("Mul", [scores, writer.floats(0.5)])
    return writer.add("MatMul", [writer.add("Softmax", [scaled], axis=-1), value])


_REWRITES: dict[str, Rewrite] = {
    "FusedConv": _convolution,
    "FusedGemm": lambda writer: writer.finish(_activated(writer, writer.keep("Gemm", writer.inputs))),
    "FusedMatMul": _matrix_product,
    "TransposeMatMul": _matrix_product,
    "MatMulNBits": _packed_product,
    "SkipLayerNormalization": _skip_norm("LayerNormalization", 4),
    "SkipSimplifiedLayerNormalization": _skip_norm("SimplifiedLayerNormalization", 3),
    "SimplifiedLayerNormalization": _plain("SimplifiedLayerNormalization"),
    "EmbedLayerNormalization": _embedded,
    "Gelu": _biased("Gelu"),
    "BiasGelu": _biased("Gelu"),
    "FastGelu": _biased("Gelu"),
    "QuickGelu": _gated,
    "BiasAdd": _biased(),
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
}
_STANDARD: dict[str, Rewrite] = {"Attention": _standard_attention}
