"""Quantised ONNX models in floating point: the same products on the same shapes, so that a capture knows them.

Three ways to write one: nodes of floating point between QuantizeLinear and DequantizeLinear; operators of their own,
such as QLinearConv; products of whole numbers behind DynamicQuantizeLinear, whose results are scaled back.
"""

from __future__ import annotations

import math

import numpy as np

from slotool.graphs.capture.onnx.folding import MAX_VALUES, OWN_DOMAINS
from slotool.graphs.capture.onnx.fused import MICROSOFT, TO_FIRST, TO_LAST
from slotool.graphs.libraries import onnx

DOMAINS = (*OWN_DOMAINS, MICROSOFT)


def in_floats(model: onnx.ModelProto) -> None:
    """Rewrite a quantised model in place in floats; large weights keep their shape but no values."""
    graph = model.graph
    if not any(is_quantised(node) for node in graph.node):
        return
    rewritten = _Rewriting(graph).run()
    del graph.node[:]
    graph.node.extend(rewritten.nodes)
    _retype(graph, rewritten.weights, rewritten.values)
    for name in rewritten.ones:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.0, np.float32), name))


def is_quantised(node: onnx.NodeProto) -> bool:
    """True if a node quantises, scales back, or computes on whole numbers."""
    return node.domain in DOMAINS and node.op_type in _REWRITES


class _Rewriting:
    """Rewriting of a quantised model.

    ``weights``: initialisers that become floating point, ``values``: so do these values; ``ones``: scales computed from
    the data, now one number each.
    """

    def __init__(self, graph: onnx.GraphProto):
        self._graph = graph
        self._initialisers = {tensor.name for tensor in graph.initializer}
        self._small = {tensor.name for tensor in graph.initializer if tensor.data_type in (tensor.INT8, tensor.UINT8)}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: set[str] = set()
        self.values: set[str] = set()
        self.ones: list[str] = []
        self._scales: set[str] = set()
        self._products: set[str] = set()

    def run(self) -> _Rewriting:
        for node in self._graph.node:
            rewrite = _REWRITES.get(node.op_type) if node.domain in DOMAINS else None
            if rewrite is not None:
                self._rewrite(node, *rewrite)
            elif not self._scales_back(node):
                self.nodes.append(node)
                self._pass_on(node)
        return self

    def _pass_on(self, node: onnx.NodeProto) -> None:
        """Make 8-bit weights floating point through nodes that only move them, such as look-ups of words."""
        if node.op_type in _MOVES and node.input[0] in self._small | self.values:
            self.weights |= self._small.intersection(node.input)
            self.values |= {*node.output}

    def _rewrite(self, node: onnx.NodeProto, op: str, positions: tuple[int, ...], bias: int | None) -> None:
        inputs = [*node.input, *[""] * 10]
        moved = [*node.input[2::3]] if op == "Concat" else [inputs[at] for at in positions]
        last = inputs[bias] if bias is not None else ""
        if op in ("Conv", "Gemm") and last:
            moved, last = [*moved, last], ""
        while moved and not moved[-1]:
            moved.pop()
        if any(entry.name == "channels_last" and entry.i for entry in node.attribute):
            turned, rewritten = node.output[0] + ".turned", node.output[0] + ".made"
            self._turn(moved[0], turned, TO_FIRST)
            self._add(op, [turned, *moved[1:]], node, rewritten)
            self._turn(rewritten, node.output[0], TO_LAST)
            return
        self._add(op, moved, node, node.output[0] + ".product" if last else "")
        if last:
            self._add("Add", [node.output[0] + ".product", last], node)
        if node.op_type.endswith("Integer"):
            self._products.add(node.output[0])
        if node.op_type == "DynamicQuantizeLinear":
            self._scales |= {*node.output[1:]}
            self.ones += node.output[1:]

    def _add(self, op: str, inputs: list[str], node: onnx.NodeProto, output: str = "") -> None:
        outputs = node.output if op in _SEVERAL_OUTPUTS else [output or node.output[0]]
        rewritten = onnx.NodeProto(op_type=op, name=node.name, input=inputs, output=outputs)
        if op in _FUSED:
            rewritten.domain = MICROSOFT
        if op not in ("Identity", "Add", "MatMul"):
            allowed = _ATTRIBUTES.get(op, ())
            rewritten.attribute.extend(entry for entry in node.attribute if entry.name in allowed)
        self.nodes.append(rewritten)
        self.weights |= self._initialisers.intersection(inputs)
        self.values |= {*rewritten.output}

    def _turn(self, value: str, rewritten: str, order: list[int]) -> None:
        self.nodes.append(onnx.helper.make_node("Transpose", [value], [rewritten], perm=order))
        self.values.add(rewritten)

    def _scales_back(self, node: onnx.NodeProto) -> bool:
        """True if a node only brings the result of whole numbers back to floats, or makes the scale for that."""
        if node.op_type == "Cast" and node.input[0] in self._products:
            self._products.add(node.output[0])
            self._add("Identity", [node.input[0]], node)
            return True
        if node.op_type != "Mul" or not self._scales.intersection(node.input):
            return False
        if all(name in self._scales or name in self._initialisers for name in node.input):
            self._scales.add(node.output[0])
            self.ones.append(node.output[0])
            return True
        value = next((name for name in node.input if name in self._products), None)
        if value is None:
            return False
        self._add("Identity", [value], node)
        return True


def _retype(graph: onnx.GraphProto, weights: set[str], values: set[str]) -> None:
    for tensor in graph.initializer:
        if tensor.name not in weights or tensor.data_type == onnx.TensorProto.FLOAT:
            continue
        small = math.prod(tensor.dims) <= MAX_VALUES and tensor.data_location != onnx.TensorProto.EXTERNAL
        if small:
            whole = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(whole.astype("float32"), tensor.name))
        else:
            tensor.data_type = onnx.TensorProto.FLOAT
    for value in (*graph.value_info, *graph.output):
        if value.name in values and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


_MOVES = ("Gather", "Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Expand", "Identity", "Concat", "Flatten")
# Fused operators in floats, and operators of which more than the first output may be used.
_FUSED = ("Attention", "EmbedLayerNormalization")
_SEVERAL_OUTPUTS = (*_FUSED, "LSTM")
_Rewrite = tuple[str, tuple[int, ...], int | None]
_WINDOW = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv": _WINDOW,
    "AveragePool": _WINDOW,
    "Gemm": ("transA", "transB"),
    "Concat": ("axis",),
    "Softmax": ("axis",),
    "Attention": ("num_heads", "unidirectional"),
    "LSTM": ("activations", "direction", "hidden_size"),
    "LeakyRelu": ("alpha",),
}
# The operator in floating point, which inputs it keeps, and which of them is a bias.
_REWRITES: dict[str, _Rewrite] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), ("Identity", (0,), None)),
    "QLinearConv": ("Conv", (0, 3), 8),
    "ConvInteger": ("Conv", (0, 1), None),
    "QLinearMatMul": ("MatMul", (0, 3), None),
    "MatMulInteger": ("MatMul", (0, 1), None),
    "MatMulIntegerToFloat": ("MatMul", (0, 1), 6),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1), 4),
    "QGemm": ("Gemm", (0, 3), 6),
    "QLinearAdd": ("Add", (0, 3), None),
    "QLinearMul": ("Mul", (0, 3), None),
    "QLinearSigmoid": ("Sigmoid", (0,), None),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), None),
    "QLinearSoftmax": ("Softmax", (0,), None),
    "QLinearAveragePool": ("AveragePool", (0,), None),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), None),
    "QLinearConcat": ("Concat", (), None),
    "QAttention": ("Attention", (0, 1, 2), None),
    "QEmbedLayerNormalization": ("EmbedLayerNormalization", (0, 1, 2, 3, 4, 5, 6), None),
    "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2, 3), None),
}
