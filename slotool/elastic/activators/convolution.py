"""Convolutional layers under a Node Activator: a node is an output channel, dropped or computed at all positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from slotool.elastic.activators.mlp import DenseLayer, Layer
from slotool.errors import InputError
from slotool.graphs.operators import window_padding

# About so many values are what a ranker sees of an image: its channels' means over cells of a grid.
SEEN_VALUES = 64
FINEST_GRID = 8
# An image of more is not made room for: 256 MiB.
MAX_PADDED_VALUES = 1 << 26


@dataclass(frozen=True)
class ConvLayer(Layer):
    """A convolution with ReLU and max-pooling behind it, on images that come and go flattened, channels first.

    ``weights``: float32 [channels, input channels, kernel height, kernel width]; ``bias``: float32 [channels].
    ``shape``: of one image that comes in; ``stride`` (vertical, horizontal); ``padding`` (top, bottom, left, right);
    ``pool``: side and stride of the pooling's square window, 1 for none.
    """

    name: str
    weights: np.ndarray
    bias: np.ndarray
    shape: tuple[int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pool: int = 1

    def check(self) -> None:
        super().check()
        geometry = (*self.shape, *self.stride, *self.padding, self.pool)
        if not all(isinstance(size, Integral) for size in geometry):
            raise InputError(f"operator {self.name!r}: shape, stride, padding and pooling must be whole numbers")
        if (len(self.shape), len(self.stride), len(self.padding), self.weights.ndim) != (3, 2, 4, 4):
            raise InputError(f"operator {self.name!r} is no convolution of images [channels, height, width]")
        if (
            min(*self.shape, *self.stride, self.pool) < 1
            or min(self.padding) < 0
            or min(*self.convolved, *self.pooled) < 1
        ):
            raise InputError(f"operator {self.name!r}: the convolution leaves nothing of images {self.shape}")
        channels, height, width = self.shape
        padded = channels * (height + sum(self.padding[:2])) * (width + sum(self.padding[2:]))
        if self.weights.shape[1] != channels or padded > MAX_PADDED_VALUES:
            raise InputError(f"operator {self.name!r}: weights {self.weights.shape} for {padded:,} padded values")

    @property
    def inputs(self) -> int:
        return int(np.prod(self.shape))

    @cached_property
    def convolved(self) -> tuple[int, int]:
        """Height and width of what the convolution puts out."""
        _, height, width = self.shape
        top, bottom, left, right = self.padding
        kernel_height, kernel_width = self.weights.shape[2:]
        return (height + top + bottom - kernel_height) // self.stride[0] + 1, (
            width + left + right - kernel_width
        ) // self.stride[1] + 1

    @cached_property
    def pooled(self) -> tuple[int, int]:
        """Height and width of what leaves the pooling; a rest at the lower and right border is left out."""
        return self.convolved[0] // self.pool, self.convolved[1] // self.pool

    @property
    def outputs(self) -> int:
        return self.units * self.pooled[0] * self.pooled[1]

    @property
    def work(self) -> int:
        return int(self.weights.size * np.prod(self.convolved))

    def pre_activations(self, inputs: Any, nodes: np.ndarray | None = None) -> np.ndarray:
        """float32 [batch, channels, height, width], of every channel or of ``nodes``; by PyTorch, as NumPy has none."""
        import torch
        from torch.nn import functional

        rows, bias = (self.weights, self.bias) if nodes is None else (self.weights[nodes], self.bias[nodes])
        images = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32)).view(-1, *self.shape)
        top, bottom, left, right = self.padding
        with torch.inference_mode():
            padded = functional.pad(images, (left, right, top, bottom)) if any(self.padding) else images
            return functional.conv2d(padded, torch.from_numpy(rows), torch.from_numpy(bias), self.stride).numpy()

    def activated(self, values: np.ndarray) -> np.ndarray:
        import torch
        from torch.nn import functional

        return functional.max_pool2d(torch.from_numpy(values), self.pool).clamp_min_(0.0).flatten(1).numpy()

    def activity(self, values: np.ndarray) -> np.ndarray:
        pooled: np.ndarray = np.maximum(values, 0.0).mean(axis=(2, 3))
        return pooled

    @cached_property
    def grid(self) -> int:
        """Cells along either side of what a ranker sees: the most that divide it evenly and give few enough values."""
        channels, height, width = self.shape
        most = max(1, min(FINEST_GRID, round((SEEN_VALUES / channels) ** 0.5)))
        return max(cells for cells in range(1, most + 1) if height % cells == 0 and width % cells == 0)

    def seen(self, inputs: Any) -> np.ndarray:
        """float32 [batch, input channels · grid²]: means over the cells."""
        channels, height, width = self.shape
        cells = np.asarray(inputs, dtype=np.float32).reshape(
            -1, channels, self.grid, height // self.grid, self.grid, width // self.grid
        )
        return np.ascontiguousarray(cells.mean(axis=(3, 5)).reshape(len(cells), -1))

    @cached_property
    def view(self) -> DenseLayer:
        """What a channel is on average over its positions, but for those at the border."""
        rows = np.repeat(self.weights.sum(axis=(2, 3)), self.grid**2, axis=1) / np.float32(self.grid**2)
        return DenseLayer(self.name, np.ascontiguousarray(rows), self.bias)

    def attributes(self) -> dict[str, Any]:
        """Of a ``Conv2D`` operator, all but activation and pooling. Raises ``InputError`` for padding that no operator
        has: more on one side than on the other, but for what 'same' puts at the end."""
        top, bottom, left, right = self.padding
        found = {"filters": self.units, "kernel": list(self.weights.shape[2:]), "stride": list(self.stride)}
        if (top, left) == (bottom, right):
            return {**found, "padding": [top, left] if top or left else "valid"}
        if window_padding({**found, "padding": "same"}, self.shape) != self.padding:
            raise InputError(f"operator {self.name!r} pads unevenly, by {self.padding}")
        return {**found, "padding": "same"}

    def geometry(self) -> dict[str, Any]:
        """Plain numbers and lists: all but name, weights and bias."""
        return {name: getattr(self, name) for name in ("shape", "stride", "padding", "pool")}

    @classmethod
    def of(cls, name: str, weights: np.ndarray, bias: np.ndarray, geometry: Mapping[str, Any]) -> ConvLayer:
        """Inverse of ``geometry``."""
        shape, stride, padding = (tuple(geometry[part]) for part in ("shape", "stride", "padding"))
        return cls(name, weights, bias, shape, stride, padding, int(geometry["pool"]))
