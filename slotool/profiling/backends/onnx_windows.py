"""Convolutions, pooling and resizing in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slotool.errors import GraphError
from slotool.graphs import Operator
from slotool.graphs.operators import Shape, padding_around, sides, zero_padding
from slotool.profiling.backends.onnx_writer import Layer, Writer

_MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75},
}


def _convolution(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, channels, rank = operator.attributes, inputs[0][0], len(inputs[0]) - 1
    if operator.op == "DepthwiseConv2D":
        attributes = {**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}
    around = padding_around(attributes, inputs[0])
    kernel, groups, filters = sides(attributes["kernel"], rank), attributes.get("groups", 1), attributes["filters"]
    weight = writer.weight(filters, channels // groups, *kernel)
    bias = [writer.weight(filters)] if attributes.get("bias", True) else []
    return writer.node(
        "Conv",
        values[0],
        weight,
        *bias,
        kernel_shape=kernel,
        strides=sides(attributes.get("stride", 1), rank),
        dilations=sides(attributes.get("dilation", 1), rank),
        pads=[*around[::2], *around[1::2]],
        group=groups,
    )


def _transposed(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, channels, rank = operator.attributes, inputs[0][0], len(inputs[0]) - 1
    kernel, groups, filters = sides(attributes["kernel"], rank), attributes.get("groups", 1), attributes["filters"]
    weight = writer.weight(channels, filters // groups, *kernel)
    bias = [writer.weight(filters)] if attributes.get("bias", True) else []
    return writer.node(
        "ConvTranspose",
        values[0],
        weight,
        *bias,
        kernel_shape=kernel,
        strides=sides(attributes.get("stride", 1), rank),
        dilations=sides(attributes.get("dilation", 1), rank),
        pads=[*sides(attributes.get("padding", 0), rank)] * 2,
        output_padding=sides(attributes.get("output_padding", 0), rank),
        group=groups,
    )


def _separable(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, channels = operator.attributes, inputs[0][0]
    middle = channels * attributes.get("multiplier", 1)
    spatial = replace(operator, attributes={**attributes, "filters": middle, "groups": channels, "bias": False})
    value = _convolution(writer, spatial, inputs, values)
    mixing = {"filters": attributes["filters"], "kernel": 1, "bias": attributes.get("bias", True)}
    _, height, width = operator.shape
    return _convolution(writer, replace(operator, attributes=mixing), [(middle, height, width)], [value])


def _pool(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    attributes, rank = operator.attributes, len(inputs[0]) - 1
    options: dict[str, Any] = {"ceil_mode": 1} if attributes.get("ceil") else {}
    around, highest = padding_around(attributes, inputs[0]), operator.op.startswith("Max")
    if not highest:
        # Unless it is said, zeros around an image are part of it, as of torch's and Keras' padding layer.
        options["count_include_pad"] = int(attributes.get("count_padding", True))
    elif "dilation" in attributes:
        options["dilations"] = sides(attributes["dilation"], rank)
    return writer.node(
        "MaxPool" if highest else "AveragePool",
        values[0],
        kernel_shape=sides(attributes["kernel"], rank),
        strides=sides(attributes.get("stride", attributes["kernel"]), rank),
        pads=[*around[::2], *around[1::2]],
        **options,
    )


def _global_pool(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    kind = "GlobalMaxPool" if operator.op == "GlobalMaxPooling2D" else "GlobalAveragePool"
    pooled = writer.node(kind, values[0])
    return pooled if operator.attributes.get("keepdims") else writer.node("Flatten", pooled, axis=1)


def _adaptive_pool(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    size = operator.attributes["size"]
    last = inputs[0][-len(size) :]
    if any(length % places for length, places in zip(last, size, strict=True)):
        raise GraphError(
            f"operator {operator.name!r}: AdaptivePooling in windows of several sizes cannot be built in ONNX"
        )
    kernel = [length // places for length, places in zip(last, size, strict=True)]
    kind = "MaxPool" if operator.attributes.get("function") == "max" else "AveragePool"
    if len(inputs[0]) == len(size) + 1:
        return writer.node(kind, values[0], kernel_shape=kernel, strides=kernel)
    flat = writer.shaped(values[0], -1, *last)
    return writer.shaped(writer.node(kind, flat, kernel_shape=kernel, strides=kernel), *operator.shape)


def _resize(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    mode = operator.attributes.get("mode", "nearest")
    if mode not in _MODES:
        raise GraphError(f"operator {operator.name!r}: Resize by {mode} cannot be built in ONNX")
    sizes = writer.integers(1 if values[0] in writer.free else writer.batch_size, *operator.shape)
    return writer.node("Resize", values[0], "", "", sizes, **_MODES[mode])


def _grid_sample(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    mode = operator.attributes.get("mode", "linear")
    return writer.node("GridSample", *writer.of_one_batch(values, inputs), mode=mode, align_corners=0)


def _pixel_shuffle(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    return writer.node("DepthToSpace", values[0], blocksize=operator.attributes["factor"], mode="CRD")


def _pixel_unshuffle(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    (channels, height, width), factor = inputs[0], operator.attributes["factor"]
    apart = writer.shaped(values[0], channels, height // factor, factor, width // factor, factor)
    return writer.shaped(writer.turned(apart, [0, 2, 4, 1, 3]), *operator.shape)


def _zero_pad(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return writer.node("Pad", values[0], writer.integers(0, 0, top, left, 0, 0, bottom, right))


def _crop(writer: Writer, operator: Operator, inputs: Sequence[Shape], values: Sequence[str]) -> str:
    top, _, left, _ = zero_padding(operator.attributes["cropping"])
    _, height, width = operator.shape
    starts, ends = writer.integers(top, left), writer.integers(top + height, left + width)
    return writer.node("Slice", values[0], starts, ends, writer.integers(2, 3))


WINDOWS: dict[str, Layer] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv2D"), _convolution),
    "SeparableConv2D": _separable,
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _transposed),
    **{f"{kind}Pooling{rank}D": _pool for kind in ("Max", "Average") for rank in (1, 2, 3)},
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "AdaptivePooling": _adaptive_pool,
    "Resize": _resize,
    "GridSample": _grid_sample,
    "PixelShuffle": _pixel_shuffle,
    "PixelUnshuffle": _pixel_unshuffle,
    "ZeroPadding2D": _zero_pad,
    "Cropping2D": _crop,
}
