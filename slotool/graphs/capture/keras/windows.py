"""Windows in Keras over one, two or three axes, as layers and among ``keras.ops``: convolutions, pooling, resizing.

They are operators of values with their channels first. Images have these first here anyhow; sequences and volumes,
whose channels Keras has last, are turned before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps
from slotool.graphs.capture.keras.operations import Call
from slotool.graphs.operators import Shape, sides

# An operator and its attributes, of values with their channels first.
Window = tuple[str, dict[str, Any]]
_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def around(window: Window, rank: int, pads: Sequence[int] = ()) -> list[Step]:
    """A window of values of so many axes whose channels are last: these are turned first, and back again. ``pads`` are
    added before and after each axis first, as ``Pad`` has them."""
    first, last = (rank - 1, *range(rank - 1)), (*range(1, rank), 0)
    padded: list[Step] = [("padded", "Pad", {"pads": tuple(pads)}, ("turned",))] if any(pads) else []
    return [
        ("turned", "Transpose", {"axes": first}, (0,)),
        *padded,
        ("window", *window, ("padded" if padded else "turned",)),
        (OUTPUT, "Transpose", {"axes": last}, ("window",)),
    ]


def window_of(call: Call) -> Window | None:
    """What an operation is of one array with its channels first; None where it is no window, or of a kernel that is not
    the same for every example."""
    known = OPERATIONS.get(type(call.operation).__name__)
    return None if known is None or call.fixed[0] or not all(call.fixed[1:]) else known(call)


def has_channels_last(value: Any) -> bool:
    """Of a layer or an operation: said by itself, or else by Keras' configuration."""
    import keras

    return str(getattr(value, "data_format", None) or keras.config.image_data_format()) == "channels_last"


def _channels(call: Call) -> int:
    return call.inputs[0][-1 if has_channels_last(call.operation) else 0]


def _spatial(shape: Shape, value: Any) -> Shape:
    return shape[:-1] if has_channels_last(value) else shape[1:]


def _kernel(call: Call) -> Shape:
    """With all its axes, also one of a first axis of 1, which counts for no batch."""
    return tuple(call.arguments[1].shape)


def _stepping(value: Any, rank: int) -> dict[str, Any]:
    """Of a layer or an operation that convolves."""
    return {
        "stride": sides(value.strides, rank),
        "dilation": sides(value.dilation_rate, rank),
        "padding": value.padding,
    }


def _convolved(call: Call) -> Window:
    *window, channels, filters = _kernel(call)
    given = {"filters": filters, "kernel": tuple(window), "groups": _channels(call) // channels, "bias": False}
    return f"Conv{len(window)}D", {**given, **_stepping(call.operation, len(window))}


def _depthwise_convolved(call: Call) -> Window:
    *window, channels, multiplier = _kernel(call)
    given = {"kernel": tuple(window), "bias": False, **_stepping(call.operation, len(window))}
    if len(window) == 2:
        return "DepthwiseConv2D", {"multiplier": multiplier, **given}
    return f"Conv{len(window)}D", {"filters": channels * multiplier, "groups": channels, **given}


def _separably_convolved(call: Call) -> Window | None:
    *window, _, multiplier = _kernel(call)
    given = {"kernel": tuple(window), "bias": False, **_stepping(call.operation, len(window))}
    filters = call.arguments[2].shape[-1]
    return ("SeparableConv2D", {"filters": filters, "multiplier": multiplier, **given}) if len(window) == 2 else None


def _transposed_of(call: Call) -> Window:
    *window, filters, _ = _kernel(call)
    operation = call.operation
    given = _spreading(operation, tuple(window), _spatial(call.inputs[0], operation), _spatial(call.shape, operation))
    return f"Conv{len(window)}DTranspose", {"filters": filters, "bias": False, **given}


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
    mode, kept = _MODES.get(operation.interpolation), operation.crop_to_aspect_ratio or operation.pad_to_aspect_ratio
    return None if mode is None or kept else ("Resize", {"size": _spatial(call.shape, operation), "mode": mode})


def _spreading(value: Any, kernel: Shape, size: Shape, wanted: Shape) -> dict[str, Any]:
    """Of a transposed convolution. Padding and what is added at the end follow from the sizes: Keras says only 'same'
    or 'valid'."""
    stride, dilation = sides(value.strides, len(kernel)), sides(value.dilation_rate, len(kernel))
    padding, extra = [], []
    for length, made, reach, step, spread in zip(size, wanted, kernel, stride, dilation, strict=True):
        over = (length - 1) * step + (reach - 1) * spread + 1 - made
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
    """A window along steps of each channel, then the channels mixed."""
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
    """Images come with their channels first."""
    rank, kernel = layer.rank, tuple(layer.kernel_size)
    given = {"filters": layer.filters, **trained(layer)}
    if rank == 2:
        window = {**given, **_spreading(layer, kernel, inputs[0][1:], shape[1:])}
        return [("output", "Conv2DTranspose", window, (0,))]
    window = {**given, **_spreading(layer, kernel, inputs[0][:-1], shape[:-1])}
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
    """Of an image, or of steps or a volume, which are repeated."""
    if len(shape) == 3:
        mode = _MODES.get(layer.interpolation)
        return None if mode is None else [("output", "Resize", {"size": shape[1:], "mode": mode}, (0,))]
    window: Window = ("Resize", {"size": shape[:-1], "mode": "nearest"})
    return around(window, len(shape))


def _padded(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Steps or a volume."""
    pairs = layer.padding if isinstance(layer.padding[0], list | tuple) else (layer.padding,)
    pads = (*(before for before, _ in pairs), 0, *(after for _, after in pairs), 0)
    return [("output", "Pad", {"pads": pads}, (0,))]


def _cropped(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Steps or a volume, axis by axis."""
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
    mode, kept = _MODES.get(layer.interpolation), layer.crop_to_aspect_ratio or layer.pad_to_aspect_ratio
    return None if mode is None or kept else [("output", "Resize", {"size": shape[1:], "mode": mode}, (0,))]


def _centre(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """The middle of an image that is larger."""
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
