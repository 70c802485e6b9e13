"""Windows that move over one, two or three axes, and convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, nn
from slotool.graphs.operators.attributes import Attributes, Shape
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction
from slotool.graphs.operators.keras_values import Initializer, Value, by_layer, layer_name
from slotool.graphs.operators.onnx_writer import Writer

_MOVED_OVER = {
    1: "a sequence of (channels, steps)",
    2: "an image of (channels, height, width)",
    3: "a volume of (channels, depth, height, width)",
}
WINDOW = {"kernel": REQUIRED, "stride": 1, "padding": "valid", "dilation": 1}
_TRAINED = {"bias": True, "activation": None}


def sides(value: Any, rank: int) -> tuple[int, ...]:
    """Return ``3`` or ``(3, 5)`` as one number for each axis."""
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise ValueError(f"{value!r} is not one number for each of {rank} axes")
    return tuple(int(side) for side in value)


def pair(value: Any) -> tuple[int, int]:
    """Return ``3`` or ``(3, 5)`` as (height, width)."""
    height, width = sides(value, 2)
    return height, width


def padding_around(attributes: Attributes, inputs: Shape) -> tuple[int, ...]:
    """Return padding before and after each axis; "same" puts the odd one at the end, as Keras does."""
    rank, padding = len(inputs) - 1, attributes.get("padding", "valid")
    if padding == "valid":
        return (0,) * (2 * rank)
    if padding != "same":
        return tuple(side for side in sides(padding, rank) for _ in range(2))
    kernel, stride = _reach_and_stride(attributes, rank)
    around: list[int] = []
    for size, length, step in zip(inputs[1:], kernel, stride, strict=True):
        total = max((-(-size // step) - 1) * step + length - size, 0)
        around += [total // 2, total - total // 2]
    return tuple(around)


def output_size(attributes: Attributes, inputs: Shape) -> tuple[int, ...]:
    """Return the number of places of the window along each axis.

    ``ceil``: one over the end counts, unless it lies wholly in the padding there (torch).
    """
    rank = len(inputs) - 1
    (kernel, stride), around = _reach_and_stride(attributes, rank), padding_around(attributes, inputs)
    sizes = []
    for axis, size in enumerate(inputs[1:]):
        before, after, step = around[2 * axis], around[2 * axis + 1], stride[axis]
        room = size + before + after - kernel[axis]
        places = (-(-room // step) if attributes.get("ceil") else room // step) + 1
        sizes.append(places - (bool(attributes.get("ceil")) and (places - 1) * step >= size + before))
    return tuple(sizes)


def _reach_and_stride(attributes: Attributes, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how far the dilated kernel reaches, and the stride, along each axis."""
    kernel, dilation = sides(attributes["kernel"], rank), sides(attributes.get("dilation", 1), rank)
    reach = tuple((length - 1) * spread + 1 for length, spread in zip(kernel, dilation, strict=True))
    return reach, sides(attributes.get("stride", 1), rank)


def padded(layer: nn.Module, around: Sequence[int], value: float) -> nn.Module:
    """Return a torch layer behind padding by so much before and after each axis."""
    pairs = [around[axis : axis + 2] for axis in range(0, len(around), 2)]
    padding = getattr(nn, f"ConstantPad{len(pairs)}d")([size for sides in reversed(pairs) for size in sides], value)
    return nn.Sequential(padding, layer)


class Window(OperatorType, abstract=True):
    """A window over so many ``axes`` behind the channels."""

    feature_axis = 0
    axes: ClassVar[int] = 2

    def settle(self, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        if len(inputs[0]) != self.axes + 1:
            raise GraphError(f"a window needs {_MOVED_OVER[self.axes]}, not {list(inputs[0])}")
        if "padding" in attributes:
            around = padding_around(attributes, inputs[0])
            if not any(around):
                del attributes["padding"]
            elif around == padding_around({**attributes, "padding": "same"}, inputs[0]):
                attributes["padding"] = "same"


def keras_window(operator: Operator) -> dict[str, Any]:
    """Return stride, padding and name of a Keras layer that moves a window over an image."""
    padding = operator["padding"]
    return {
        "strides": pair(operator["stride"]),
        "padding": padding if isinstance(padding, str) else "valid",
        "name": layer_name(operator.name),
    }


def behind_keras_padding(operator: Operator, layer: Callable[[Any], Any], value: float) -> Callable[[Any], Any]:
    """Return a Keras layer behind the padding that Keras has no option for: rows and columns on each side."""
    padding = operator["padding"]
    if isinstance(padding, str):
        return layer
    rows, columns = pair(padding)
    around = ((0, 0), (rows, rows), (columns, columns), (0, 0))
    return lambda x: layer(keras.ops.pad(x, around, constant_values=value))


class _Convolution(Window, abstract=True):
    """``as_groups`` returns the attributes as those of a convolution of so many ``groups``."""

    attributes = {"filters": REQUIRED, **WINDOW, "groups": 1, **_TRAINED}
    is_product = True

    def as_groups(self, attributes: Attributes, channels: int) -> Attributes:
        return attributes

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        attributes, channels = self.as_groups(attributes, inputs[0][0]), inputs[0][0]
        filters, groups = attributes["filters"], attributes["groups"]
        _require_groups(channels, filters, groups)
        size = output_size(attributes, inputs[0])
        weights = math.prod(sides(attributes["kernel"], len(size))) * (channels // groups) * filters
        bias = filters if attributes["bias"] else 0
        return Effect((filters, *size), weights + bias, 2 * weights * math.prod(size))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return _torch_convolution(self._grouped(operator), operator.input_shapes[0], device)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return _onnx_convolution(writer, self._grouped(operator), operator.input_shapes[0], values[0])

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        if self.axes != 2:
            return super().keras(operator, values, weights)
        attributes = operator.complete
        options = {
            **keras_window(operator),
            "kernel_size": pair(attributes["kernel"]),
            "dilation_rate": pair(attributes["dilation"]),
            "activation": attributes["activation"],
            "use_bias": attributes["bias"],
            "bias_initializer": weights,
        }
        layer = self.keras_layer(attributes, weights, options)
        return by_layer(behind_keras_padding(operator, layer, 0.0), operator.shape, values)

    def keras_layer(self, attributes: Attributes, weights: Initializer, options: Attributes) -> Any:
        """Return the Keras layer of this type."""
        groups = attributes["groups"]
        return keras.layers.Conv2D(attributes["filters"], groups=groups, kernel_initializer=weights, **options)

    def _grouped(self, operator: Operator) -> Attributes:
        return self.as_groups(operator.complete, operator.input_shapes[0][0])


def _require_groups(channels: int, filters: int, groups: int) -> None:
    if channels % groups or filters % groups:
        raise GraphError(f"{channels} channels and {filters} filters cannot form {groups} groups")


def _torch_convolution(attributes: Attributes, inputs: Shape, device: str) -> nn.Module:
    around = padding_around(attributes, inputs)
    if around[::2] == around[1::2]:
        return _torch_layer("Conv", attributes, inputs, device, padding=around[::2])
    return padded(_torch_layer("Conv", attributes, inputs, device), around, 0.0)


def _torch_layer(name: str, attributes: Attributes, inputs: Shape, device: str, **padding: Any) -> nn.Module:
    rank = len(inputs) - 1
    layer: nn.Module = getattr(nn, f"{name}{rank}d")(
        inputs[0],
        attributes["filters"],
        sides(attributes["kernel"], rank),
        sides(attributes["stride"], rank),
        dilation=sides(attributes["dilation"], rank),
        groups=attributes["groups"],
        bias=attributes["bias"],
        device=device,
        **padding,
    )
    return layer


def _onnx_convolution(writer: Writer, attributes: Attributes, inputs: Shape, value: str) -> str:
    around, filters = padding_around(attributes, inputs), attributes["filters"]
    pads = [*around[::2], *around[1::2]]
    return _onnx_node(writer, "Conv", attributes, value, (filters, inputs[0] // attributes["groups"]), pads=pads)


def _onnx_node(
    writer: Writer, op: str, attributes: Attributes, value: str, channels: tuple[int, int], **padding: Any
) -> str:
    """Append a convolution whose weights have these ``channels`` before their window."""
    rank = len(padding["pads"]) // 2
    kernel = sides(attributes["kernel"], rank)
    weight = writer.weight(*channels, *kernel)
    bias = [writer.weight(attributes["filters"])] if attributes["bias"] else []
    return writer.node(
        op,
        value,
        weight,
        *bias,
        kernel_shape=kernel,
        strides=sides(attributes["stride"], rank),
        dilations=sides(attributes["dilation"], rank),
        group=attributes["groups"],
        **padding,
    )


class Conv1D(_Convolution):
    axes = 1


class Conv2D(_Convolution):
    pass


class Conv3D(_Convolution):
    axes = 3


class DepthwiseConv2D(_Convolution):
    attributes = {**WINDOW, "multiplier": 1, **_TRAINED}

    def as_groups(self, attributes: Attributes, channels: int) -> Attributes:
        return {**attributes, "filters": channels * attributes["multiplier"], "groups": channels}

    def keras_layer(self, attributes: Attributes, weights: Initializer, options: Attributes) -> Any:
        multiplier = attributes["multiplier"]
        return keras.layers.DepthwiseConv2D(depth_multiplier=multiplier, depthwise_initializer=weights, **options)


class SeparableConv2D(_Convolution):
    """A depthwise convolution without bias, then one of 1 × 1."""

    attributes = {"filters": REQUIRED, **WINDOW, "multiplier": 1, **_TRAINED}

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        spatial, mixing = self._parts(attributes, inputs[0][0])
        first = super().infer(spatial, inputs)
        last = super().infer(mixing, [first.shape])
        return Effect(last.shape, first.weights + last.weights, first.flops + last.flops)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        (shape,) = operator.input_shapes
        spatial, mixing = self._parts(operator.complete, shape[0])
        middle = (spatial["filters"], *operator.shape[1:])
        return nn.Sequential(_torch_convolution(spatial, shape, device), _torch_convolution(mixing, middle, device))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (shape,) = operator.input_shapes
        spatial, mixing = self._parts(operator.complete, shape[0])
        value = _onnx_convolution(writer, spatial, shape, values[0])
        return _onnx_convolution(writer, mixing, (spatial["filters"], *operator.shape[1:]), value)

    def keras_layer(self, attributes: Attributes, weights: Initializer, options: Attributes) -> Any:
        return keras.layers.SeparableConv2D(
            attributes["filters"],
            depth_multiplier=attributes["multiplier"],
            depthwise_initializer=weights,
            pointwise_initializer=weights,
            **options,
        )

    def _parts(self, attributes: Attributes, channels: int) -> tuple[Attributes, Attributes]:
        middle = channels * attributes["multiplier"]
        spatial = {**attributes, "filters": middle, "groups": channels, "bias": False}
        mixing = {**WINDOW, "filters": attributes["filters"], "kernel": 1, "groups": 1, "bias": attributes["bias"]}
        return spatial, mixing


class _TransposedConvolution(Window, abstract=True):
    """The gradient of a convolution: each value of the input spreads over the window."""

    attributes = {"filters": REQUIRED, **WINDOW, "padding": 0, "output_padding": 0, "groups": 1, **_TRAINED}
    is_product = True

    def settle(self, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        super().settle({}, inputs)
        if isinstance(attributes.get("padding"), str):
            raise ValueError("a transposed convolution's padding is said in numbers")
        for name in ("padding", "output_padding"):
            if attributes.get(name) == 0:
                del attributes[name]

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        channels, filters, groups = inputs[0][0], attributes["filters"], attributes["groups"]
        _require_groups(channels, filters, groups)
        rank = self.axes
        (reach, stride), padding = _reach_and_stride(attributes, rank), sides(attributes["padding"], rank)
        extra = sides(attributes["output_padding"], rank)
        size = [
            (length - 1) * stride[axis] - 2 * padding[axis] + reach[axis] + extra[axis]
            for axis, length in enumerate(inputs[0][1:])
        ]
        weights = math.prod(sides(attributes["kernel"], rank)) * channels * (filters // groups)
        bias = filters if attributes["bias"] else 0
        return Effect((filters, *size), weights + bias, 2 * weights * math.prod(inputs[0][1:]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        sizes = {name: sides(operator[name], self.axes) for name in ("padding", "output_padding")}
        return _torch_layer("ConvTranspose", operator.complete, operator.input_shapes[0], device, **sizes)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        attributes = operator.complete
        pads = [*sides(attributes["padding"], self.axes)] * 2
        extra = sides(attributes["output_padding"], self.axes)
        channels = operator.input_shapes[0][0], attributes["filters"] // attributes["groups"]
        return _onnx_node(writer, "ConvTranspose", attributes, values[0], channels, pads=pads, output_padding=extra)


class Conv1DTranspose(_TransposedConvolution):
    axes = 1


class Conv2DTranspose(_TransposedConvolution):
    pass


class Conv3DTranspose(_TransposedConvolution):
    axes = 3
