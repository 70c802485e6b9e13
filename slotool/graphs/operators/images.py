"""Images resized, sampled, cut and padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from slotool.errors import GraphError
from slotool.graphs.libraries import functional, keras, nn, torch_parts
from slotool.graphs.operators.attributes import Attributes, Shape
from slotool.graphs.operators.base import REQUIRED, Effect, Operator, OperatorType, TensorFunction, cannot_be_built
from slotool.graphs.operators.keras_values import Initializer, Value, by_layer, layer_name
from slotool.graphs.operators.onnx_writer import Writer

if TYPE_CHECKING:
    from torch import Tensor

# Values along each axis that an interpolation reads.
_READS = {"nearest": 1, "area": 1, "linear": 2, "cubic": 4}
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_ONNX_MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "cubic": {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75},
}


def zero_padding(value: Any) -> tuple[int, int, int, int]:
    """Return 1, (1, 2) or (0, 1, 0, 1), as ZeroPadding2D and Cropping2D have it, as (top, bottom, left, right)."""
    if isinstance(value, int):
        return value, value, value, value
    if len(value) == 2:
        return value[0], value[0], value[1], value[1]
    top, bottom, left, right = value
    return top, bottom, left, right


class _Margins(OperatorType, abstract=True):
    """Rows and columns around an image: ``sign`` 1 adds them, -1 takes them away."""

    feature_axis = 0
    sign: ClassVar[int]

    def margins(self, attributes: Attributes) -> tuple[int, ...]:
        """Return how much is added (top, bottom, left, right)."""
        around = attributes.get("padding", attributes.get("cropping"))
        return tuple(self.sign * side for side in zero_padding(around))

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (channels, height, width), (top, bottom, left, right) = inputs[0], self.margins(attributes)
        return Effect((channels, height + top + bottom, width + left + right))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        top, bottom, left, right = self.margins(operator.attributes)
        return nn.ZeroPad2d((left, right, top, bottom))

    def keras(self, operator: Operator, values: Sequence[Value], weights: Initializer) -> Value:
        top, bottom, left, right = map(abs, self.margins(operator.attributes))
        layer = getattr(keras.layers, operator.op)(((top, bottom), (left, right)), name=layer_name(operator.name))
        return by_layer(layer, operator.shape, values)


class ZeroPadding2D(_Margins):
    attributes = {"padding": REQUIRED}
    sign = 1

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        top, bottom, left, right = self.margins(operator.attributes)
        return writer.node("Pad", values[0], writer.integers(0, 0, top, left, 0, 0, bottom, right))


class Cropping2D(_Margins):
    attributes = {"cropping": REQUIRED}
    sign = -1

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        top, _, left, _ = map(abs, self.margins(operator.attributes))
        _, height, width = operator.shape
        starts, ends = writer.integers(top, left), writer.integers(top + height, left + width)
        return writer.node("Slice", values[0], starts, ends, writer.integers(2, 3))


class Resize(OperatorType):
    """Interpolation: per value written one FLOP for each value read, and one to add it up; none for "nearest"."""

    attributes = {"size": REQUIRED, "mode": "nearest"}
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        leading = len(inputs[0]) - len(attributes["size"])
        if leading < 1:
            raise GraphError(f"Resize to {list(attributes['size'])} needs an axis of channels before these")
        shape = (*inputs[0][:leading], *attributes["size"])
        reads = _READS[attributes["mode"]] ** len(attributes["size"])
        return Effect(shape, 0, 2 * reads * math.prod(shape) if reads > 1 else 0)

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        size, mode = operator["size"], operator["mode"]
        mode = {"cubic": "bicubic", "linear": _LINEAR.get(len(size), "linear")}.get(mode, mode)
        return torch_parts.over_last_axes(partial(functional.interpolate, size=size, mode=mode), len(size))

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        mode = operator["mode"]
        if mode not in _ONNX_MODES:
            raise cannot_be_built(operator, "ONNX", f"Resize by {mode}")
        sizes = writer.integers(1 if values[0] in writer.free else writer.batch_size, *operator.shape)
        return writer.node("Resize", values[0], "", "", sizes, **_ONNX_MODES[mode])


class GridSample(OperatorType):
    """Values of an image (channels, …) between its pixels, at the places of a grid (…, axes)."""

    attributes = {"mode": "linear"}
    inputs = 2
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        image, grid = inputs
        if len(image) != len(grid) or grid[-1] != len(image) - 1:
            raise GraphError(f"GridSample cannot take {list(image)} at places {list(grid)}")
        shape = (image[0], *grid[:-1])
        reads = _READS[attributes["mode"]] ** grid[-1]
        return Effect(shape, 0, 2 * reads * math.prod(shape))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        mode = {"linear": "bilinear", "cubic": "bicubic"}.get(operator["mode"], "nearest")

        def sampled(x: Tensor, grid: Tensor) -> Tensor:
            if len(grid) != len(x):
                grid = grid.expand(len(x), *grid.shape[1:])
            return functional.grid_sample(x, grid, mode=mode, align_corners=False)

        return sampled

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        mode = operator["mode"]
        return writer.node(
            "GridSample", *writer.of_one_batch(values, operator.input_shapes), mode=mode, align_corners=0
        )


class PixelShuffle(OperatorType):
    attributes = {"factor": REQUIRED}
    captured = {
        "torch.pixel_shuffle": lambda call: {"factor": call["upscale_factor"]},
        "onnx.DepthToSpace": lambda call: {"factor": call.attribute("blocksize")},
    }
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (channels, height, width), factor = inputs[0], attributes["factor"]
        if channels % factor**2:
            raise GraphError(f"PixelShuffle by {factor} cannot part {channels} channels")
        return Effect((channels // factor**2, height * factor, width * factor))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.PixelShuffle(operator["factor"])

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        return writer.node("DepthToSpace", values[0], blocksize=operator["factor"], mode="CRD")


class PixelUnshuffle(OperatorType):
    attributes = {"factor": REQUIRED}
    captured = {
        "torch.pixel_unshuffle": lambda call: {"factor": call["downscale_factor"]},
        "onnx.SpaceToDepth": lambda call: {"factor": call.attribute("blocksize")},
    }
    feature_axis = 0

    def infer(self, attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        (channels, height, width), factor = inputs[0], attributes["factor"]
        if height % factor or width % factor:
            raise GraphError(f"PixelUnshuffle by {factor} cannot part an image of {height} × {width}")
        return Effect((channels * factor**2, height // factor, width // factor))

    def torch(self, operator: Operator, device: str) -> TensorFunction:
        return nn.PixelUnshuffle(operator["factor"])

    def onnx(self, writer: Writer, operator: Operator, values: Sequence[str]) -> str:
        (channels, height, width), factor = operator.input_shapes[0], operator["factor"]
        apart = writer.shaped(values[0], channels, height // factor, factor, width // factor, factor)
        return writer.shaped(writer.turned(apart, [0, 2, 4, 1, 3]), *operator.shape)
