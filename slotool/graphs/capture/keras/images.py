"""Images among ``keras.ops``: patches, blocks of pixels, frames. Their channels are last, as Keras has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step, Steps
from slotool.graphs.capture.keras.call import Call, one


def _patches(call: Call) -> Steps:
    """Patches of an image, each as one row of features: side by side a view, else windows, of which each is written."""
    operation = call.operation
    (height, width), stride = _pair(operation.size), _pair(operation.strides or operation.size)
    if len(call.inputs[0]) != 3 or operation.data_format != "channels_last" or len(call.shape) != 3:
        return None
    (rows, columns, _), channels = call.shape, call.inputs[0][2]
    if stride == (height, width) and (rows * height, columns * width) == call.inputs[0][:2]:
        return [
            ("parted", "Reshape", {"shape": (rows, height, columns, width, channels)}, (0,)),
            ("turned", "Transpose", {"axes": (0, 2, 1, 3, 4)}, ("parted",)),
            (OUTPUT, "Reshape", {"shape": call.shape}, ("turned",)),
        ]
    window = {"kernel": (height, width), "stride": stride, "padding": operation.padding}
    return [
        ("turned", "Transpose", {"axes": (2, 0, 1)}, (0,)),
        ("windows", "Unfold", {**window, "dilation": operation.dilation_rate}, ("turned",)),
        ("parted", "Reshape", {"shape": (channels, height * width, rows * columns)}, ("windows",)),
        ("ordered", "Transpose", {"axes": (2, 1, 0)}, ("parted",)),
        (OUTPUT, "Reshape", {"shape": call.shape}, ("ordered",)),
    ]


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _blocks(call: Call) -> Steps:
    """Channels as blocks of pixels (``depth_to_space``), or the other way."""
    size, apart = call.operation.block_size, type(call.operation).__name__ == "DepthToSpace"
    if call.operation.data_format != "channels_last":
        return None
    height, width, channels = call.inputs[0] if apart else call.shape
    kept = channels // size**2
    parted = (height, width, size, size, kept) if apart else (height, size, width, size, kept)
    return [
        ("parted", "Reshape", {"shape": parted}, (0,)),
        ("turned", "Transpose", {"axes": (0, 2, 1, 3, 4)}, ("parted",)),
        (OUTPUT, "Reshape", {"shape": call.shape}, ("turned",)),
    ]


def _grey(call: Call) -> Steps:
    if call.operation.data_format != "channels_last" or call.inputs[0][-1] == 1:
        return None
    return [("shares", "Constant", {"shape": (3, 1)}, ()), (OUTPUT, "MatMul", {}, (0, "shares"))]


def _framed(call: Call) -> Steps:
    """Zeros around an image, or its edges cut off."""
    operation = call.operation
    if operation.data_format != "channels_last":
        return None
    cut = type(operation).__name__ == "CropImages"
    sides = (("top", "bottom"), ("left", "right"))
    before, steps = [], list[Step]()
    for axis, (first, second) in enumerate(sides):
        lead, rest = (getattr(operation, f"{side}_{'cropping' if cut else 'padding'}") for side in (first, second))
        change = abs(call.shape[axis] - call.inputs[0][axis])
        before.append(change - rest if lead is None else lead)
    if not cut:
        after = [call.shape[axis] - call.inputs[0][axis] - before[axis] for axis in range(2)]
        return [one("Pad", pads=(*before, 0, *after, 0))]
    for axis, start in enumerate(before):
        part = {"axis": axis, "start": start, "size": call.shape[axis]}
        steps.append((OUTPUT if axis else "rows", "Slice", part, ("rows" if axis else 0,)))
    return steps


OPERATIONS: dict[str, Callable[[Call], Steps]] = {
    "ExtractPatches": _patches,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _blocks),
    "RGBToGrayscale": _grey,
    **dict.fromkeys(("CropImages", "PadImages"), _framed),
}
