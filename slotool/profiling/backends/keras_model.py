"""An operator graph as a Keras functional model, images channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.errors import GraphError
from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.indices import Indices, is_trained
from slotool.graphs.operators import Shape, pair, zero_padding
from slotool.profiling.backends.keras_arithmetic import ARITHMETIC
from slotool.profiling.backends.keras_moving import MOVING
from slotool.profiling.backends.keras_values import Function, Initializer, Value, layer_name, usual_order

if TYPE_CHECKING:
    import keras

FUNCTIONS: dict[str, Function] = {**ARITHMETIC, **MOVING}
Build = Callable[[Operator, Sequence[Shape], Initializer], Any]


def functional_model(graph: OperatorGraph, weights: Initializer) -> keras.Model:
    """The model whose layers are named as the operators; ``weights(shape, dtype)`` fills kernels and biases.

    Each input is [batch, *shape], but images, [batch, height, width, channels], and so is an output that is one.
    Transpositions only change how values are read; what needs an image finds it channels last. ``Flatten`` keeps the
    order in which its values lie. Raises ``GraphError`` for an operator that cannot be built.
    """
    import keras

    values: dict[str, Value] = {}
    shapes = {operator.name: operator.shape for operator in graph.operators}
    indices = Indices(graph)
    for operator in graph.operators:
        name = operator.name
        if operator.op == "InputLayer":
            order = usual_order(len(operator.shape))
            shape = tuple(operator.shape[axis] for axis in order)
            values[name] = Value(keras.Input(shape, dtype=operator.attributes.get("dtype")), order)
        elif operator.op == "Constant":
            values[name] = _constant(operator, indices, weights)
        elif name in indices.unsure:
            raise GraphError(f"operator {name!r}: {operator.op} of computed places cannot be built in Keras")
        else:
            inputs = [shapes[source] for source in operator.inputs]
            values[name] = _built(operator, inputs, [values[source] for source in operator.inputs], weights)
    made = [values[operator.name].tensor for operator in graph.inputs]
    return keras.Model(made[0] if len(made) == 1 else made, values[graph.operators[-1].name].for_layer())


def channels_last(values: Any) -> Any:
    """An array of images, [batch, channels, height, width], with channels last; any other as it is."""
    return np.ascontiguousarray(np.moveaxis(values, 1, -1)) if values.ndim == 4 else values


def _constant(operator: Operator, indices: Indices, weights: Initializer) -> Value:
    import keras

    shape = (1, *operator.shape)
    if is_trained(operator):
        return Value.as_stated(weights(shape), len(operator.shape))
    filled = indices.filled(operator, np.random.default_rng(0), 1)
    return Value.as_stated(keras.ops.convert_to_tensor(filled), len(operator.shape))


def _built(operator: Operator, inputs: Sequence[Shape], values: Sequence[Value], weights: Initializer) -> Value:
    if operator.op not in {**FUNCTIONS, **_LAYERS} or not operator.known:
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in Keras")
    try:
        if operator.op in FUNCTIONS:
            return _activated(operator, FUNCTIONS[operator.op](operator, inputs, values, weights))
        layer = _LAYERS[operator.op](operator, inputs, weights)
        tensors = [value.for_layer() for value in values]
        return Value(layer(tensors[0] if len(tensors) == 1 else tensors), usual_order(len(operator.shape)))
    except (AttributeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:160]
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in Keras ({words})") from error


def _activated(operator: Operator, value: Value) -> Value:
    """With the function behind an operator that has none of its own in Keras."""
    import keras

    name = operator.attributes.get("activation")
    if name is None or operator.op in ("Dense", "Activation", "ReLU"):
        return value
    return Value(keras.layers.Activation(name)(value.tensor), value.order)


def _conv2d(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    attributes = operator.attributes
    options = {**_window(operator), **_trained(operator, weights)}
    options["dilation_rate"] = pair(attributes.get("dilation", 1))
    kernel, multiplier = pair(attributes["kernel"]), attributes.get("multiplier", 1)
    if operator.op == "DepthwiseConv2D":
        layer = keras.layers.DepthwiseConv2D(
            kernel, depth_multiplier=multiplier, depthwise_initializer=weights, **options
        )
    elif operator.op == "SeparableConv2D":
        both = {"depthwise_initializer": weights, "pointwise_initializer": weights}
        layer = keras.layers.SeparableConv2D(
            attributes["filters"], kernel, depth_multiplier=multiplier, **both, **options
        )
    else:
        groups = attributes.get("groups", 1)
        layer = keras.layers.Conv2D(attributes["filters"], kernel, groups=groups, kernel_initializer=weights, **options)
    return _after_padding(operator, layer, 0.0)


def _pool2d(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    layer = getattr(keras.layers, operator.op)(pair(operator.attributes["kernel"]), **_window(operator))
    return _after_padding(operator, layer, float("-inf") if operator.op == "MaxPooling2D" else 0.0)


def _global_pool(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    keepdims = operator.attributes.get("keepdims", False)
    return getattr(keras.layers, operator.op)(keepdims=keepdims, name=layer_name(operator))


def _zero_pad(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return keras.layers.ZeroPadding2D(((top, bottom), (left, right)), name=layer_name(operator))


def _crop(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    top, bottom, left, right = zero_padding(operator.attributes["cropping"])
    return keras.layers.Cropping2D(((top, bottom), (left, right)), name=layer_name(operator))


def _layer_scale(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    class LayerScale(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
        """Keras has it only inside one of its applications."""

        def build(self, shape: Shape) -> None:
            self.gamma = self.add_weight(shape=(shape[-1],), initializer=weights, name="gamma")

        def call(self, x: Any) -> Any:
            return x * self.gamma

    return LayerScale(name=layer_name(operator))


def _plain(**options: Any) -> Build:
    """A layer of the operator's own name, always with these options."""

    def build(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
        import keras

        return getattr(keras.layers, operator.op)(**options, name=layer_name(operator))

    return build


_LAYERS: dict[str, Build] = {
    "Conv2D": _conv2d,
    "DepthwiseConv2D": _conv2d,
    "SeparableConv2D": _conv2d,
    "MaxPooling2D": _pool2d,
    "AveragePooling2D": _pool2d,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "ZeroPadding2D": _zero_pad,
    "Cropping2D": _crop,
    "Flatten": _plain(),
    "Normalization": _plain(axis=-1, mean=0.0, variance=1.0),
    "LayerScale": _layer_scale,
}


def _trained(operator: Operator, weights: Initializer) -> dict[str, Any]:
    return {
        "activation": operator.attributes.get("activation"),
        "use_bias": operator.attributes.get("bias", True),
        "bias_initializer": weights,
        "name": layer_name(operator),
    }


def _window(operator: Operator) -> dict[str, Any]:
    attributes = operator.attributes
    default = attributes["kernel"] if operator.op.endswith("Pooling2D") else 1
    padding = attributes.get("padding", "valid")
    return {
        "strides": pair(attributes.get("stride", default)),
        "padding": padding if isinstance(padding, str) else "valid",
        "name": layer_name(operator),
    }


def _after_padding(operator: Operator, layer: Callable[[Any], Any], value: float) -> Callable[[Any], Any]:
    """The layer, behind the padding Keras has no option for: a number of rows and columns on each side."""
    import keras

    padding = operator.attributes.get("padding", "valid")
    if isinstance(padding, str):
        return layer
    rows, columns = pair(padding)
    around = ((0, 0), (rows, rows), (columns, columns), (0, 0))
    return lambda x: layer(keras.ops.pad(x, around, constant_values=value))
