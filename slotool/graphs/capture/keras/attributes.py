"""Keras layers that are one operator of ours each: its attributes, as the layer has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Attributes = Mapping[str, Any]
# What is there for training only, or passes its input on.
DROPPED = (
    *("RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast", "RandomElasticTransform"),
    *("RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert"),
    *("RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
    *("RandomShear", "RandomTranslation", "RandomZoom", "AugMix", "CutMix", "MixUp", "RandAugment"),
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "SpatialDropout1D",
    "SpatialDropout2D",
)


def _activation(layer: Any) -> str | None:
    """The name that Keras gives an activation, None for none."""
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__)
    return None if name == "linear" else name


def _trained(layer: Any) -> dict[str, Any]:
    return {"bias": bool(layer.use_bias), "activation": _activation(layer)}


def _window(layer: Any) -> dict[str, Any]:
    return {
        "kernel": tuple(layer.kernel_size),
        "stride": tuple(layer.strides),
        "padding": layer.padding,
        "dilation": tuple(layer.dilation_rate),
        **_trained(layer),
    }


def _pool(layer: Any) -> Attributes:
    return {"kernel": tuple(layer.pool_size), "stride": tuple(layer.strides), "padding": layer.padding}


def _around(value: Any) -> tuple[int, int, int, int]:
    (top, bottom), (left, right) = value
    return top, bottom, left, right


def _norm(layer: Any) -> Attributes:
    return {"scale": bool(layer.scale), "center": bool(layer.center)}


def _relu(layer: Any) -> Attributes | None:
    if layer.threshold or (layer.max_value not in (None, 6)):
        return None
    if layer.negative_slope:
        return {"activation": "leaky_relu"} if layer.max_value is None else None
    return {"activation": "relu" if layer.max_value is None else "relu6"}


def _no_attributes(_: Any) -> Attributes:
    return {}


ALONG_AN_AXIS = (
    *("BatchNormalization", "GroupNormalization", "LayerNormalization", "LayerScale", "Concatenate", "Softmax"),
    "Normalization",
)
ACTIVATION_LAYERS = ("Activation", "ReLU", "LeakyReLU", "ELU")
LAYERS: dict[str, Callable[[Any], Attributes | None]] = {
    "Dense": lambda layer: {"units": layer.units, **_trained(layer)},
    "Conv2D": lambda layer: {"filters": layer.filters, "groups": layer.groups, **_window(layer)},
    "DepthwiseConv2D": lambda layer: {"multiplier": layer.depth_multiplier, **_window(layer)},
    "SeparableConv2D": lambda layer: {
        "filters": layer.filters,
        "multiplier": layer.depth_multiplier,
        **_window(layer),
    },
    "MaxPooling2D": _pool,
    "AveragePooling2D": _pool,
    "GlobalAveragePooling2D": lambda layer: {"keepdims": bool(layer.keepdims)},
    "GlobalMaxPooling2D": lambda layer: {"keepdims": bool(layer.keepdims)},
    "ZeroPadding2D": lambda layer: {"padding": _around(layer.padding)},
    "Cropping2D": lambda layer: {"cropping": _around(layer.cropping)},
    "Flatten": _no_attributes,
    "Embedding": lambda layer: {"vocabulary": layer.input_dim, "units": layer.output_dim},
    "GroupNormalization": lambda layer: {"groups": layer.groups, **_norm(layer)},
    "BatchNormalization": _norm,
    "LayerNormalization": _norm,
    "Normalization": lambda layer: {"fixed": layer.input_mean is not None},
    "LayerScale": _no_attributes,
    "Rescaling": _no_attributes,
    "Softmax": _no_attributes,
    "Add": _no_attributes,
    "Multiply": _no_attributes,
    "Concatenate": _no_attributes,
    **dict.fromkeys(DROPPED, _no_attributes),
    "Activation": lambda layer: {"activation": _activation(layer)},
    "ReLU": _relu,
    "LeakyReLU": lambda _: {"activation": "leaky_relu"},
    "ELU": lambda _: {"activation": "elu"},
}
