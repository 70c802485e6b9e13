"""Operators that move a window over their input: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, OperatorType, Shape


def pair(value: Any) -> tuple[int, int]:
    """``3`` or ``(3, 5)`` as (height, width)."""
    if isinstance(value, int):
        return value, value
    height, width = value
    return int(height), int(width)


def window_padding(attributes: Attributes, inputs: Shape) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) that a convolution or pooling adds; 'same' puts the odd one at the end, as Keras."""
    padding = attributes.get("padding", "valid")
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        height, width = pair(padding)
        return height, height, width, width
    kernel, stride = _window(attributes)
    around: list[int] = []
    for size, length, step in zip(inputs[1:], kernel, stride, strict=True):
        total = max((-(-size // step) - 1) * step + length - size, 0)
        around += [total // 2, total - total // 2]
    top, bottom, left, right = around
    return top, bottom, left, right


def zero_padding(value: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of ZeroPadding2D and Cropping2D, whose attribute is as 1, (1, 2) or (0, 1, 0, 1)."""
    if isinstance(value, int):
        return value, value, value, value
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    top, bottom, left, right = value
    return top, bottom, left, right


def _conv2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, filters, groups = inputs[0][0], attributes["filters"], attributes.get("groups", 1)
    if channels % groups or filters % groups:
        raise GraphError(f"{channels} channels and {filters} filters cannot form {groups} groups")
    height, width = _output_size(attributes, inputs[0])
    weights = math.prod(pair(attributes["kernel"])) * (channels // groups) * filters
    bias = filters if attributes.get("bias", True) else 0
    return Effect((filters, height, width), weights + bias, 2 * weights * height * width)


def _depthwise(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    return _conv2d({**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}, inputs)


def _separable(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    spatial = _depthwise({**attributes, "bias": False}, inputs)
    bias = attributes.get("bias", True)
    mixing = _conv2d({"filters": attributes["filters"], "kernel": 1, "bias": bias}, [spatial.shape])
    return Effect(mixing.shape, spatial.weights + mixing.weights, spatial.flops + mixing.flops)


def _pool2d(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    height, width = _output_size(attributes, inputs[0])
    return Effect((channels, height, width), 0, channels * height * width * math.prod(pair(attributes["kernel"])))


def _global_pool(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, _, _ = inputs[0]
    return Effect((channels, 1, 1) if attributes.get("keepdims") else (channels,), 0, math.prod(inputs[0]))


def _zero_pad(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["padding"])
    return Effect((channels, height + top + bottom, width + left + right))


def _crop(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["cropping"])
    return Effect((channels, height - top - bottom, width - left - right))


def settle_window(kind: OperatorType, attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    """Bring stride and padding to their canonical form, which depends on the kernel and the size of the input."""
    if "kernel" not in attributes:
        return
    if len(inputs[0]) != 3:
        raise GraphError(f"a window needs an image of (channels, height, width), not {list(inputs[0])}")
    if kind.attributes["stride"] is None:
        # A pooling's default stride is its kernel; said always, so that readers need not know.
        attributes.setdefault("stride", attributes["kernel"])
    if "padding" in attributes:
        around = window_padding(attributes, inputs[0])
        if not any(around):
            del attributes["padding"]
        elif around == window_padding({**attributes, "padding": "same"}, inputs[0]):
            attributes["padding"] = "same"


def _window(attributes: Attributes) -> tuple[tuple[int, int], tuple[int, int]]:
    """How far the dilated kernel reaches, and the stride, each as (height, width)."""
    kernel, dilation = pair(attributes["kernel"]), pair(attributes.get("dilation", 1))
    reach = (kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1
    return reach, pair(attributes.get("stride", 1))


def _output_size(attributes: Attributes, inputs: Shape) -> tuple[int, int]:
    _, height, width = inputs
    kernel, stride = _window(attributes)
    top, bottom, left, right = window_padding(attributes, inputs)
    return (height + top + bottom - kernel[0]) // stride[0] + 1, (width + left + right - kernel[1]) // stride[1] + 1


_WINDOW = {"kernel": REQUIRED, "stride": 1, "padding": "valid", "dilation": 1}
_TRAINED = {"bias": True, "activation": None}
_POOL = {"kernel": REQUIRED, "stride": None, "padding": "valid"}  # None: as the kernel

WINDOWS: dict[str, OperatorType] = {
    "Conv2D": OperatorType(_conv2d, {"filters": REQUIRED, **_WINDOW, "groups": 1, **_TRAINED}),
    "DepthwiseConv2D": OperatorType(_depthwise, {**_WINDOW, "multiplier": 1, **_TRAINED}),
    "SeparableConv2D": OperatorType(_separable, {"filters": REQUIRED, **_WINDOW, "multiplier": 1, **_TRAINED}),
    "MaxPooling2D": OperatorType(_pool2d, _POOL),
    "AveragePooling2D": OperatorType(_pool2d, _POOL),
    "GlobalAveragePooling2D": OperatorType(_global_pool, {"keepdims": False}),
    "GlobalMaxPooling2D": OperatorType(_global_pool, {"keepdims": False}),
    "ZeroPadding2D": OperatorType(_zero_pad, {"padding": REQUIRED}),
    "Cropping2D": OperatorType(_crop, {"cropping": REQUIRED}),
}
