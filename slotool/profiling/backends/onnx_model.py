"""An operator graph as an ONNX model, the way PyTorch's own export writes one; its weights are handed over apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.operators import Shape, channel_axis, pair, per_channel, window_padding, zero_padding

if TYPE_CHECKING:
    import onnx

# The first that has Gelu; onnxruntime runs it since 1.17.
OPSET = 20
IR_VERSION = 9
# torch's, so that both backends compute the same.
EPSILON = 1e-5
FLOAT = 1  # onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Weight:
    """An initialiser that the model names but does not hold; a running statistic is one that is not ``trained``."""

    name: str
    shape: Shape
    trained: bool


def onnx_model(graph: OperatorGraph, batch_size: int) -> tuple[onnx.ModelProto, list[Weight]]:
    """The model, input ``input`` and output ``output`` float32 [batch_size, *shape], and the weights it needs.

    Weights are in the order, and of the shapes, of ``GraphModule``'s parameters; being external they do not count
    towards the 2 GB that a protobuf message can hold. Raises ``GraphError`` for an operator that cannot be built.
    """
    import onnx

    writer = _Writer()
    shapes = {operator.name: operator.shape for operator in graph.operators}
    values: dict[str, str] = {}
    for operator in graph.operators:
        if operator.op == "InputLayer":
            if values:
                raise GraphError(f"operator {operator.name!r}: a network of several inputs cannot be built in ONNX")
            values[operator.name] = "input"
            continue
        if operator.op not in _LAYERS:
            raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in ONNX")
        writer.operator = operator.name
        inputs = [shapes[name] for name in operator.inputs]
        value = _LAYERS[operator.op](writer, operator, inputs, [values[name] for name in operator.inputs])
        values[operator.name] = _activated(writer, operator, value)
    writer.nodes.append(onnx.helper.make_node("Identity", [values[graph.operators[-1].name]], ["output"]))
    ends = [
        onnx.helper.make_tensor_value_info(name, FLOAT, [batch_size, *shape])
        for name, shape in (("input", graph.input_shape), ("output", graph.output_shape))
    ]
    body = onnx.helper.make_graph(writer.nodes, graph.kind, ends[:1], ends[1:], writer.initialisers)
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=IR_VERSION), writer.weights


class _Writer:
    """Collects nodes and initialisers; names are numbered, as operators may be called anything."""

    def __init__(self) -> None:
        self.operator = ""
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.weights: list[Weight] = []

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one output and return the name of that."""
        import onnx

        number = len(self.nodes)
        made, name = f"value_{number}", f"{self.operator}/{op}_{number}"
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [made], name=name, **attributes))
        return made

    def weight(self, *shape: int, trained: bool = True) -> str:
        """Name an initialiser that lies elsewhere."""
        import onnx

        name = f"weight_{len(self.weights)}"
        tensor = onnx.TensorProto(name=name, dims=shape, data_type=FLOAT, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="memory")
        self.initialisers.append(tensor)
        self.weights.append(Weight(name, shape, trained))
        return name

    def integers(self, *values: int) -> str:
        return self._inline(values, integers=True)

    def number(self, value: float) -> str:
        return self._inline(value, integers=False)

    def repeated(self, value: float, count: int) -> str:
        """A vector of one number that no weight lies behind."""
        import numpy as np
        import onnx

        tensor = onnx.numpy_helper.from_array(np.array([value], dtype=np.float32))
        return self.node("ConstantOfShape", self.integers(count), value=tensor)

    def _inline(self, value: Any, *, integers: bool) -> str:
        import numpy as np
        import onnx

        name = f"constant_{len(self.initialisers)}"
        array = np.array(value, dtype=np.int64 if integers else np.float32)
        self.initialisers.append(onnx.numpy_helper.from_array(array, name))
        return name


Layer = Callable[[_Writer, Operator, Sequence[Shape], Sequence[str]], str]


def _dense(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    units = operator.attributes["units"]
    weight = writer.weight(units, inputs[0][-1])
    bias = [writer.weight(units)] if operator.attributes.get("bias", True) else []
    if len(inputs[0]) == 1:
        return writer.node("Gemm", values[0], weight, *bias, transB=1)
    product = writer.node("MatMul", values[0], writer.node("Transpose", weight, perm=[1, 0]))
    return writer.node("Add", product, *bias) if bias else product


def _conv2d(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, channels = operator.attributes, inputs[0][0]
    if operator.op == "DepthwiseConv2D":
        attributes = {**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}
    top, bottom, left, right = window_padding(attributes, inputs[0])
    kernel, groups, filters = pair(attributes["kernel"]), attributes.get("groups", 1), attributes["filters"]
    weight = writer.weight(filters, channels // groups, *kernel)
    bias = [writer.weight(filters)] if attributes.get("bias", True) else []
    return writer.node(
        "Conv",
        values[0],
        weight,
        *bias,
        kernel_shape=kernel,
        strides=pair(attributes.get("stride", 1)),
        dilations=pair(attributes.get("dilation", 1)),
        pads=[top, left, bottom, right],
        group=groups,
    )


def _separable(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, channels = operator.attributes, inputs[0][0]
    middle = channels * attributes.get("multiplier", 1)
    spatial = replace(operator, attributes={**attributes, "filters": middle, "groups": channels, "bias": False})
    value = _conv2d(writer, spatial, inputs, values)
    mixing = {"filters": attributes["filters"], "kernel": 1, "bias": attributes.get("bias", True)}
    _, height, width = operator.shape
    return _conv2d(writer, replace(operator, attributes=mixing), [(middle, height, width)], [value])


def _pool2d(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, options = operator.attributes, {}
    top, bottom, left, right = window_padding(attributes, inputs[0])
    if operator.op == "AveragePooling2D":
        # As torch and Keras' padding layer: zeros around an image are part of it.
        options["count_include_pad"] = 1
    return writer.node(
        "MaxPool" if operator.op == "MaxPooling2D" else "AveragePool",
        values[0],
        kernel_shape=pair(attributes["kernel"]),
        strides=pair(attributes.get("stride", attributes["kernel"])),
        pads=[top, left, bottom, right],
        **options,
    )


def _global_pool(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    kind = "GlobalMaxPool" if operator.op == "GlobalMaxPooling2D" else "GlobalAveragePool"
    pooled = writer.node(kind, values[0])
    return pooled if operator.attributes.get("keepdims") else writer.node("Flatten", pooled, axis=1)


def _zero_pad(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return writer.node("Pad", values[0], writer.integers(0, 0, top, left, 0, 0, bottom, right))


def _crop(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    top, _, left, _ = zero_padding(operator.attributes["cropping"])
    _, height, width = operator.shape
    starts, ends = writer.integers(top, left), writer.integers(top + height, left + width)
    return writer.node("Slice", values[0], starts, ends, writer.integers(2, 3))


def _flatten(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Flatten", values[0], axis=1)


def _reshape(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    # 0 keeps the batch as it is.
    return writer.node("Reshape", values[0], writer.integers(0, *operator.shape))


def _batch_norm(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    channels = inputs[0][channel_axis(inputs[0])]
    parts = _scale_and_shift(writer, operator, channels)
    statistics = [writer.weight(channels, trained=False) for _ in range(2)]
    x, turned = values[0], len(inputs[0]) == 2
    if turned:
        x = writer.node("Transpose", x, perm=[0, 2, 1])
    x = writer.node("BatchNormalization", x, *parts, *statistics, epsilon=EPSILON)
    return writer.node("Transpose", x, perm=[0, 2, 1]) if turned else x


def _layer_norm(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    parts = _scale_and_shift(writer, operator, inputs[0][channel_axis(inputs[0])])
    x, turned = values[0], len(inputs[0]) == 3
    if turned:
        x = writer.node("Transpose", x, perm=[0, 2, 3, 1])
    x = writer.node("LayerNormalization", x, *parts, axis=-1, epsilon=EPSILON)
    return writer.node("Transpose", x, perm=[0, 3, 1, 2]) if turned else x


def _scale_and_shift(writer: _Writer, operator: Operator, channels: int) -> list[str]:
    """ONNX wants both; one that is not trained is made of nothing but its neutral number."""
    return [
        writer.weight(channels) if operator.attributes.get(part, True) else writer.repeated(neutral, channels)
        for part, neutral in (("scale", 1.0), ("center", 0.0))
    ]


def _normalization(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    if operator.attributes.get("fixed"):
        return _rescale(writer, operator, inputs, values)
    mean, deviation = (writer.weight(*per_channel(inputs[0]), trained=False) for _ in range(2))
    return writer.node("Div", writer.node("Sub", values[0], mean), deviation)


def _layer_scale(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Mul", values[0], writer.weight(*per_channel(inputs[0])))


def _rescale(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    # A graph holds no constants; by one, onnxruntime would not multiply at all.
    return writer.node("Mul", values[0], writer.number(1 / 255))


def _softmax(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Softmax", values[0], axis=1 + channel_axis(operator.shape))


def _relu(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Relu", values[0])


def _unchanged(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    """Its activation is applied as every operator's is."""
    return values[0]


def _add(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Add" if len(values) == 2 else "Sum", *values)


def _multiply(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    product, *others = values
    for other in others:
        product = writer.node("Mul", product, other)
    return product


def _concatenate(writer: _Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("Concat", *values, axis=1 + channel_axis(inputs[0]))


def _activated(writer: _Writer, operator: Operator, value: str) -> str:
    """A value behind the operator's activation, with torch's constants; silu, which ONNX long had no operator for, is
    spelt out as exporters do."""
    activation = operator.attributes.get("activation")
    if activation is None:
        return value
    if activation == "softmax":
        return _softmax(writer, operator, [operator.shape], [value])
    if activation == "silu":
        return writer.node("Mul", value, writer.node("Sigmoid", value))
    if activation == "relu6":
        return writer.node("Clip", value, writer.number(0.0), writer.number(6.0))
    if activation not in _ACTIVATIONS:
        raise GraphError(f"operator {operator.name!r}: unknown activation {activation!r}")
    op, attributes = _ACTIVATIONS[activation]
    return writer.node(op, value, **attributes)


_ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "elu": ("Elu", {}),
    "selu": ("Selu", {}),
    "gelu": ("Gelu", {}),
    "mish": ("Mish", {}),
    "softplus": ("Softplus", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hard_silu": ("HardSwish", {}),
}

_LAYERS: dict[str, Layer] = {
    "Dense": _dense,
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _conv2d,
    "SeparableConv2D": _separable,
    "MaxPooling2D": _pool2d,
    "AveragePooling2D": _pool2d,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "ZeroPadding2D": _zero_pad,
    "Cropping2D": _crop,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Normalization": _normalization,
    "LayerScale": _layer_scale,
    "Rescaling": _rescale,
    "ReLU": _relu,
    "Softmax": _softmax,
    "Activation": _unchanged,
    "Add": _add,
    "Multiply": _multiply,
    "Concatenate": _concatenate,
}
