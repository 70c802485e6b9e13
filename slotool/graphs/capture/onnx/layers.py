"""ONNX operators that are layers in terms of ours: windows over images, sequences and volumes, and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Operation, Step, Steps
from slotool.graphs.capture.onnx.calls import Batched, Call, Chain
from slotool.graphs.capture.onnx.reading import Constant
from slotool.graphs.operators import padding_around

# The most axes of a convolution of ours.
MAX_WINDOW_AXES = 3
# Axes of the states of a recurrent layer after every step: theirs have steps first, then directions and the batch.
SEQUENCE_RANK = 4


def _convolution(call: Call) -> Chain:
    folded, is_image = call.first.windows > 1, call.is_plain and len(call.first.example) == 3
    weight, rank = call.constants.get(1), len(call.first.example) - 1 - folded
    if weight is None or len(weight.shape) != rank + 2 or rank not in (1, 2, 3):
        return None
    (filters, _, *kernel), groups = weight.shape, call.attribute("group", 1)
    window = {"kernel": kernel, "bias": call.has(2), **_moved(call, rank)}
    padding, zeros = _padding(call, window, rank), list[Operation]()
    if padding is None and is_image:
        padding, zeros = "valid", [("ZeroPadding2D", {"padding": _around_image(call, window)})]
    if padding is None:
        return None
    window["padding"] = padding
    if is_image and 1 < groups == call.inputs[0][0]:
        return [*zeros, ("DepthwiseConv2D", {**window, "multiplier": filters // groups})]
    attributes = {**window, "filters": filters, "groups": groups}
    return _over_windows(call.first, attributes) if folded else [*zeros, (f"Conv{rank}D", attributes)]


def _moved(call: Call, rank: int) -> dict[str, Any]:
    """Return how the window of a convolution moves."""
    return {"stride": call.attribute("strides", [1] * rank), "dilation": call.attribute("dilations", [1] * rank)}


def _padding(call: Call, window: dict[str, Any], rank: int) -> Any:
    """Return zeros as ours: 'same', or as many on both sides of each axis; None where they are neither."""
    way, pads = call.attribute("auto_pad", "NOTSET"), call.attribute("pads", [0] * 2 * rank)
    if way == "SAME_UPPER":
        return "same"
    if way in ("NOTSET", "VALID") and pads[:rank] == pads[rank:]:
        return pads[:rank]
    if rank != 2 or not call.is_plain:
        return None
    around = _around_image(call, window)
    if around[::2] == around[1::2]:
        return around[::2]
    return "same" if around == padding_around({**window, "padding": "same"}, call.inputs[0]) else None


def _around_image(call: Call, window: dict[str, Any]) -> tuple[int, ...]:
    """Return the zeros (top, bottom, left, right) that a window of an image adds."""
    if call.attribute("auto_pad", "NOTSET") == "SAME_LOWER":
        top, bottom, left, right = padding_around({**window, "padding": "same"}, call.inputs[0])
        return bottom, top, right, left
    top, left, bottom, right = call.attribute("pads", [0, 0, 0, 0])
    return top, bottom, left, right


def _over_windows(value: Batched, attributes: dict[str, Any]) -> Chain:
    """Over windows that are folded with the batch: as one more axis, along which nothing is summed."""
    rank = len(value.example) - 1
    if value.axis != 0 or rank > MAX_WINDOW_AXES or isinstance(attributes["padding"], str):
        return None
    more = {name: [1, *attributes[name]] for name in ("kernel", "stride", "dilation")}
    folded = {**attributes, **more, "padding": [0, *attributes["padding"]]}
    turned = {"axes": (1, 0, *range(2, rank + 1))}
    return [("Transpose", turned), (f"Conv{rank}D", folded), ("Transpose", turned)]


def _transposed(call: Call) -> Chain:
    weight, rank = call.constants.get(1), len(call.first.example) - 1
    if weight is None or len(weight.shape) != rank + 2 or rank not in (1, 2, 3):
        return None
    (_, filters, *kernel), groups = weight.shape, call.attribute("group", 1)
    window = {"kernel": kernel, "bias": call.has(2), **_moved(call, rank)}
    padding, extra = _padding(call, window, rank), call.attribute("output_padding", [0] * rank)
    if padding is None or padding == "same":
        return None
    more = {"filters": filters * groups, "groups": groups, "padding": padding, "output_padding": extra}
    return [(f"Conv{rank}DTranspose", {**window, **more})]


def _fold(call: Call) -> Chain:
    """Return columns added up into images, with size and windows as inputs."""
    size, kernel, pads = call.numbers(1), call.numbers(2), call.attribute("pads", [0] * 4)
    if size is None or kernel is None or [len(size), len(kernel), len(pads)] != [2, 2, 4]:
        return None
    if pads[:2] != pads[2:]:
        return None
    return [("Fold", {"size": size, "kernel": kernel, "padding": pads[:2], **_moved(call, 2)})]


def _pool(kind: str) -> Callable[[Call], Chain]:
    def pool(call: Call) -> Chain:
        rank, ceil = len(call.first.example) - 1, bool(call.attribute("ceil_mode", 0))
        if rank not in (1, 2, 3):
            return None
        window = {"kernel": call.attribute("kernel_shape"), "stride": call.attribute("strides", [1] * rank)}
        padding = _padding(call, window, rank)
        if padding is None:
            return None
        if call.is_plain and rank == 2 and ceil and padding != "same" and not any(padding):
            # A window that hangs over the end counts: as 'same' pads there, or not at all.
            strides = zip(call.inputs[0][1:], window["stride"], strict=True)
            if call.shape[1:] == tuple(-(-size // step) for size, step in strides):
                padding, ceil = "same", False
        attributes = {**window, "padding": padding, "ceil": ceil}
        if kind == "Max":
            attributes["dilation"] = call.attribute("dilations", [1] * rank)
        elif padding == "same" or any(padding):
            attributes["count_padding"] = bool(call.attribute("count_include_pad", 0))
        return [(f"{kind}Pooling{rank}D", attributes)]

    return pool


def _global_pool(op: str, pooling: str) -> Callable[[Call], Chain]:
    def pool(call: Call) -> Chain:
        if call.is_plain and len(call.first.example) == 3:
            return [(pooling, {"keepdims": True})]
        return [(op, {"axes": [*range(1, len(call.first.example))], "keepdims": True})]

    return pool


def _resize(call: Call) -> Chain:
    before, shape = call.first.example, call.output.example
    if len(before) != len(shape) or before[:1] != shape[:1]:
        return None
    mode = call.attribute("mode", "nearest")
    return [] if before == shape else [("Resize", {"size": shape[1:], "mode": mode})]


def _recurrent(op: str) -> Callable[[Call], Chain]:
    def recurrent(call: Call) -> Chain:
        weight, value = call.constants.get(1), call.values.get(0)
        if value is None or weight is None or len(weight.shape) != 3 or len(value.shape) != 3:
            return None
        units, steps = call.attribute("hidden_size", 0), value.example[0]
        directions, bias = weight.shape[0], call.constants.get(3, Constant(())).weights > 0
        layer = {"units": units, "bidirectional": directions == 2, "bias": bias}
        chain: list[Operation] = [(op, layer)]
        if value.windows > 1:
            return _of_several(call, chain, value, directions) if value.axis == 1 and len(call.values) == 1 else None
        if len(call.output.shape) < SEQUENCE_RANK:
            chain.append(("Slice", {"axis": 0, "start": steps - 1, "size": 1}))
        if call.output.example != (steps, directions * units):
            chain.append(("Reshape", {"shape": call.output.example}))
        return chain

    return recurrent


def _of_several(call: Call, layer: list[Operation], value: Batched, directions: int) -> Chain:
    """Over several sequences of each example, which ours has before their steps."""
    (steps, sequences, _), units = value.example, call.attribute("hidden_size", 0)
    begin: list[Operation] = [("Transpose", {"axes": (1, 0, 2)}), *layer]
    if len(call.output.shape) == SEQUENCE_RANK:
        every = ("Reshape", {"shape": (sequences, steps, directions, units)})
        return [*begin, every, ("Transpose", {"axes": (1, 2, 0, 3)})]
    last = ("Slice", {"axis": 1, "start": steps - 1, "size": 1})
    ends = ("Reshape", {"shape": (sequences, directions, units)})
    return [*begin, last, ends, ("Transpose", {"axes": (1, 0, 2)})]


def deformable_convolution(call: Call) -> Steps:
    """Return a convolution as torchvision computes it: values at offsets, perhaps masked, then a product."""
    weight, groups = call.constants.get(1), call.attribute("group", 1)
    if weight is None or len(weight.shape) != 4 or not call.is_plain or call.attribute("offset_group", 1) != 1:
        return None
    (channels, *_), (filters, *size) = call.inputs[0], call.output.example
    places = math.prod(weight.shape[2:])
    grid = (places * size[0], size[1], 2)
    steps: list[Step] = [
        ("places", "Reshape", {"shape": grid}, (1,)),
        ("sampled", "GridSample", {}, (0, "places")),
        ("columns", "Reshape", {"shape": (channels, places, *size)}, ("sampled",)),
    ]
    if call.has(4):
        steps.append(("masked", "Multiply", {}, ("columns", 2)))
    last = {"filters": filters, "kernel": 1, "groups": groups, "bias": call.has(3)}
    flat = {"shape": (channels * places, *size)}
    return [*steps, ("joined", "Reshape", flat, (steps[-1][0],)), (OUTPUT, "Conv2D", last, ("joined",))]


LAYERS: dict[str, Callable[[Call], Chain]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool("Max"),
    "AveragePool": _pool("Average"),
    "GlobalAveragePool": _global_pool("Mean", "GlobalAveragePooling2D"),
    "GlobalMaxPool": _global_pool("Max", "GlobalMaxPooling2D"),
    "Col2Im": _fold,
    "Resize": _resize,
    "LSTM": _recurrent("LSTM"),
    "GRU": _recurrent("GRU"),
    "RNN": _recurrent("SimpleRNN"),
}
