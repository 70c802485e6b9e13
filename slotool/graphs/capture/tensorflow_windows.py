"""TensorFlow's convolutions, pooling and resizing as calls of torch: channels are last, and paddings have names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.graphs.capture.tensorflow_values import tensor

_CONVOLVED = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_SPREAD = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


def _is_last(op: Any) -> bool:
    return not op.get_attr("data_format").decode().startswith("NC")


def _first(value: Any, op: Any) -> Any:
    value = tensor(value)
    return value.permute(0, value.ndim - 1, *range(1, value.ndim - 1)) if _is_last(op) else value


def _back(value: Tensor, op: Any) -> Tensor:
    return value.permute(0, *range(2, value.ndim), 1) if _is_last(op) else value


def _sizes(op: Any, name: str) -> list[int]:
    """Of an attribute with a number for each axis, those of the window."""
    given = list(op.get_attr(name))
    return given[1:-1] if _is_last(op) else given[2:]


def _sides(
    op: Any, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], spread: Sequence[int]
) -> list[int]:
    """What is added before and after each axis, the last axis first, as ``pad`` has it."""
    named = op.get_attr("padding")
    if named == b"EXPLICIT":
        pairs = np.array(op.get_attr("explicit_paddings")).reshape(-1, 2).tolist()
        pairs = pairs[1:-1] if _is_last(op) else pairs[2:]
        return [each for pair in reversed(pairs) for each in pair]
    sides: list[int] = []
    for length, reach, step, by in zip(size, kernel, stride, spread, strict=True):
        over = 0
        if named == b"SAME":
            over = max(0, (-(-length // step) - 1) * step + (reach - 1) * by + 1 - length)
        sides = [over // 2, over - over // 2, *sides]
    return sides


def _convolved(op: Any, value: Any, kernel: Any) -> Tensor:
    value, kernel = _first(value, op), tensor(kernel)
    rank = value.ndim - 2
    weight = kernel.permute(rank + 1, rank, *range(rank))
    return _window(op, value, weight, value.shape[1] // weight.shape[1])


def _depthwise(op: Any, value: Any, kernel: Any) -> Tensor:
    value, kernel = _first(value, op), tensor(kernel)
    weight = kernel.permute(2, 3, 0, 1).reshape(-1, 1, *kernel.shape[:2])
    return _window(op, value, weight, value.shape[1])


def _window(op: Any, value: Tensor, weight: Tensor, groups: int) -> Tensor:
    stride, spread = _sizes(op, "strides"), _sizes(op, "dilations")
    sides = _sides(op, value.shape[2:], weight.shape[2:], stride, spread)
    before, after = sides[::2][::-1], sides[1::2][::-1]
    if before != after:
        value, before = functional.pad(value, sides), [0] * len(before)
    convolve: Callable[..., Tensor] = _CONVOLVED[len(before)]
    return _back(convolve(value, weight, None, stride, before, spread, groups), op)


def _spread_out(op: Any, sizes: Any, kernel: Any, value: Any) -> Tensor:
    """A transposed convolution: what is more than the wanted size is cut off."""
    value, kernel = _first(value, op), tensor(kernel)
    rank = value.ndim - 2
    stride, spread = _sizes(op, "strides"), _sizes(op, "dilations")
    wanted = _first(torch.empty(tuple(op.outputs[0].shape), device="meta"), op).shape[2:]
    weight = kernel.permute(rank + 1, rank, *range(rank))
    padding, extra = [], []
    for size, made, reach, step, by in zip(value.shape[2:], wanted, kernel.shape[:rank], stride, spread, strict=True):
        over = (size - 1) * step + (reach - 1) * by + 1 - made
        side = max(0, -(-over // 2))
        padding.append(side)
        extra.append(2 * side - over)
    convolve: Callable[..., Tensor] = _SPREAD[rank]
    return _back(convolve(value, weight, None, stride, padding, extra, 1, spread), op)


def _pooled(kind: str) -> Callable[..., Tensor]:
    def pooled(op: Any, value: Any) -> Tensor:
        value = _first(value, op)
        kernel, stride, rank = _sizes(op, "ksize"), _sizes(op, "strides"), value.ndim - 2
        sides = _sides(op, value.shape[2:], kernel, stride, [1] * rank)
        value = functional.pad(value, sides) if any(sides) else value
        pool: Callable[..., Tensor] = getattr(functional, f"{kind}_pool{rank}d")
        return _back(pool(value, kernel, stride), op)

    return pooled


def _normalised(op: Any, value: Any, scale: Any, centre: Any, mean: Any, variance: Any) -> tuple[Tensor, ...]:
    mean, variance = tensor(mean), tensor(variance)
    made = functional.batch_norm(_first(value, op), mean, variance, tensor(scale), tensor(centre))
    return _back(made, op), mean, variance


def _resized(mode: str) -> Callable[..., Tensor]:
    def resized(op: Any, value: Any, *_: Any) -> Tensor:
        size = tuple(op.outputs[0].shape)[1:3]
        value = tensor(value)
        value = value if value.is_floating_point() else value.float()
        return functional.interpolate(value.permute(0, 3, 1, 2), size, mode=mode).permute(0, 2, 3, 1)

    return resized


def _blocks(op: Any, value: Any) -> Any:
    """Channels as blocks of pixels, or the other way."""
    size = op.get_attr("block_size")
    batch, height, width, channels = value.shape
    if op.type == "DepthToSpace":
        parted = value.reshape(batch, height, width, size, size, channels // size**2)
    else:
        parted = value.reshape(batch, height // size, size, width // size, size, channels)
    turned = parted.permute(0, 1, 3, 2, 4, 5)
    return turned.reshape(tuple(op.outputs[0].shape))


def _folded(op: Any, value: Any, block: Any, pads: Any) -> Any:
    """Every so many pixels as examples of their own, as a dilated convolution takes them."""
    value, blocks = tensor(value), [int(each) for each in block]
    around = [int(each) for pair in reversed(np.array(pads).tolist()) for each in pair]
    value = functional.pad(value, [*(0 for _ in range(2 * (value.ndim - 1 - len(blocks)))), *around])
    batch, *sizes = value.shape
    parted = [each for size, by in zip(sizes, blocks, strict=False) for each in (size // by, by)]
    rest = sizes[len(blocks) :]
    value = value.reshape(batch, *parted, *rest)
    ways = [2 * at + 2 for at in range(len(blocks))]
    kept = [2 * at + 1 for at in range(len(blocks))]
    value = value.permute(*ways, 0, *kept, *range(2 * len(blocks) + 1, value.ndim))
    return value.reshape(tuple(op.outputs[0].shape))


def _unfolded(op: Any, value: Any, block: Any, crops: Any) -> Any:
    value, blocks = tensor(value), [int(each) for each in block]
    batch, sizes = value.shape[0] // math.prod(blocks), value.shape[1 : 1 + len(blocks)]
    rest = value.shape[1 + len(blocks) :]
    value = value.reshape(*blocks, batch, *sizes, *rest)
    count = len(blocks)
    order = [each for at in range(count) for each in (count + 1 + at, at)]
    value = value.permute(count, *order, *range(2 * count + 1, value.ndim))
    value = value.reshape(batch, *(size * by for size, by in zip(sizes, blocks, strict=True)), *rest)
    for axis, (before, after) in enumerate(np.array(crops).tolist(), 1):
        value = value.narrow(axis, before, value.shape[axis] - before - after)
    return value


def _patches(op: Any, value: Any) -> Tensor:
    """Of each place the numbers in its window, as ``Unfold`` has them."""
    kernel, stride, spread = (list(op.get_attr(name))[1:3] for name in ("ksizes", "strides", "rates"))
    value = tensor(value).permute(0, 3, 1, 2)
    shape = tuple(op.outputs[0].shape)
    if op.get_attr("padding") == b"SAME":
        over = [
            max(0, (made - 1) * step + (reach - 1) * by + 1 - size)
            for made, step, reach, by, size in zip(shape[1:3], stride, kernel, spread, value.shape[2:], strict=True)
        ]
        value = functional.pad(value, [each for one in reversed(over) for each in (one // 2, one - one // 2)])
    found = functional.unfold(value, tuple(kernel), tuple(spread), 0, tuple(stride))
    channels, places = value.shape[1], shape[1] * shape[2]
    parted = found.reshape(value.shape[0], channels, kernel[0] * kernel[1], places)
    return parted.permute(0, 3, 2, 1).reshape(shape)


WINDOWS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Conv", "Conv2D", "Conv3D"), _convolved),
    "DepthwiseConv2dNative": _depthwise,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _spread_out),
    **{"MaxPool": _pooled("max"), "MaxPool3D": _pooled("max"), "AvgPool": _pooled("avg"), "AvgPool3D": _pooled("avg")},
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalised),
    **{"ResizeBilinear": _resized("bilinear"), "ResizeNearestNeighbor": _resized("nearest")},
    **{"ResizeBicubic": _resized("bicubic"), "ScaleAndTranslate": _resized("bilinear")},
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "ExtractImagePatches": _patches,
    "SpaceToBatchND": _folded,
    "BatchToSpaceND": _unfolded,
}
