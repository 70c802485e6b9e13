"""ATen calls, as torch.export writes them, in terms of our operators: one entry per call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from slotool.graphs.operators import Shape, per_channel, stretches_as

# What a call is: an operator and its attributes, or SAME when its output is its input, or None when we do not know.
Translated = tuple[str, Mapping[str, Any]] | None
SAME: Translated = ("", {})


class Layout(Enum):
    """How the axes of a call's tensors lie: batch first and channels second, images with their channels last, or the
    batch elsewhere, where an axis by its number says nothing."""

    CHANNELS_FIRST = 1
    CHANNELS_LAST = 2
    ELSEWHERE = 3


@dataclass(frozen=True)
class AtenCall:
    """One ATen call. ``arguments`` by schema name, where a tensor is its whole shape; shapes without the batch.

    ``inputs`` are the shapes of the tensors that depend on the network's input, in order; of images with their channels
    last too they are (channels, height, width).
    """

    arguments: Mapping[str, Any]
    inputs: tuple[Shape, ...]
    shape: Shape
    layout: Layout = Layout.CHANNELS_FIRST

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


def translate(name: str, call: AtenCall) -> Translated:
    """The operator that the ATen call ``name`` (without overload) is; in-place variants are the same operator."""
    if name in ACTIVATIONS:
        return "Activation", {"activation": ACTIVATIONS[name]}
    calls = {Layout.CHANNELS_LAST: LAST_CALLS, Layout.ELSEWHERE: ANYWHERE_CALLS}.get(call.layout, CALLS)
    known = calls.get(name) or calls.get(name.removesuffix("_"))
    return None if known is None else known(call)


def _linear(call: AtenCall) -> Translated:
    return "Dense", {"units": call["weight"][0], "bias": call["bias"] is not None}


def _product(data: str, weight: str, bias: str = "") -> Callable[[AtenCall], Translated]:
    """A product of ``data`` with a matrix of weights [features, units], plus a ``bias`` where the call has that."""

    def product(call: AtenCall) -> Translated:
        matrix, shift = call[weight], call[bias] if bias else None
        if len(call.inputs) != 1 or not isinstance(matrix, tuple) or len(matrix) != 2 or call.shape[-1:] != matrix[1:]:
            return None
        if len(call[data] or ()) < 2 or (shift is not None and math.prod(shift) != matrix[1]):
            return None
        return "Dense", {"units": matrix[1], "bias": shift is not None}

    return product


def _pixelwise(call: AtenCall) -> Translated:
    """A linear layer on the channels of an image is a convolution of one pixel."""
    return "Conv2D", {"filters": call["weight"][0], "kernel": 1, "bias": call["bias"] is not None}


def _conv2d(call: AtenCall) -> Translated:
    filters, _, *kernel = call["weight"]
    channels, groups = call.inputs[0][0], call["groups"]
    attributes = {
        "kernel": kernel,
        "stride": _both(call["stride"]),
        "padding": call["padding"] if isinstance(call["padding"], str) else _both(call["padding"]),
        "dilation": _both(call["dilation"]),
        "bias": call["bias"] is not None,
    }
    if 1 < groups == channels:
        return "DepthwiseConv2D", {**attributes, "multiplier": filters // channels}
    return "Conv2D", {**attributes, "filters": filters, "groups": groups}


def _batch_norm(call: AtenCall) -> Translated:
    return "BatchNormalization", {"scale": call["weight"] is not None, "center": call["bias"] is not None}


def _layer_norm(call: AtenCall) -> Translated:
    if len(call["normalized_shape"]) != 1 or len(call.inputs[0]) == 3:
        return None
    return "LayerNormalization", {"scale": call["weight"] is not None, "center": call["bias"] is not None}


def _layer_norm_last(call: AtenCall) -> Translated:
    if len(call["normalized_shape"]) != 1:
        return None
    return "LayerNormalization", {"scale": call["weight"] is not None, "center": call["bias"] is not None}


def _pool2d(op: str) -> Callable[[AtenCall], Translated]:
    def pool(call: AtenCall) -> Translated:
        kernel = _both(call["kernel_size"])
        if call["dilation"] and _both(call["dilation"]) != [1, 1]:
            return None
        stride = _both(call["stride"]) if call["stride"] else kernel
        return op, {"kernel": kernel, "stride": stride, "padding": _both(call["padding"])}

    return pool


def _adaptive_pool2d(kind: str) -> Callable[[AtenCall], Translated]:
    def pool(call: AtenCall) -> Translated:
        _, height, width = call.inputs[0]
        _, rows, columns = call.shape
        if (rows, columns) == (height, width):
            return SAME
        if (rows, columns) == (1, 1):
            return f"Global{kind}Pooling2D", {"keepdims": True}
        if height % rows or width % columns:
            return None
        return f"{kind}Pooling2D", {"kernel": [height // rows, width // columns]}

    return pool


def _reduction(kind: str) -> Callable[[AtenCall], Translated]:
    def reduction(call: AtenCall) -> Translated:
        axes = sorted(axis % 4 for axis in call["dim"] or ()) if len(call.inputs[0]) == 3 else []
        wanted = [1, 2] if call.layout is Layout.CHANNELS_LAST else [2, 3]
        # Of an image with its channels last (1, 1, channels) would be left, which is not how ours leaves it.
        if axes != wanted or (call["keepdim"] and call.layout is Layout.CHANNELS_LAST):
            return None
        return f"Global{kind}Pooling2D", {"keepdims": bool(call["keepdim"])}

    return reduction


def _reshape(call: AtenCall) -> Translated:
    if call.shape == call.inputs[0]:
        return SAME
    if math.prod(call.shape) != math.prod(call.inputs[0]):
        return None
    return ("Flatten", {}) if len(call.shape) == 1 else ("Reshape", {"shape": call.shape})


def _combine(op: str) -> Callable[[AtenCall], Translated]:
    def combine(call: AtenCall) -> Translated:
        if len(call.inputs) == 2:
            return op, {}
        # A number or a constant tensor of one value; anything else has weights that we cannot place.
        other = call["other"]
        return ("Rescaling", {}) if isinstance(other, int | float) or math.prod(other or (2,)) == 1 else None

    return combine


def _multiply(call: AtenCall) -> Translated:
    """By a parameter of one number per channel it is a LayerScale; which of the two is the parameter is all one."""
    if len(call.inputs) == 1 and call.shape == call.inputs[0]:
        factors = [call[side] for side in ("self", "other") if isinstance(call[side], tuple)]
        if call.layout is Layout.CHANNELS_LAST:
            factors = [(factor[-1], 1, 1) for factor in factors if factor and math.prod(factor[:-1]) == 1]
        if any(stretches_as(factor, per_channel(call.shape)) for factor in factors):
            return "LayerScale", {}
    return _combine("Multiply")(call)


def _rescale(call: AtenCall) -> Translated:
    return ("Rescaling", {}) if len(call.inputs) == 1 and isinstance(call["other"], int | float) else None


def _concatenate(call: AtenCall) -> Translated:
    rank = len(call.shape) + 1
    wanted = 1 if rank in (2, 4) and call.layout is Layout.CHANNELS_FIRST else rank - 1
    return ("Concatenate", {}) if (call["dim"] or 0) % rank == wanted else None


def _softmax(call: AtenCall) -> Translated:
    rank = len(call.shape) + 1
    wanted = 1 if rank == 4 and call.layout is Layout.CHANNELS_FIRST else rank - 1
    return ("Softmax", {}) if call["dim"] % rank == wanted else None


def _zero_pad(call: AtenCall) -> Translated:
    around = [*call["pad"], 0, 0, 0, 0][:4]
    if len(call.shape) != 3 or len(call["pad"]) > 4 or call["value"] or call["mode"] not in (None, "constant"):
        return None
    left, right, top, bottom = around
    return ("ZeroPadding2D", {"padding": [top, bottom, left, right]}) if any(around) else SAME


def _hardtanh(call: AtenCall) -> Translated:
    bounds = call["min_val"], call["max_val"]
    return ("Activation", {"activation": "relu6"}) if bounds == (0, 6) else None


def _same(call: AtenCall) -> Translated:
    return SAME if len(call.inputs) == 1 and call.shape == call.inputs[0] else None


def _both(value: Any) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value or [0])
    return sizes * 2 if len(sizes) == 1 else sizes


ACTIVATIONS = {
    name + suffix: activation
    for suffix in ("", "_")
    for name, activation in {
        "relu": "relu",
        "relu6": "relu6",
        "leaky_relu": "leaky_relu",
        "elu": "elu",
        "selu": "selu",
        "gelu": "gelu",
        "silu": "silu",
        "mish": "mish",
        "softplus": "softplus",
        "sigmoid": "sigmoid",
        "tanh": "tanh",
        "hardsigmoid": "hard_sigmoid",
        "hardswish": "hard_silu",
    }.items()
}

CALLS: dict[str, Callable[[AtenCall], Translated]] = {
    "linear": _linear,
    "matmul": _product("self", "other"),
    "mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", "self"),
    "conv2d": _conv2d,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "max_pool2d": _pool2d("MaxPooling2D"),
    "avg_pool2d": _pool2d("AveragePooling2D"),
    "adaptive_avg_pool2d": _adaptive_pool2d("Average"),
    "adaptive_max_pool2d": _adaptive_pool2d("Max"),
    "mean": _reduction("Average"),
    "amax": _reduction("Max"),
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "unflatten": _reshape,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "add": _combine("Add"),
    "mul": _multiply,
    "sub": _rescale,
    "div": _rescale,
    "cat": _concatenate,
    "softmax": _softmax,
    "constant_pad_nd": _zero_pad,
    "pad": _zero_pad,
    "hardtanh": _hardtanh,
    "dropout": _same,
    "feature_dropout": _same,
    "alpha_dropout": _same,
    "feature_alpha_dropout": _same,
    "contiguous": _same,
    "clone": _same,
    "detach": _same,
    "alias": _same,
    "to": _same,
    "_to_copy": _same,
}

# What works alike wherever the batch is: on the last axis, or value by value.
ANYWHERE_CALLS = {
    name: CALLS[name]
    for name in (
        *(
            "linear",
            "matmul",
            "mm",
            "addmm",
            "layer_norm",
            "add",
            "mul",
            "sub",
            "div",
            "dropout",
            "contiguous",
            "clone",
        ),
        *("flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze", "detach", "alias", "to", "_to_copy"),
    )
}
# What images with their channels last may stay that way for.
LAST_CALLS: dict[str, Callable[[AtenCall], Translated]] = {
    "linear": _pixelwise,
    "layer_norm": _layer_norm_last,
    **{
        name: CALLS[name]
        for name in (
            *("add", "mul", "sub", "div", "mean", "amax", "cat", "softmax"),
            *("dropout", "contiguous", "clone", "detach", "alias", "to", "_to_copy"),
        )
    },
}
