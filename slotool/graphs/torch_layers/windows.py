"""Convolutions, pooling and whatever else moves a window over its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slotool.graphs.operator_node import Operator
from slotool.graphs.operators import Shape, padding_around, pair, sides, zero_padding
from slotool.graphs.torch_layers.common import Builder, Function

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_PADS: Mapping[int, Callable[..., nn.Module]] = {1: nn.ConstantPad1d, 2: nn.ConstantPad2d, 3: nn.ConstantPad3d}
_MAX_POOLS: Mapping[int, Callable[..., nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
_MEAN_POOLS: Mapping[int, Callable[..., nn.Module]] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
_ADAPTIVE: Mapping[str, Sequence[Callable[..., Any]]] = {
    "mean": (functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d),
    "max": (functional.adaptive_max_pool1d, functional.adaptive_max_pool2d, functional.adaptive_max_pool3d),
}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _convolution(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, channels, rank = operator.attributes, inputs[0][0], len(inputs[0]) - 1
    if operator.op == "DepthwiseConv2D":
        attributes = {**attributes, "filters": channels * attributes.get("multiplier", 1), "groups": channels}
    around = padding_around(attributes, inputs[0])
    symmetric = around[::2] == around[1::2]
    layer = _CONVOLUTIONS[rank](
        channels,
        attributes["filters"],
        sides(attributes["kernel"], rank),  # type: ignore[arg-type]
        sides(attributes.get("stride", 1), rank),  # type: ignore[arg-type]
        padding=around[::2] if symmetric else 0,  # type: ignore[arg-type]
        dilation=sides(attributes.get("dilation", 1), rank),  # type: ignore[arg-type]
        groups=attributes.get("groups", 1),
        bias=attributes.get("bias", True),
        device=device,
    )
    return layer if symmetric else nn.Sequential(_around(around, 0.0), layer)


def _transposed(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, rank = operator.attributes, len(inputs[0]) - 1
    return _TRANSPOSED[rank](
        inputs[0][0],
        attributes["filters"],
        sides(attributes["kernel"], rank),  # type: ignore[arg-type]
        sides(attributes.get("stride", 1), rank),  # type: ignore[arg-type]
        padding=sides(attributes.get("padding", 0), rank),  # type: ignore[arg-type]
        output_padding=sides(attributes.get("output_padding", 0), rank),  # type: ignore[arg-type]
        groups=attributes.get("groups", 1),
        bias=attributes.get("bias", True),
        dilation=sides(attributes.get("dilation", 1), rank),  # type: ignore[arg-type]
        device=device,
    )


def _separable(operator: Operator, inputs: Sequence[Shape], device: str) -> nn.Module:
    attributes, channels = operator.attributes, inputs[0][0]
    middle = channels * attributes.get("multiplier", 1)
    spatial = replace(operator, attributes={**attributes, "filters": middle, "groups": channels, "bias": False})
    mixing = nn.Conv2d(middle, attributes["filters"], 1, bias=attributes.get("bias", True), device=device)
    return nn.Sequential(_convolution(spatial, inputs, device), mixing)


def _around(sizes: Sequence[int], value: float) -> nn.Module:
    """Padding by so much before and after each axis."""
    pairs = [sizes[axis : axis + 2] for axis in range(0, len(sizes), 2)]
    return _PADS[len(pairs)]([size for sides in reversed(pairs) for size in sides], value)


def _pool(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    attributes, rank = operator.attributes, len(inputs[0]) - 1
    kernel = sides(attributes["kernel"], rank)
    stride = sides(attributes.get("stride", attributes["kernel"]), rank)
    around, highest, ceil = padding_around(attributes, inputs[0]), operator.op.startswith("Max"), "ceil" in attributes
    own: dict[str, Any] = {"ceil_mode": ceil} if ceil else {}
    if highest and "dilation" in attributes:
        own["dilation"] = attributes["dilation"]
    # Padding of torch's own only where the padding in front would not be the same.
    if (ceil or not attributes.get("count_padding", True)) and around[::2] == around[1::2]:
        own["padding"] = around[::2]
        if not highest:
            own["count_include_pad"] = attributes.get("count_padding", True)
        around = (0,) * len(around)
    pool = (_MAX_POOLS if highest else _MEAN_POOLS)[rank](kernel, stride, **own)
    return nn.Sequential(_around(around, float("-inf") if highest else 0.0), pool) if any(around) else pool


def _adaptive_pool(operator: Operator, *_: object) -> nn.Module:
    size, function = operator.attributes["size"], operator.attributes.get("function", "mean")
    return Function(_over_axes(partial(_ADAPTIVE[function][len(size) - 1], output_size=size), len(size)))


def _resize(operator: Operator, *_: object) -> nn.Module:
    size, mode = operator.attributes["size"], operator.attributes.get("mode", "nearest")
    if mode == "cubic":
        mode = "bicubic"
    if mode == "linear":
        mode = _LINEAR[len(size)]
    return Function(_over_axes(partial(functional.interpolate, size=size, mode=mode), len(size)))


def _over_axes(function: Callable[[Tensor], Tensor], axes: int) -> Callable[[Tensor], Tensor]:
    """The function over the last axes, of [batch, channels, *axes]: what else is before them counts as channels."""

    def applied(x: Tensor) -> Tensor:
        if x.ndim == axes + 2:
            return function(x)
        answer = function(x.flatten(1, x.ndim - axes - 1))
        return answer.reshape(*x.shape[: x.ndim - axes], *answer.shape[2:])

    return applied


def _grid_sample(operator: Operator, *_: object) -> nn.Module:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(operator.attributes.get("mode", "linear"), "nearest")

    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        if len(grid) != len(x):
            grid = grid.expand(len(x), *grid.shape[1:])
        return functional.grid_sample(x, grid, mode=mode, align_corners=False)

    return Function(sampled)


def _global_pool(operator: Operator, *_: object) -> nn.Module:
    pool = torch.amax if operator.op == "GlobalMaxPooling2D" else torch.mean
    return Function(partial(pool, dim=(2, 3), keepdim=operator.attributes.get("keepdims", False)))


def _unfold(operator: Operator, inputs: Sequence[Shape], _: str) -> nn.Module:
    top, bottom, left, right = padding_around(operator.attributes, inputs[0])
    unfold = nn.Unfold(pair(operator.attributes["kernel"]), **_steps(operator))
    return nn.Sequential(nn.ZeroPad2d((left, right, top, bottom)), unfold) if top or bottom or left or right else unfold


def _fold(operator: Operator, *_: object) -> nn.Module:
    attributes = operator.attributes
    image = (1, *attributes["size"])
    top, bottom, left, right = padding_around(attributes, image)
    whole = (attributes["size"][0] + top + bottom, attributes["size"][1] + left + right)
    fold = nn.Fold(whole, pair(attributes["kernel"]), **_steps(operator))
    around = (-left, -right, -top, -bottom)
    return nn.Sequential(fold, nn.ZeroPad2d(around)) if any(around) else fold


def _steps(operator: Operator) -> dict[str, Any]:
    attributes = operator.attributes
    return {"stride": pair(attributes.get("stride", 1)), "dilation": pair(attributes.get("dilation", 1))}


def _zero_pad(operator: Operator, *_: object) -> nn.Module:
    top, bottom, left, right = zero_padding(operator.attributes["padding"])
    return nn.ZeroPad2d((left, right, top, bottom))


def _crop(operator: Operator, *_: object) -> nn.Module:
    top, bottom, left, right = zero_padding(operator.attributes["cropping"])
    return nn.ZeroPad2d((-left, -right, -top, -bottom))


WINDOWS: dict[str, Builder] = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "DepthwiseConv2D"), _convolution),
    "SeparableConv2D": _separable,
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _transposed),
    **{f"{kind}Pooling{rank}D": _pool for kind in ("Max", "Average") for rank in (1, 2, 3)},
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "AdaptivePooling": _adaptive_pool,
    "Resize": _resize,
    "GridSample": _grid_sample,
    "PixelShuffle": lambda operator, *_: nn.PixelShuffle(operator.attributes["factor"]),
    "PixelUnshuffle": lambda operator, *_: nn.PixelUnshuffle(operator.attributes["factor"]),
    "Unfold": _unfold,
    "Fold": _fold,
    "ZeroPadding2D": _zero_pad,
    "Cropping2D": _crop,
}
