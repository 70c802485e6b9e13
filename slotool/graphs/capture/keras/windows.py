"""Windows in Keras over one, two or three axes, as layers and among ``keras.ops``: convolutions, pooling, resizing.

They are operators of values with their channels first. Images have these first here anyhow; sequences and volumes,
whose channels Keras has last, are turned before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps
from slotool.graphs.capture.keras.operations import Call
from slotool.graphs.libraries import keras
from slotool.graphs.operators import Shape, sides

# An operator and its attributes, of values with their channels first.
Window = tuple[str, dict[str, Any]]
_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def around(window: Window, rank: int, pads: Sequence[int] = ()) -> list[Step]:
    """Return a window on values with channels last, transposed before and after.

    ``pads`` are added before and after each axis first, as for ``Pad``.
    """
    first, last = (rank - 1, *range(rank - 1)), (*range(1, rank), 0)
    padded: list[Step] = [("padded", "Pad", {"pads": tuple(pads)}, ("turned",))] if any(pads) else []
    return [
        ("turned", "Transpose", {"axes": first}, (0,)),
        *padded,
        ("window", *window, ("padded" if padded else "turned",)),
        (OUTPUT, "Transpose", {"axes": last}, ("window",)),
    ]


def window_of(call: Call) -> Window | None:
    """Return an operation as a window on one array with channels first.

    None if it is no window, or its kernel differs by example.
    """
    convert = OPERATIONS.get(type(call.operation).__name__)
    return None if convert is None or call.fixed[0] or not all(call.fixed[1:]) else convert(call)


def has_channels_last(value: Any) -> bool:
    """True if a layer or operation, or else Keras' configuration, has channels last."""
    return str(getattr(value, "data_format", None) or keras.config.image_data_format()) == "channels_last"


def _channels(call: Call) -> int:
    return call.inputs[0][-1 if has_channels_last(call.operation) else 0]


def _spatial(shape: Shape, value: Any) -> Shape:
    return shape[:-1] if has_channels_last(value) else shape[1:]


def _kernel(call: Call) -> Shape:
    """Return the kernel's shape with all its axes, also a first one of 1, which is no batch."""
    return tuple(call.arguments[1].shape)


def _stepping(value: Any, rank: int) -> dict[str, Any]:
    """Return the attributes of a layer or operation that convolves."""
    return {
        "stride": sides(value.strides, rank),
        "dilation": sides(value.dilation_rate, rank),
        "padding": value.padding,
    }


def _convolved(call: Call) -> Window:
    *window, channels, filters = _kernel(call)
    attributes = {"filters": filters, "kernel": tuple(window), "groups": _channels(call) // channels, "bias": False}
    return f"Conv{len(window)}D", {**attributes, **_stepping(call.operation, len(window))}


def _depthwise_convolved(call: Call) -> Window:
    *window, channels, multiplier = _kernel(call)
    attributes = {"kernel": tuple(window), "bias": False, **_stepping(call.operation, len(window))}
    if len(window) == 2:
        return "DepthwiseConv2D", {"multiplier": multiplier, **attributes}
    return f"Conv{len(window)}D", {"filters": channels * multiplier, "groups": channels, **attributes}


def _separably_convolved(call: Call) -> Window | None:
    *window, _, multiplier = _kernel(call)
    attributes = {"kernel": tuple(window), "bias": False, **_stepping(call.operation, len(window))}
    filters = call.arguments[2].shape[-1]
    return (
        ("SeparableConv2D", {"filters": filters, "multiplier": multiplier, **attributes}) if len(window) == 2 else None
    )


def _transposed_of(call: Call) -> Window:
    *window, filters, _ = _kernel(call)
    operation = call.operation
    attributes = _spreading(
        operation, tuple(window), _spatial(call.inputs[0], operation), _spatial(call.shape, operation)
    )
    return f"Conv{len(window)}DTranspose", {"filters": filters, "bias": False, **attributes}


def _pooled(kind: str) -> Callable[[Call], Window]:
    def window(call: Call) -> Window:
        rank, operation = len(call.inputs[0]) - 1, call.operation
        kernel = sides(operation.pool_size, rank)
        stride = sides(operation.strides or kernel, rank)
        return f"{kind}Pooling{rank}D", {"kernel": kernel, "stride": stride, "padding": operation.padding}

    return window


def _adaptively_pooled(function: str) -> Callable[[Call], Window]:
    return lambda call: ("AdaptivePooling", {"size": _spatial(call.shape, call.operation), "function": function})


def _resized(call: Call) -> Window | None:
    operation = call.operation
    mode, crops = _MODES.get(operation.interpolation), operation.crop_to_aspect_ratio or operation.pad_to_aspect_ratio
    return None if mode is None or crops else ("Resize", {"size": _spatial(call.shape, operation), "mode": mode})


def _spreading(value: Any, kernel: Shape, size: Shape, outputs: Shape) -> dict[str, Any]:
    """Return the attributes of a transposed convolution; its padding follows from the sizes.

    Keras states only 'same' or 'valid'.
    """
    stride, dilation = sides(value.strides, len(kernel)), sides(value.dilation_rate, len(kernel))
    padding, extra = [], []
    for length, output, reach, step, spread in zip(size, outputs, kernel, stride, dilation, strict=True):
        over = (length - 1) * step + (reach - 1) * spread + 1 - output
        side = max(0, -(-over // 2))
        padding.append(side)
        extra.append(2 * side - over)
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "padding": padding, "output_padding": extra}


def trained(layer: Any) -> dict[str, Any]:
    """Return whether a layer has a bias, and the name of its activation, None for none."""
    return {"bias": bool(getattr(layer, "use_bias", True)), "activation": activation_of(layer)}


def activation_of(layer: Any) -> str | None:
    """Return the name that Keras gives an activation, None for none."""
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__)
    return None if name == "linear" else name


def _convolution(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Over steps or a volume."""
    if layer.padding not in ("same", "valid", "causal"):
        return None
    rank = layer.rank
    window = {
        **({"filters": layer.filters, "groups": layer.groups} if hasattr(layer, "groups") else {}),
        "kernel": tuple(layer.kernel_size),
        **_stepping(layer, rank),
        **trained(layer),
    }
    if "filters" not in window:
        channels = inputs[0][-1]
        window |= {"filters": channels * layer.depth_multiplier, "groups": channels}
    pads: tuple[int, ...] = ()
    if layer.padding == "causal":
        window["padding"] = "valid"
        pads = (0, window["dilation"][0] * (layer.kernel_size[0] - 1), 0, 0)
    return around((f"Conv{rank}D", window), rank + 1, pads)


def _separable1d(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a window along steps of each channel, then the channels mixed."""
    if layer.padding not in ("same", "valid"):
        return None
    channels = inputs[0][-1]
    along = {
        "filters": channels * layer.depth_multiplier,
        "groups": channels,
        "kernel": tuple(layer.kernel_size),
        "bias": False,
        **_stepping(layer, 1),
    }
    return [
        ("turned", "Transpose", {"axes": (1, 0)}, (0,)),
        ("window", "Conv1D", along, ("turned",)),
        ("mixed", "Conv1D", {"filters": layer.filters, "kernel": 1, **trained(layer)}, ("window",)),
        ("output", "Transpose", {"axes": (1, 0)}, ("mixed",)),
    ]


def _transposed(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a transposed convolution of images with channels first."""
    rank, kernel = layer.rank, tuple(layer.kernel_size)
    attributes = {"filters": layer.filters, **trained(layer)}
    if rank == 2:
        window = {**attributes, **_spreading(layer, kernel, inputs[0][1:], shape[1:])}
        return [("output", "Conv2DTranspose", window, (0,))]
    window = {**attributes, **_spreading(layer, kernel, inputs[0][:-1], shape[:-1])}
    return around((f"Conv{rank}DTranspose", window), rank + 1)


def _pool(layer: Any, inputs: Sequence[Shape], _: Shape, __: dict[str, Any]) -> Steps:
    """Over steps or a volume."""
    window = {"kernel": tuple(layer.pool_size), "stride": tuple(layer.strides), "padding": layer.padding}
    return around((type(layer).__name__, window), len(inputs[0]))


def _global_pool(op: str) -> Callable[..., Steps]:
    """Over steps or a volume."""

    def pool(layer: Any, inputs: Sequence[Shape], *_: object) -> Steps:
        return [("output", op, {"axes": tuple(range(len(inputs[0]) - 1)), "keepdims": bool(layer.keepdims)}, (0,))]

    return pool


def _upsampling(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return an upsampling of an image, or repeated steps or volumes."""
    if len(shape) == 3:
        mode = _MODES.get(layer.interpolation)
        return None if mode is None else [("output", "Resize", {"size": shape[1:], "mode": mode}, (0,))]
    window: Window = ("Resize", {"size": shape[:-1], "mode": "nearest"})
    return around(window, len(shape))


def _padded(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return the steps or a volume."""
    pairs = layer.padding if isinstance(layer.padding[0], list | tuple) else (layer.padding,)
    pads = (*(before for before, _ in pairs), 0, *(after for _, after in pairs), 0)
    return [("output", "Pad", {"pads": pads}, (0,))]


def _cropped(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return the steps or a volume, axis by axis."""
    pairs = layer.cropping if isinstance(layer.cropping[0], list | tuple) else (layer.cropping,)
    steps: list[Step] = []
    for axis, (before, _) in enumerate(pairs):
        name = "output" if axis == len(pairs) - 1 else f"part{axis}"
        part = {"axis": axis, "start": before, "size": shape[axis]}
        steps.append((name, "Slice", part, (steps[-1][0] if steps else 0,)))
    return steps


def _adaptive(function: str) -> Callable[..., Steps]:
    def pool(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
        image = len(shape) == 3
        window: Window = ("AdaptivePooling", {"size": shape[1:] if image else shape[:-1], "function": function})
        return [("output", *window, (0,))] if image else around(window, len(shape))

    return pool


def _resizing(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    mode, crops = _MODES.get(layer.interpolation), layer.crop_to_aspect_ratio or layer.pad_to_aspect_ratio
    return None if mode is None or crops else [("output", "Resize", {"size": shape[1:], "mode": mode}, (0,))]


def _centre(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return the middle of a larger image."""
    over = [before - after for before, after in zip(inputs[0][1:], shape[1:], strict=True)]
    cropping = [side for each in over for side in (each // 2, each - each // 2)]
    return [("output", "Cropping2D", {"cropping": cropping}, (0,))] if min(over) >= 0 else None


WINDOWS: dict[str, Callable[..., Steps]] = {
    **dict.fromkeys(("Conv1D", "Conv3D", "DepthwiseConv1D"), _convolution),
    "SeparableConv1D": _separable1d,
    **{f"Conv{rank}DTranspose": _transposed for rank in (1, 2, 3)},
    **{f"{kind}Pooling{rank}D": _pool for kind in ("Max", "Average") for rank in (1, 3)},
    **{f"GlobalAveragePooling{rank}D": _global_pool("Mean") for rank in (1, 3)},
    **{f"GlobalMaxPooling{rank}D": _global_pool("Max") for rank in (1, 3)},
    **{f"UpSampling{rank}D": _upsampling for rank in (1, 2, 3)},
    **{f"ZeroPadding{rank}D": _padded for rank in (1, 3)},
    **{f"Cropping{rank}D": _cropped for rank in (1, 3)},
    **{f"AdaptiveAveragePooling{rank}D": _adaptive("mean") for rank in (1, 2, 3)},
    **{f"AdaptiveMaxPooling{rank}D": _adaptive("max") for rank in (1, 2, 3)},
    "Resizing": _resizing,
    "CenterCrop": _centre,
}
OPERATIONS: dict[str, Callable[[Call], Window | None]] = {
    "Conv": _convolved,
    "DepthwiseConv": _depthwise_convolved,
    "SeparableConv": _separably_convolved,
    "ConvTranspose": _transposed_of,
    "MaxPool": _pooled("Max"),
    "AveragePool": _pooled("Average"),
    "AdaptiveMaxPool": _adaptively_pooled("max"),
    "AdaptiveAveragePool": _adaptively_pooled("mean"),
    "Resize": _resized,
}
