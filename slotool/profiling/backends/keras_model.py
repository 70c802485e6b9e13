"""An operator graph as a Keras functional model, images channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.operators import Shape, pair, zero_padding

if TYPE_CHECKING:
    import keras

# torch's epsilon, so that both backends compute the same.
EPSILON = 1e-5
Initializer = Callable[..., Any]
Build = Callable[[Operator, Sequence[Shape], Initializer], Any]


def functional_model(graph: OperatorGraph, weights: Initializer) -> keras.Model:
    """The model whose layers are named as the operators; ``weights(shape, dtype)`` fills kernels and biases.

    Input [batch, features], [batch, steps, features] or [batch, height, width, channels]. ``Flatten`` and ``Reshape``
    keep that order of values. Raises ``GraphError`` for an operator that cannot be built.
    """
    import keras

    tensors: dict[str, Any] = {}
    shapes = {operator.name: operator.shape for operator in graph.operators}
    for operator in graph.operators:
        if operator.op == "InputLayer":
            if tensors or "dtype" in operator.attributes:
                what = "several inputs" if tensors else f"inputs of {operator.attributes['dtype']}"
                raise GraphError(f"operator {operator.name!r}: a network of {what} cannot be built in Keras")
            tensors[operator.name] = keras.Input(channels_last(operator.shape))
            continue
        layer = _build(operator, [shapes[name] for name in operator.inputs], weights)
        inputs = [tensors[name] for name in operator.inputs]
        tensors[operator.name] = layer(inputs[0] if len(inputs) == 1 else inputs)
    return keras.Model(tensors[graph.operators[0].name], tensors[graph.operators[-1].name])


def channels_last(shape: Shape) -> Shape:
    """(channels, height, width) as (height, width, channels); any other shape as it is."""
    return (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape


def _build(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    if operator.op not in _LAYERS:
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in Keras")
    try:
        return _LAYERS[operator.op](operator, inputs, weights)
    except (TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:160]
        raise GraphError(f"operator {operator.name!r}: {operator.op} cannot be built in Keras ({words})") from error


def _dense(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    if len(inputs[0]) == 3:
        raise GraphError(f"operator {operator.name!r}: Dense over an image cannot be built in Keras; flatten it first")
    return keras.layers.Dense(operator.attributes["units"], kernel_initializer=weights, **_trained(operator, weights))


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
    return getattr(keras.layers, operator.op)(keepdims=keepdims, name=_name(operator))


def _zero_pad(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return keras.layers.ZeroPadding2D(((top, bottom), (left, right)), name=_name(operator))


def _crop(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    top, bottom, left, right = zero_padding(operator.attributes["cropping"])
    return keras.layers.Cropping2D(((top, bottom), (left, right)), name=_name(operator))


def _reshape(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    return keras.layers.Reshape(channels_last(operator.shape), name=_name(operator))


def _norm(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    parts = {part: operator.attributes.get(part, True) for part in ("scale", "center")}
    return getattr(keras.layers, operator.op)(axis=-1, epsilon=EPSILON, **parts, name=_name(operator))


def _layer_scale(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    class LayerScale(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
        """Keras has it only inside one of its applications."""

        def build(self, shape: Shape) -> None:
            self.gamma = self.add_weight(shape=(shape[-1],), initializer=weights, name="gamma")

        def call(self, x: Any) -> Any:
            return x * self.gamma

    return LayerScale(name=_name(operator))


def _activation(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    return keras.layers.Activation(operator.attributes["activation"], name=_name(operator))


def _combine(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
    import keras

    # Keras merges two or more.
    kind = operator.op if len(inputs) > 1 else "Identity"
    return getattr(keras.layers, kind)(name=_name(operator))


def _plain(**options: Any) -> Build:
    """A layer of the operator's own name, always with these options."""

    def build(operator: Operator, inputs: Sequence[Shape], weights: Initializer) -> Any:
        import keras

        return getattr(keras.layers, operator.op)(**options, name=_name(operator))

    return build


_LAYERS: dict[str, Build] = {
    "Dense": _dense,
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
    "Reshape": _reshape,
    "BatchNormalization": _norm,
    "LayerNormalization": _norm,
    "Normalization": _plain(axis=-1, mean=0.0, variance=1.0),
    "LayerScale": _layer_scale,
    "Rescaling": _plain(scale=1 / 255),
    "ReLU": _plain(),
    "Softmax": _plain(axis=-1),
    "Activation": _activation,
    "Add": _combine,
    "Multiply": _combine,
    "Concatenate": _combine,
}


def _name(operator: Operator) -> str:
    return operator.name.replace("/", "_")


def _trained(operator: Operator, weights: Initializer) -> dict[str, Any]:
    return {
        "activation": operator.attributes.get("activation"),
        "use_bias": operator.attributes.get("bias", True),
        "bias_initializer": weights,
        "name": _name(operator),
    }


def _window(operator: Operator) -> dict[str, Any]:
    attributes = operator.attributes
    default = attributes["kernel"] if operator.op.endswith("Pooling2D") else 1
    padding = attributes.get("padding", "valid")
    return {
        "strides": pair(attributes.get("stride", default)),
        "padding": padding if isinstance(padding, str) else "valid",
        "name": _name(operator),
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
