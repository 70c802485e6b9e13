"""Encoded images as tensors of one format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool import images
from slotool.data.options import ImageOptions, Tensor


@dataclass(frozen=True)
class ImageFormat:
    """Format of image tensors.

    ``size``: (height, width). ``channels``: 1 or 3. ``layout``: chw or hwc. ``dtype``: integers, 0 to 255, or
    floating-point, [0, 1] less ``mean`` over ``std``, per channel. ``scales``: images of another size are scaled, else
    rejected.
    """

    size: tuple[int, int]
    channels: int
    layout: str
    dtype: np.dtype[Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bgr: bool = False
    scales: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (self.channels, *self.size) if self.layout == "chw" else (*self.size, self.channels)

    @classmethod
    def of(cls, options: ImageOptions, tensor: Tensor | None, first: bytes) -> ImageFormat:
        """Return the format that ``options`` state, completed from ``tensor``, then from the ``first`` image.

        Raises ``InputError`` if they contradict each other, or images of this kind do not fit the tensor.
        """
        shape = tensor.shape[1:] if tensor else (-1, -1, -1)
        if len(shape) != 3:
            raise images.ImageError(f"images have 3 dimensions, input {tensor.name!r} takes {list(shape)}")  # type: ignore[union-attr]
        layout = options.layout or ("hwc" if shape[2] in (1, 3) and shape[0] not in (1, 3) else "chw")
        channels, height, width = shape if layout == "chw" else (shape[2], shape[0], shape[1])
        size = options.size or (height, width)
        scales = -1 not in size
        if not scales:
            frame = images.frame_of(first)
            size = (frame.height, frame.width)
        complete = cls(
            size=size,
            channels=options.channels or (channels if channels > 0 else 3),
            layout=layout,
            dtype=tensor.dtype if tensor else np.dtype(np.float32),
            mean=options.mean,
            std=options.std,
            bgr=options.bgr,
            scales=scales,
        )
        complete.require(tensor)
        return complete

    def require(self, tensor: Tensor | None) -> None:
        """Raise ``InputError`` when images of this format are none for ``tensor``, or mean and std do not fit."""
        if tensor and any(side not in (-1, size) for side, size in zip(tensor.shape[1:], self.shape, strict=True)):
            raise images.ImageError(
                f"images are {list(self.shape)} ({self.layout}), input {tensor.name!r} takes {list(tensor.shape[1:])}"
            )
        if self.channels not in (1, 3):
            raise images.ImageError(f"images have 1 or 3 channels, not {self.channels}; is the layout {self.layout}?")
        if not {len(self.mean), len(self.std)} <= {1, self.channels}:
            raise images.ImageError(f"mean and std for {len(self.mean)} channels, the images have {self.channels}")
        if self.dtype.kind in "iu" and (set(self.mean), set(self.std)) != ({0.0}, {1.0}):
            raise images.ImageError(f"a tensor of {self.dtype.name} takes pixels as they are, without mean and std")

    def decode(self, body: bytes) -> np.ndarray:
        """Return the image as an array of ``shape`` and ``dtype``. Raises ``ImageError`` if it cannot be decoded."""
        if not self.scales:
            frame = images.frame_of(body)
            if (frame.height, frame.width) != self.size:
                height, width = self.size
                raise images.ImageError(
                    f"the image is {frame.width}×{frame.height}, the first is {width}×{height}; "
                    f"--images {height}x{width} brings all to one size"
                )
        pixels = images.decode_covering(body, self.channels, *self.size)
        if self.bgr:
            pixels = pixels[:, :, ::-1]
        if self.dtype.kind == "f":
            unit = pixels.astype(np.float32) / np.float32(255.0)
            pixels = (unit - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        form: np.ndarray = pixels.astype(self.dtype)
        return form.transpose(2, 0, 1) if self.layout == "chw" else form
