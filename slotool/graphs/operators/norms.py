"""Normalisations and factors per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.libraries import keras, nn, torch_parts
from slotool.graphs.operators.attributes import (
    Attributes,
    Shape,
    channel_axis,
    chosen_axes,
    chosen_axis,
    per_channel,
    settle_channel_axes,
    settle_channel_axis,
)
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction
from slotool.graphs.operators.elementwise import rescaled
from slotool.graphs.operators.keras_values import Initializer, Value, by_layer, layer_name
from slotool.graphs.operators.onnx_writer import Writer

# torch's own for most norms, so that all libraries compute the same.
EPSILON = 1e-5


class _Norm(OperatorType, abstract=True):
    """A normalisation that may have a trained factor (``scale``) and a trained number to add (``center``)."""

    attributes = {"scale": True, "center": True}

    def trained(self, attributes: Attributes) -> int:
        """Return how many of the two are trained."""
        return int(attributes["scale"]) + int(attributes["center"])

    def without_unused(self, norm: nn.Module, operator: Operator) -> nn.Module:
        """Return a torch norm without the parameters that the operator lacks."""
        for part, name in (("scale", "weight"), ("center", "bias")):
            if not operator[part]:
                setattr(norm, name, None)
        return norm

    def scale_and_shift(self, writer: Writer, operator: Operator, *sizes: int) -> list[str]:
        """Return both, as ONNX takes them; one that is not trained is made of nothing but its neutral number."""
        parts = []
        for part, neutral in (("scale", 1.0), ("center", 0.0)):
            if operator[part]:
                parts.append(writer.weight(*sizes))
            else:
                constant = writer.repeated(neutral, math.prod(sizes))
                parts.append(constant if len(sizes) == 1 else writer.node("Reshape", constant, writer.integers(*sizes)))
        return parts

    def keras_layer(self, operator: Operator, value: Value, **options: Any) -> Value:
        """Return the output of the Keras layer of this name, whose statistics and factors keep Keras' own start."""
        if "center" in self.attributes:
            options |= {part: operator[part] for part in ("scale", "center")}
        layer = getattr(keras.layers, operator.op)(epsilon=EPSILON, name=layer_name(operator.name), **options)
        return Value(layer(value.tensor), value.order)


class BatchNormalization(_Norm):
    """Moving mean and variance are counted as weights, as Keras counts them."""

    attributes = {**_Norm.attributes, "axis": None}
    settle = staticmethod(settle_channel_axis)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        parts = 2 + self.trained(attributes)
        return Effect(inputs[0], parts * inputs[0][chosen_axis(attributes, inputs[0])], 2 * math.prod(inputs[0]))

    def statistics(self, operator: Operator) -> int:
        return 2 * operator.weights // (2 + self.trained(operator.complete))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        shape, axis = operator.shape, chosen_axis(operator.attributes, operator.shape)
        norm = getattr(nn, f"BatchNorm{max(1, len(shape) - 1)}d")(shape[axis], device=device)
        norm = self.without_unused(norm, operator)
        return torch_parts.Moved(norm, [axis + 1], [1]) if axis else norm

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        shape, axis = operator.shape, chosen_axis(operator.attributes, operator.shape)
        parts = self.scale_and_shift(writer, operator, shape[axis])
        statistics = [writer.weight(shape[axis], trained=False) for _ in range(2)]
        order = [axis, *(other for other in range(len(shape)) if other != axis)]
        x = writer.node("BatchNormalization", writer.turned(values[0], order), *parts, *statistics, epsilon=EPSILON)
        return writer.turned(x, np.argsort(order).tolist())

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        axis = values[0].at(chosen_axis(operator.attributes, operator.shape))
        return self.keras_layer(operator, values[0], axis=axis)


class LayerNormalization(_Norm):
    """Per value: one FLOP for the mean, three for the variance, one to normalise, two to scale and shift."""

    attributes = {**_Norm.attributes, "axes": None}
    settle = staticmethod(settle_channel_axes)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(inputs[0], self.trained(attributes) * _sizes(attributes, inputs[0]), 7 * math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        norm = nn.LayerNorm(_normalised_sizes(operator), device=device)
        return _with_axes_last(self.without_unused(norm, operator), operator)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axes, order = _axes_last(operator)
        parts = self.scale_and_shift(writer, operator, *_normalised_sizes(operator))
        x = writer.turned(values[0], order)
        x = writer.node("LayerNormalization", x, *parts, axis=-len(axes), epsilon=EPSILON)
        return writer.turned(x, np.argsort(order).tolist())

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        axes = sorted(values[0].at(axis) for axis in chosen_axes(operator.attributes, operator.shape))
        return self.keras_layer(operator, values[0], axis=axes if len(axes) > 1 else axes[0])


class RMSNormalization(_Norm):
    """Per value: two FLOPs for the mean of squares, one to divide, one to scale (Zhang and Sennrich 2019)."""

    attributes = {"scale": True, "axes": None}
    feature_axis = -1
    settle = staticmethod(settle_channel_axes)

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        weights = attributes["scale"] * _sizes(attributes, inputs[0])
        return Effect(inputs[0], weights, 4 * math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        scale = operator["scale"]
        # torch's own epsilon depends on the type of the values.
        norm = nn.RMSNorm(_normalised_sizes(operator), eps=EPSILON, elementwise_affine=scale, device=device)
        return _with_axes_last(norm, operator)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        axes, order = _axes_last(operator)
        x = writer.turned(values[0], order)
        squares = writer.node("Pow", x, writer.number(2.0))
        mean = writer.node("ReduceMean", squares, writer.integers(*range(-len(axes), 0)), keepdims=1)
        x = writer.node("Div", x, writer.node("Sqrt", writer.node("Add", mean, writer.number(EPSILON))))
        if operator["scale"]:
            x = writer.node("Mul", x, writer.weight(*_normalised_sizes(operator)))
        return writer.turned(x, np.argsort(order).tolist())

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        (axis,) = chosen_axes(operator.attributes, operator.shape)
        return self.keras_layer(operator, values[0], axis=values[0].at(axis))


def _sizes(attributes: Attributes, shape: Shape) -> int:
    return math.prod(shape[axis] for axis in chosen_axes(attributes, shape))


def _normalised_sizes(operator: Operator) -> list[int]:
    return [operator.shape[axis] for axis in chosen_axes(operator.attributes, operator.shape)]


def _axes_last(operator: Operator) -> tuple[list[int], list[int]]:
    """Return the axes that are normalised, and the order of axes in which they are the last."""
    axes = list(chosen_axes(operator.attributes, operator.shape))
    return axes, [*(axis for axis in range(len(operator.shape)) if axis not in axes), *axes]


def _with_axes_last(norm: nn.Module, operator: Operator) -> nn.Module:
    """Return a norm over the last axes as one over the operator's."""
    axes, rank = chosen_axes(operator.attributes, operator.shape), len(operator.shape)
    last = range(rank - len(axes), rank)
    return (
        norm
        if list(axes) == list(last)
        else torch_parts.Moved(norm, [axis + 1 for axis in axes], [axis + 1 for axis in last])
    )


class GroupNormalization(_Norm):
    """Channels (axis 0) are normalised in ``groups``: as many as channels, and it is an instance norm."""

    attributes = {"groups": REQUIRED, **_Norm.attributes}
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        channels = inputs[0][0]
        if channels % attributes["groups"]:
            raise GraphError(f"{channels} channels cannot form {attributes['groups']} groups")
        return Effect(inputs[0], self.trained(attributes) * channels, 7 * math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        norm = nn.GroupNorm(operator["groups"], operator.shape[0], device=device)
        return self.without_unused(norm, operator)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        """Append an instance norm over groups, then scale and shift of each channel, as torch exports it."""
        (channels, *around), groups = operator.shape, operator["groups"]
        grouped = writer.shaped(values[0], groups, math.prod(operator.shape) // groups)
        ones, zeros = writer.repeated(1.0, groups), writer.repeated(0.0, groups)
        x = writer.node("InstanceNormalization", grouped, ones, zeros, epsilon=EPSILON)
        x = writer.shaped(x, *operator.shape)
        for part, op in (("scale", "Mul"), ("center", "Add")):
            if operator[part]:
                sizes = writer.integers(channels, *[1] * len(around))
                x = writer.node(op, x, writer.node("Reshape", writer.weight(channels), sizes))
        return x

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        groups = operator["groups"]
        return self.keras_layer(operator, values[0], groups=groups, axis=values[0].at(0))


class LocalResponseNormalization(OperatorType):
    """Division of each value by a mean of squares over ``size`` neighbouring channels."""

    attributes = {"size": REQUIRED}
    captured = {"onnx.LRN": lambda call: {"size": call.attribute("size")}}
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(inputs[0], 0, (2 * attributes["size"] + 3) * math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.LocalResponseNorm(operator["size"])

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("LRN", values[0], size=operator["size"])


class Normalization(OperatorType):
    """Mean and variance per channel and, as in Keras, one counter; no weights when they are ``fixed`` constants."""

    attributes = {"fixed": False}

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        weights = 0 if attributes["fixed"] else 2 * inputs[0][channel_axis(inputs[0])] + 1
        return Effect(inputs[0], weights, 2 * math.prod(inputs[0]))

    def statistics(self, operator: Operator) -> int:
        return operator.weights

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        if operator["fixed"]:
            return lambda x: x.mul(1.0)
        return torch_parts.Normalization(per_channel(operator.shape), device)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        if operator["fixed"]:
            return rescaled(writer, values[0])
        mean, deviation = (writer.weight(*per_channel(operator.shape), trained=False) for _ in range(2))
        return writer.node("Div", writer.node("Sub", values[0], mean), deviation)

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        layer = keras.layers.Normalization(axis=-1, mean=0.0, variance=1.0, name=layer_name(operator.name))
        return by_layer(layer, operator.shape, values)


class LayerScale(OperatorType):
    """Product with one trained factor per channel (Touvron et al. 2021)."""

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        return Effect(inputs[0], math.prod(per_channel(inputs[0])), math.prod(inputs[0]))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return torch_parts.LayerScale(per_channel(operator.shape), device)

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("Mul", values[0], writer.weight(*per_channel(operator.shape)))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        class LayerScale(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
            """Keras has it only inside one of its applications."""

            def build(self, shape: Shape) -> None:
                self.gamma = self.add_weight(shape=(shape[-1],), initializer=weights, name="gamma")

            def call(self, x: Any) -> Any:
                return x * self.gamma

        return by_layer(LayerScale(name=layer_name(operator.name)), operator.shape, values)
