"""Windows in Keras over one, two or three axes, as layers and among ``keras.ops``: convolutions, pooling, resizing.

They are operators of values with their channels first. Images have these first here anyhow; sequences and volumes,
whose channels Keras has last, are turned before and after. A new window is an entry of ``WINDOWS`` by its layer's name,
and of ``OPERATIONS`` by that of its operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.drafts import Operation, Step, Steps, in_a_row
from slotool.graphs.capture.keras.operations import Call
from slotool.graphs.libraries import keras
from slotool.graphs.operators import Shape, sides

_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


@dataclass(frozen=True)
class Window:
    """Layer or operation that moves a window.

    ``inputs`` and ``shape``: of its first input and its output, with channels first. ``kernels``: shapes of the kernel
    that an operation takes, and of the one of 1 × 1 behind a separable one; a layer states its own.
    """

    value: Any
    inputs: Shape
    shape: Shape
    kernels: tuple[Shape, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.inputs) - 1

    @property
    def kernel(self) -> Shape:
        return self.kernels[0][:-2] if self.kernels else tuple(self.value.kernel_size)

    @property
    def filters(self) -> int:
        """Filters of a convolution that is not transposed."""
        return int(self.kernels[-1][-1] if self.kernels else self.value.filters)

    @property
    def multiplier(self) -> int:
        """Filters of a depthwise convolution for each channel."""
        return int(self.kernels[0][-1] if self.kernels else self.value.depth_multiplier)

    @property
    def trained(self) -> dict[str, Any]:
        return {"bias": False} if self.kernels else trained(self.value)

    @property
    def moved(self) -> dict[str, Any]:
        """Attributes of a convolution that say how its window moves."""
        return {
            "kernel": self.kernel,
            "stride": sides(self.value.strides, self.rank),
            "dilation": sides(self.value.dilation_rate, self.rank),
            "padding": "valid" if self.value.padding == "causal" else self.value.padding,
        }


def around(operations: Sequence[Operation], rank: int) -> list[Step]:
    """Return operators on values of ``rank`` axes with channels last, transposed before and after."""
    to_first = ("Transpose", {"axes": (rank - 1, *range(rank - 1))})
    return in_a_row(to_first, *operations, ("Transpose", {"axes": (*range(1, rank), 0)}))


def window_of(call: Call) -> list[Operation] | None:
    """Return an operation as operators of one array with channels first.

    None if it is no window, or its kernel differs by example.
    """
    convert = OPERATIONS.get(type(call.operation).__name__)
    if convert is None or call.fixed[0] or not all(call.fixed[1:]):
        return None
    inputs, shape = call.inputs[0], call.shape
    if has_channels_last(call.operation):
        inputs, shape = _channels_first(inputs), _channels_first(shape)
    # Kernels with all their axes, also a first one of 1, which is no batch.
    return convert(Window(call.operation, inputs, shape, tuple(tuple(each.shape) for each in call.arguments[1:3])))


def layer_steps(layer: Any, inputs: Sequence[Shape], shape: Shape) -> Steps:
    """Return a layer of ``WINDOWS``; None for sequences and volumes with channels first."""
    convert = WINDOWS[type(layer).__name__]
    if len(shape) == 3:
        operations = convert(Window(layer, inputs[0], shape))
        return None if operations is None else in_a_row(*operations)
    if not has_channels_last(layer):
        return None
    operations = convert(Window(layer, _channels_first(inputs[0]), _channels_first(shape)))
    return None if operations is None else around(operations, len(shape))


def has_channels_last(value: Any) -> bool:
    """True if a layer or operation, or else Keras' configuration, has channels last."""
    return str(getattr(value, "data_format", None) or keras.config.image_data_format()) == "channels_last"


def _channels_first(shape: Shape) -> Shape:
    return (*shape[-1:], *shape[:-1])


def _convolution(window: Window) -> list[Operation] | None:
    groups = window.inputs[0] // window.kernels[0][-2] if window.kernels else window.value.groups
    attributes = {"filters": window.filters, "groups": groups, **window.moved, **window.trained}
    return [*_causal(window), (f"Conv{window.rank}D", attributes)]


def _depthwise(window: Window) -> list[Operation] | None:
    if window.rank == 2:
        return [("DepthwiseConv2D", {"multiplier": window.multiplier, **window.moved, **window.trained})]
    channels = window.inputs[0]
    each = {"filters": channels * window.multiplier, "groups": channels}
    return [*_causal(window), (f"Conv{window.rank}D", {**each, **window.moved, **window.trained})]


def _causal(window: Window) -> list[Operation]:
    """Return the zeros before a sequence that keep later steps from a convolution's window."""
    if window.value.padding != "causal":
        return []
    (reach,) = window.kernel
    return [("Pad", {"pads": (0, sides(window.value.dilation_rate, 1)[0] * (reach - 1), 0, 0)})]


def _separable(window: Window) -> list[Operation] | None:
    if window.rank == 2:
        attributes = {"filters": window.filters, "multiplier": window.multiplier}
        return [("SeparableConv2D", {**attributes, **window.moved, **window.trained})]
    if window.kernels or window.value.padding == "causal":
        return None
    channels = window.inputs[0]
    along = {"filters": channels * window.multiplier, "groups": channels, **window.moved, "bias": False}
    return [("Conv1D", along), ("Conv1D", {"filters": window.filters, "kernel": 1, **window.trained})]


def _transposed(window: Window) -> list[Operation] | None:
    """Return a transposed convolution; its padding follows from the sizes, as Keras states only 'same' or 'valid'."""
    filters = window.kernels[0][-2] if window.kernels else window.value.filters
    stride, dilation = sides(window.value.strides, window.rank), sides(window.value.dilation_rate, window.rank)
    padding, extra = [], []
    sizes = zip(window.inputs[1:], window.shape[1:], window.kernel, stride, dilation, strict=True)
    for length, output, reach, step, spread in sizes:
        over = (length - 1) * step + (reach - 1) * spread + 1 - output
        side = max(0, -(-over // 2))
        padding.append(side)
        extra.append(2 * side - over)
    spread_out = {"stride": stride, "dilation": dilation, "padding": padding, "output_padding": extra}
    attributes = {"filters": filters, "kernel": window.kernel, **spread_out, **window.trained}
    return [(f"Conv{window.rank}DTranspose", attributes)]


def _pooled(kind: str) -> Callable[[Window], list[Operation] | None]:
    def pooled(window: Window) -> list[Operation] | None:
        kernel = sides(window.value.pool_size, window.rank)
        stride = sides(window.value.strides or kernel, window.rank)
        attributes = {"kernel": kernel, "stride": stride, "padding": window.value.padding}
        return [(f"{kind}Pooling{window.rank}D", attributes)]

    return pooled


def _adaptively_pooled(function: str) -> Callable[[Window], list[Operation] | None]:
    return lambda window: [("AdaptivePooling", {"size": window.shape[1:], "function": function})]


def _resized(window: Window) -> list[Operation] | None:
    value, mode = window.value, _MODES.get(getattr(window.value, "interpolation", "nearest"))
    crops = getattr(value, "crop_to_aspect_ratio", False) or getattr(value, "pad_to_aspect_ratio", False)
    return None if mode is None or crops else [("Resize", {"size": window.shape[1:], "mode": mode})]


def _cropped_to_centre(window: Window) -> list[Operation] | None:
    """Return the middle of a larger image."""
    over = [before - after for before, after in zip(window.inputs[1:], window.shape[1:], strict=True)]
    cropping = [side for each in over for side in (each // 2, each - each // 2)]
    return [("Cropping2D", {"cropping": cropping})] if min(over) >= 0 else None


def trained(layer: Any) -> dict[str, Any]:
    """Return whether a layer has a bias, and the name of its activation, None for none."""
    return {"bias": bool(getattr(layer, "use_bias", True)), "activation": activation_of(layer)}


def activation_of(layer: Any) -> str | None:
    """Return the name that Keras gives an activation, None for none."""
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__)
    return None if name == "linear" else name


# Translators of windows by the name of the operation; that of the layer counts the axes, too.
OPERATIONS: dict[str, Callable[[Window], list[Operation] | None]] = {
    "Conv": _convolution,
    "DepthwiseConv": _depthwise,
    "SeparableConv": _separable,
    "ConvTranspose": _transposed,
    "MaxPool": _pooled("Max"),
    "AveragePool": _pooled("Average"),
    "AdaptiveMaxPool": _adaptively_pooled("max"),
    "AdaptiveAveragePool": _adaptively_pooled("mean"),
    "Resize": _resized,
}
_LAYERS = {
    **{f"{name.replace('Pool', 'Pooling')}{{}}D": convert for name, convert in OPERATIONS.items()},
    "Conv{}DTranspose": _transposed,
    "UpSampling{}D": _resized,
}
WINDOWS: dict[str, Callable[[Window], list[Operation] | None]] = {
    **{name.format(rank): convert for name, convert in _LAYERS.items() for rank in (1, 2, 3)},
    "Resizing": _resized,
    "CenterCrop": _cropped_to_centre,
}
