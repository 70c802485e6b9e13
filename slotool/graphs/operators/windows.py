"""Operators that move a window over their input: convolutions and pooling, over one, two or three axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slotool.errors import GraphError
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, Infer, OperatorType, Settle, Shape


def sides(value: Any, rank: int) -> tuple[int, ...]:
    """``3`` or ``(3, 5)`` as one number for each axis."""
    if isinstance(value, int):
        return (value,) * rank
    if len(value) != rank:
        raise ValueError(f"{value!r} is not one number for each of {rank} axes")
    return tuple(int(side) for side in value)


def pair(value: Any) -> tuple[int, int]:
    """``3`` or ``(3, 5)`` as (height, width)."""
    height, width = sides(value, 2)
    return height, width


def window_padding(attributes: Attributes, inputs: Shape) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) that a convolution or pooling of an image adds."""
    top, bottom, left, right = padding_around(attributes, inputs)
    return top, bottom, left, right


def padding_around(attributes: Attributes, inputs: Shape) -> tuple[int, ...]:
    """What a convolution or pooling adds before and after each axis; 'same' puts the odd one at the end, as Keras."""
    rank, padding = len(inputs) - 1, attributes.get("padding", "valid")
    if padding == "valid":
        return (0,) * (2 * rank)
    if padding != "same":
        return tuple(side for side in sides(padding, rank) for _ in range(2))
    kernel, stride = _window(attributes, rank)
    around: list[int] = []
    for size, length, step in zip(inputs[1:], kernel, stride, strict=True):
        total = max((-(-size // step) - 1) * step + length - size, 0)
        around += [total // 2, total - total // 2]
    return tuple(around)


def zero_padding(value: Any) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of ZeroPadding2D and Cropping2D, whose attribute is as 1, (1, 2) or (0, 1, 0, 1)."""
    if isinstance(value, int):
        return value, value, value, value
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    top, bottom, left, right = value
    return top, bottom, left, right


def output_size(attributes: Attributes, inputs: Shape) -> tuple[int, ...]:
    """How many places the window takes along each axis. ``ceil``: one that hangs over the end counts, unless it lies
    wholly in what was added there (torch)."""
    rank = len(inputs) - 1
    (kernel, stride), around = _window(attributes, rank), padding_around(attributes, inputs)
    sizes = []
    for axis, size in enumerate(inputs[1:]):
        before, after, step = around[2 * axis], around[2 * axis + 1], stride[axis]
        room = size + before + after - kernel[axis]
        places = (-(-room // step) if attributes.get("ceil") else room // step) + 1
        sizes.append(places - (bool(attributes.get("ceil")) and (places - 1) * step >= size + before))
    return tuple(sizes)


def _convolution(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, filters, groups = inputs[0][0], attributes["filters"], attributes.get("groups", 1)
    _require_groups(channels, filters, groups)
    size = output_size(attributes, inputs[0])
    weights = math.prod(sides(attributes["kernel"], len(size))) * (channels // groups) * filters
    bias = filters if attributes.get("bias", True) else 0
    return Effect((filters, *size), weights + bias, 2 * weights * math.prod(size))


def _depthwise(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels = inputs[0][0]
    filters = channels * attributes.get("multiplier", 1)
    return _convolution({**attributes, "filters": filters, "groups": channels}, inputs)


def _separable(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    spatial = _depthwise({**attributes, "bias": False}, inputs)
    bias = attributes.get("bias", True)
    mixing = _convolution({"filters": attributes["filters"], "kernel": 1, "bias": bias}, [spatial.shape])
    return Effect(mixing.shape, spatial.weights + mixing.weights, spatial.flops + mixing.flops)


def _transposed(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """The gradient of a convolution: each value of the input spreads over the window."""
    channels, filters, groups = inputs[0][0], attributes["filters"], attributes.get("groups", 1)
    _require_groups(channels, filters, groups)
    rank = len(inputs[0]) - 1
    (reach, stride), padding = _window(attributes, rank), sides(attributes.get("padding", 0), rank)
    extra = sides(attributes.get("output_padding", 0), rank)
    size = [
        (length - 1) * stride[axis] - 2 * padding[axis] + reach[axis] + extra[axis]
        for axis, length in enumerate(inputs[0][1:])
    ]
    weights = math.prod(sides(attributes["kernel"], rank)) * channels * (filters // groups)
    bias = filters if attributes.get("bias", True) else 0
    return Effect((filters, *size), weights + bias, 2 * weights * math.prod(inputs[0][1:]))


def _pool(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    size = output_size(attributes, inputs[0])
    shape = (inputs[0][0], *size)
    return Effect(shape, 0, math.prod(shape) * math.prod(sides(attributes["kernel"], len(size))))


def _adaptive_pool(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Windows of nearly equal size, so many that ``size`` is left; each value is read about once."""
    kept = len(inputs[0]) - len(attributes["size"])
    if attributes.get("function", "mean") not in ("mean", "max"):
        raise GraphError(f"AdaptivePooling's function {attributes['function']!r} is neither 'mean' nor 'max'")
    if kept < 1:
        raise GraphError(f"AdaptivePooling to {list(attributes['size'])} needs an axis of channels before these")
    return Effect((*inputs[0][:kept], *attributes["size"]), 0, math.prod(inputs[0]))


def _global_pool(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, _, _ = inputs[0]
    return Effect((channels, 1, 1) if attributes.get("keepdims") else (channels,), 0, math.prod(inputs[0]))


def _unfold(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Every window of an image as a column (im2col): (channels × window, places)."""
    size = output_size(attributes, inputs[0])
    return Effect((inputs[0][0] * math.prod(pair(attributes["kernel"])), math.prod(size)))


def _fold(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Columns added up into an image of ``size`` (col2im), the inverse of ``_unfold``."""
    values, places = inputs[0]
    channels = values // math.prod(pair(attributes["kernel"]))
    image = (channels, *attributes["size"])
    if math.prod(output_size(attributes, image)) != places or _unfold(attributes, [image]).shape != inputs[0]:
        raise GraphError(f"Fold cannot make {list(image)} of {list(inputs[0])}")
    return Effect(image, 0, math.prod(inputs[0]))


def _zero_pad(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["padding"])
    return Effect((channels, height + top + bottom, width + left + right))


def _crop(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    channels, height, width = inputs[0]
    top, bottom, left, right = zero_padding(attributes["cropping"])
    return Effect((channels, height - top - bottom, width - left - right))


def _resize(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Interpolation: per value written one FLOP for each value read, and one to add it up; none for 'nearest'."""
    kept = len(inputs[0]) - len(attributes["size"])
    if kept < 1:
        raise GraphError(f"Resize to {list(attributes['size'])} needs an axis of channels before these")
    shape = (*inputs[0][:kept], *attributes["size"])
    reads = _READS[attributes.get("mode", "nearest")] ** len(attributes["size"])
    return Effect(shape, 0, 2 * reads * math.prod(shape) if reads > 1 else 0)


_READS = {"nearest": 1, "area": 1, "linear": 2, "cubic": 4}


def _grid_sample(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Values of an image (channels, …) between its pixels, at the places of a grid (…, axes)."""
    image, grid = inputs
    if len(image) != len(grid) or grid[-1] != len(image) - 1:
        raise GraphError(f"GridSample cannot take {list(image)} at places {list(grid)}")
    shape = (image[0], *grid[:-1])
    reads = _READS[attributes.get("mode", "linear")] ** grid[-1]
    return Effect(shape, 0, 2 * reads * math.prod(shape))


def _pixel_shuffle(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    (channels, height, width), factor = inputs[0], attributes["factor"]
    if channels % factor**2:
        raise GraphError(f"PixelShuffle by {factor} cannot part {channels} channels")
    return Effect((channels // factor**2, height * factor, width * factor))


def _pixel_unshuffle(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    (channels, height, width), factor = inputs[0], attributes["factor"]
    if height % factor or width % factor:
        raise GraphError(f"PixelUnshuffle by {factor} cannot part an image of {height} × {width}")
    return Effect((channels * factor**2, height // factor, width // factor))


def _require_groups(channels: int, filters: int, groups: int) -> None:
    if channels % groups or filters % groups:
        raise GraphError(f"{channels} channels and {filters} filters cannot form {groups} groups")


def _over(axes: int) -> Settle:
    """Settles a window over so many axes."""

    def settle(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        if len(inputs[0]) != axes + 1:
            wanted = {1: "a sequence of (channels, steps)", 2: "an image of (channels, height, width)"}.get(
                axes, "a volume of (channels, depth, height, width)"
            )
            raise GraphError(f"a window needs {wanted}, not {list(inputs[0])}")
        if "padding" in attributes:
            around = padding_around(attributes, inputs[0])
            if not any(around):
                del attributes["padding"]
            elif around == padding_around({**attributes, "padding": "same"}, inputs[0]):
                attributes["padding"] = "same"

    return settle


def _pool_over(axes: int) -> Settle:
    """As ``_over``; a pooling's default stride is its kernel, said always, so that readers need not know."""
    settle_window = _over(axes)

    def settle(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        attributes.setdefault("stride", attributes["kernel"])
        settle_window(attributes, inputs)
        if "padding" not in attributes:
            attributes.pop("count_padding", None)
        if attributes.get("ceil"):
            plain = {name: value for name, value in attributes.items() if name != "ceil"}
            if output_size(attributes, inputs[0]) == output_size(plain, inputs[0]):
                del attributes["ceil"]

    return settle


def _settle_transposed(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
    if isinstance(attributes.get("padding"), str):
        raise ValueError("a transposed convolution's padding is said in numbers")
    for name in ("padding", "output_padding"):
        if attributes.get(name) == 0:
            del attributes[name]


def _window(attributes: Attributes, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How far the dilated kernel reaches, and the stride, along each axis."""
    kernel, dilation = sides(attributes["kernel"], rank), sides(attributes.get("dilation", 1), rank)
    reach = tuple((length - 1) * spread + 1 for length, spread in zip(kernel, dilation, strict=True))
    return reach, sides(attributes.get("stride", 1), rank)


def _of(infer: Infer, attributes: Attributes, axes: int) -> OperatorType:
    return OperatorType(infer, attributes, settle=_over(axes), channels_first=True, is_product=True)


def _of_transposed(axes: int) -> OperatorType:
    attributes = {"filters": REQUIRED, **_WINDOW, "padding": 0, "output_padding": 0, "groups": 1, **_TRAINED}
    settle = _settle_transposed_over(axes)
    return OperatorType(_transposed, attributes, settle=settle, channels_first=True, is_product=True)


def _settle_transposed_over(axes: int) -> Settle:
    settle_rank = _over(axes)

    def settle(attributes: dict[str, Any], inputs: Sequence[Shape]) -> None:
        settle_rank({}, inputs)
        _settle_transposed(attributes, inputs)

    return settle


_WINDOW = {"kernel": REQUIRED, "stride": 1, "padding": "valid", "dilation": 1}
_TRAINED = {"bias": True, "activation": None}
_CONV = {"filters": REQUIRED, **_WINDOW, "groups": 1, **_TRAINED}
_POOL = {"kernel": REQUIRED, "stride": None, "padding": "valid", "ceil": False}  # None: as the kernel
_MAX = {**_POOL, "dilation": 1}
_MEAN = {**_POOL, "count_padding": True}


def _pools(attributes: Attributes, axes: int) -> OperatorType:
    return OperatorType(_pool, attributes, settle=_pool_over(axes), channels_first=True)


WINDOWS: dict[str, OperatorType] = {
    "Conv2D": _of(_convolution, _CONV, 2),
    "DepthwiseConv2D": _of(_depthwise, {**_WINDOW, "multiplier": 1, **_TRAINED}, 2),
    "SeparableConv2D": _of(_separable, {"filters": REQUIRED, **_WINDOW, "multiplier": 1, **_TRAINED}, 2),
    "MaxPooling2D": _pools(_MAX, 2),
    "AveragePooling2D": _pools(_MEAN, 2),
    "GlobalAveragePooling2D": OperatorType(_global_pool, {"keepdims": False}, channels_first=True),
    "GlobalMaxPooling2D": OperatorType(_global_pool, {"keepdims": False}, channels_first=True),
    "ZeroPadding2D": OperatorType(_zero_pad, {"padding": REQUIRED}, channels_first=True),
    "Cropping2D": OperatorType(_crop, {"cropping": REQUIRED}, channels_first=True),
    "Conv1D": _of(_convolution, _CONV, 1),
    "Conv3D": _of(_convolution, _CONV, 3),
    "Conv1DTranspose": _of_transposed(1),
    "Conv2DTranspose": _of_transposed(2),
    "Conv3DTranspose": _of_transposed(3),
    "MaxPooling1D": _pools(_MAX, 1),
    "MaxPooling3D": _pools(_MAX, 3),
    "AveragePooling1D": _pools(_MEAN, 1),
    "AveragePooling3D": _pools(_MEAN, 3),
    "AdaptivePooling": OperatorType(_adaptive_pool, {"size": REQUIRED, "function": "mean"}, channels_first=True),
    "Resize": OperatorType(_resize, {"size": REQUIRED, "mode": "nearest"}, channels_first=True),
    "GridSample": OperatorType(_grid_sample, {"mode": "linear"}, inputs=2, channels_first=True),
    "PixelShuffle": OperatorType(_pixel_shuffle, {"factor": REQUIRED}, channels_first=True),
    "PixelUnshuffle": OperatorType(_pixel_unshuffle, {"factor": REQUIRED}, channels_first=True),
    "Unfold": OperatorType(_unfold, _WINDOW, settle=_over(2), channels_first=True),
    "Fold": OperatorType(_fold, {"size": REQUIRED, **_WINDOW}, channels_first=True),
}
