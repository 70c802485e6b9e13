"""Pooling, and windows written out as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import functional, keras, nn, torch, torch_parts
from slotool.graphs.operators.attributes import Attributes, Shape
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, by_layer, layer_name
from slotool.graphs.operators.onnx_writer import Writer
from slotool.graphs.operators.windows import (
    WINDOW,
    Window,
    behind_keras_padding,
    keras_window,
    output_size,
    padded,
    padding_around,
    pair,
    sides,
)

# A stride of None is that of the kernel.
_POOL = {"kernel": REQUIRED, "stride": None, "padding": "valid", "ceil": False}


class _Pooling(Window, abstract=True):
    """Pooling with one FLOP per value that a window reads. ``outside``: number that padding stands for."""

    outside: ClassVar[float]
    torch_name: ClassVar[str]
    onnx_op: ClassVar[str]

    def settle(self, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        # Always stated, so that readers need not know the default.
        attributes.setdefault("stride", attributes["kernel"])
        super().settle(attributes, inputs)
        if "padding" not in attributes:
            attributes.pop("count_padding", None)
        if attributes.get("ceil"):
            plain = {name: value for name, value in attributes.items() if name != "ceil"}
            if output_size(attributes, inputs[0]) == output_size(plain, inputs[0]):
                del attributes["ceil"]

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        shape = (inputs[0][0], *output_size(attributes, inputs[0]))
        return Effect(shape, 0, math.prod(shape) * math.prod(sides(attributes["kernel"], self.axes)))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        attributes = operator.complete
        around, ceil = padding_around(attributes, operator.input_shapes[0]), attributes["ceil"]
        options: dict[str, Any] = {"ceil_mode": ceil} if ceil else {}
        # Padding of torch's own only where the padding in front would not be the same.
        counts_padding = (ceil or not attributes.get("count_padding", True)) and around[::2] == around[1::2]
        if counts_padding:
            options["padding"] = around[::2]
            if "count_padding" in attributes:
                options["count_include_pad"] = attributes["count_padding"]
        if attributes.get("dilation", 1) != 1:
            options["dilation"] = attributes["dilation"]
        pool: nn.Module = getattr(nn, f"{self.torch_name}{self.axes}d")(*self.window(attributes), **options)
        return padded(pool, around, self.outside) if any(around) and not counts_padding else pool

    def window(self, attributes: Attributes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return kernel and stride along each axis."""
        return sides(attributes["kernel"], self.axes), sides(attributes["stride"], self.axes)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        attributes = operator.complete
        around = padding_around(attributes, operator.input_shapes[0])
        kernel, stride = self.window(attributes)
        options: dict[str, Any] = {"ceil_mode": 1} if attributes["ceil"] else {}
        if "count_padding" in attributes:
            options["count_include_pad"] = int(attributes["count_padding"])
        if attributes.get("dilation", 1) != 1:
            options["dilations"] = sides(attributes["dilation"], self.axes)
        pads = [*around[::2], *around[1::2]]
        return writer.node(self.onnx_op, values[0], kernel_shape=kernel, strides=stride, pads=pads, **options)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        attributes = operator.complete
        left_out = not attributes.get("count_padding", True) and not isinstance(attributes["padding"], str)
        if self.axes != 2 or attributes["ceil"] or attributes.get("dilation", 1) != 1 or left_out:
            return super().keras(operator, values, weights)
        layer = getattr(keras.layers, operator.op)(pair(operator["kernel"]), **keras_window(operator))
        return by_layer(behind_keras_padding(operator, layer, self.outside), operator.shape, values)


class _MaxPooling(_Pooling, abstract=True):
    attributes = {**_POOL, "dilation": 1}
    outside = -math.inf
    torch_name = onnx_op = "MaxPool"


class _AveragePooling(_Pooling, abstract=True):
    """Average of a window, with zeros around an image unless ``count_padding`` is False, as in torch and Keras."""

    attributes = {**_POOL, "count_padding": True}
    outside = 0.0
    torch_name, onnx_op = "AvgPool", "AveragePool"


class MaxPooling1D(_MaxPooling):
    axes = 1


class MaxPooling2D(_MaxPooling):
    pass


class MaxPooling3D(_MaxPooling):
    axes = 3


class AveragePooling1D(_AveragePooling):
    axes = 1


class AveragePooling2D(_AveragePooling):
    pass


class AveragePooling3D(_AveragePooling):
    axes = 3


class _GlobalPooling(OperatorType, abstract=True):
    """Pooling to one number for each channel of an image."""

    attributes = {"keepdims": False}
    feature_axis = 0
    torch_name: ClassVar[str]
    onnx_op: ClassVar[str]

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        channels, _, _ = inputs[0]
        return Effect((channels, 1, 1) if attributes["keepdims"] else (channels,), 0, math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        keepdims = operator["keepdims"]
        return partial(getattr(torch, self.torch_name), dim=(2, 3), keepdim=keepdims)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        pooled = writer.node(self.onnx_op, values[0])
        return pooled if operator["keepdims"] else writer.node("Flatten", pooled, axis=1)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        keepdims = operator["keepdims"]
        layer = getattr(keras.layers, operator.op)(keepdims=keepdims, name=layer_name(operator.name))
        return by_layer(layer, operator.shape, values)


class GlobalAveragePooling2D(_GlobalPooling):
    torch_name, onnx_op = "mean", "GlobalAveragePool"


class GlobalMaxPooling2D(_GlobalPooling):
    torch_name, onnx_op = "amax", "GlobalMaxPool"


class AdaptivePooling(OperatorType):
    """Windows of nearly equal size, so many that ``size`` is left; each value is read about once."""

    attributes = {"size": REQUIRED, "function": "mean"}
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        batch_rank = len(inputs[0]) - len(attributes["size"])
        if attributes["function"] not in ("mean", "max"):
            raise GraphError(f"AdaptivePooling's function {attributes['function']!r} is neither 'mean' nor 'max'")
        if batch_rank < 1:
            raise GraphError(f"AdaptivePooling to {list(attributes['size'])} needs an axis of channels before these")
        return Effect((*inputs[0][:batch_rank], *attributes["size"]), 0, math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        size = operator["size"]
        kind = "max" if operator["function"] == "max" else "avg"
        pool = getattr(functional, f"adaptive_{kind}_pool{len(size)}d")
        return torch_parts.over_last_axes(partial(pool, output_size=size), len(size))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (shape,), size = operator.input_shapes, operator["size"]
        last = shape[-len(size) :]
        if any(length % places for length, places in zip(last, size, strict=True)):
            raise cannot_be_built(operator, "ONNX", "AdaptivePooling in windows of several sizes")
        kernel = [length // places for length, places in zip(last, size, strict=True)]
        kind = "MaxPool" if operator["function"] == "max" else "AveragePool"
        if len(shape) == len(size) + 1:
            return writer.node(kind, values[0], kernel_shape=kernel, strides=kernel)
        flat = writer.shaped(values[0], -1, *last)
        return writer.shaped(writer.node(kind, flat, kernel_shape=kernel, strides=kernel), *operator.shape)


def _columns(call: Any) -> dict[str, Any]:
    return {"kernel": call["kernel_size"], **{name: call[name] for name in ("stride", "padding", "dilation")}}


class Unfold(Window):
    """Columns of every window of an image (im2col): (channels × window, places)."""

    attributes = WINDOW
    captured = {"torch.im2col": _columns}

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        size = output_size(attributes, inputs[0])
        return Effect((inputs[0][0] * math.prod(pair(attributes["kernel"])), math.prod(size)))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        around = padding_around(operator.attributes, operator.input_shapes[0])
        unfold = nn.Unfold(pair(operator["kernel"]), **_steps(operator))
        return padded(unfold, around, 0.0) if any(around) else unfold


class Fold(OperatorType):
    """Columns added up into an image of ``size`` (col2im), the inverse of ``Unfold``."""

    attributes = {"size": REQUIRED, **WINDOW}
    captured = {"torch.col2im": lambda call: {"size": call["output_size"], **_columns(call)}}
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        values, places = inputs[0]
        window = math.prod(pair(attributes["kernel"]))
        image = (values // window, *attributes["size"])
        if math.prod(output_size(attributes, image)) != places or values % window:
            raise GraphError(f"Fold cannot make {list(image)} of {list(inputs[0])}")
        return Effect(image, 0, math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        attributes = operator.complete
        height, width = attributes["size"]
        top, bottom, left, right = padding_around(attributes, (1, height, width))
        whole = (height + top + bottom, width + left + right)
        fold = nn.Fold(whole, pair(attributes["kernel"]), **_steps(operator))
        around = (-left, -right, -top, -bottom)
        return nn.Sequential(fold, nn.ZeroPad2d(around)) if any(around) else fold


def _steps(operator: Operator) -> dict[str, Any]:
    attributes = operator.complete
    return {"stride": pair(attributes["stride"]), "dilation": pair(attributes["dilation"])}
