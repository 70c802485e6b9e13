"""ONNX operators in terms of ours: one entry per operator, for every version of it that still is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.onnx_reading import Constant, Node
from slotool.graphs.operators import Shape, per_channel, stretches_as, window_padding

# What a node is: an operator and its attributes, or SAME when its output is its input, or None when we do not know.
Translated = tuple[str, dict[str, Any]] | None
SAME: Translated = ("", {})
# In the attributes of a convolution: zeros (top, bottom, left, right) that it has no padding of its own for.
AROUND = "around"
FAR = 1 << 31


@dataclass(frozen=True)
class NodeCall:
    """One node. Shapes are without the batch, channels first even where the model has them last (``channels_last``).

    ``inputs`` are the shapes of the values that depend on the network's input; ``constants`` the others, by position.
    """

    node: Node
    inputs: tuple[Shape, ...]
    shape: Shape
    constants: Mapping[int, Constant]
    opset: int
    channels_last: bool = False

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def values(self, position: int, name: str) -> list[Any] | None:
        """What newer versions of an operator take as a constant input and older ones as an attribute; None: neither."""
        if name in self.node.attributes:
            value = self.node.attributes[name]
            return list(value) if isinstance(value, list) else [value]
        constant = self.constants.get(position)
        return None if constant is None or constant.values is None else list(constant.values)

    def has(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def axis(self, number: int) -> int:
        """An axis of the model's input, batch included, as one of (batch, channels, height, width)."""
        rank = len(self.inputs[0]) + 1
        number %= rank
        return (0, 2, 3, 1)[number] if self.channels_last and rank == 4 else number

    def on_channels(self, number: int) -> bool:
        """Whether an axis is what normalisation and softmax work on: channels of an image, else the last."""
        rank = len(self.inputs[0]) + 1
        return self.axis(number) == (1 if rank == 4 else rank - 1)


def translate(call: NodeCall) -> Translated:
    """The operator that a node is."""
    if call.node.op in ACTIVATIONS:
        return "Activation", {"activation": ACTIVATIONS[call.node.op]}
    known = NODES.get(call.node.op)
    return None if known is None else known(call)


def product_flops(call: NodeCall) -> int:
    """FLOPs per example of a matrix product or convolution, for one that is kept by name; 0 for any other node."""
    op, constants, values = call.node.op, call.constants, math.prod(call.shape)
    if op in ("MatMul", "Gemm"):
        if 1 in constants and call.inputs:
            features = constants[1].shape[-1 if call.attribute("transB", 0) else -2 :][0] if constants[1].shape else 0
        elif 0 in constants:
            features = constants[0].shape[-1] if constants[0].shape else 0
        else:
            features = call.inputs[0][-1] if call.inputs and call.inputs[0] else 0
        return 2 * values * features
    if op in ("Conv", "ConvTranspose") and 1 in constants and call.inputs:
        return 2 * math.prod(constants[1].shape[1:]) * (values if op == "Conv" else math.prod(call.inputs[0]))
    return 0


def fourier_flops(call: NodeCall) -> int:
    """FLOPs per example of a Fourier transform as torch's are counted, 5 n log2 n of n complex values and half of them
    where one side is real; 0 of any other node."""
    if call.node.op != "DFT" or not call.inputs or len(call.inputs[0]) < 2:
        return 0
    value, made = call.inputs[0], call.shape
    axis = (call.values(2, "axis") or [-2 if call.opset >= 20 else 1])[0]
    length = max(shape[axis - 1 if axis > 0 else axis] for shape in (value, made))
    complete = 5 * max(math.prod(shape[:-1]) for shape in (value, made)) * math.log2(max(length, 2))
    return round(complete / 2 if 1 in (value[-1], made[-1]) else complete)


def _weight(call: NodeCall) -> Shape | None:
    """Shape of the second input, if it is a constant and the first is not."""
    return call.constants[1].shape if 1 in call.constants and len(call.inputs) == 1 else None


def _gemm(call: NodeCall) -> Translated:
    weight = _weight(call)
    plain = call.attribute("alpha", 1.0) == call.attribute("beta", 1.0) == 1.0 and not call.attribute("transA", 0)
    if weight is None or not plain or len(weight) != 2:
        return None
    return "Dense", {"units": weight[0 if call.attribute("transB", 0) else 1], "bias": call.has(2)}


def _matmul(call: NodeCall) -> Translated:
    weight = _weight(call)
    if weight is None or len(weight) != 2:
        return None
    if call.channels_last:
        # On the channels of an image it is a convolution of one pixel.
        return "Conv2D", {"filters": weight[1], "kernel": 1, "bias": call.has(2)}
    return "Dense", {"units": weight[1], "bias": call.has(2)}


def _conv(call: NodeCall) -> Translated:
    weight = _weight(call)
    if weight is None or len(weight) != 4 or len(call.inputs[0]) != 3:
        return None
    filters, _, *kernel = weight
    channels, groups = call.inputs[0][0], call.attribute("group", 1)
    attributes = {
        "kernel": kernel,
        "stride": call.attribute("strides", [1, 1]),
        "dilation": call.attribute("dilations", [1, 1]),
        "bias": call.has(2),
    }
    attributes |= _padding(call, attributes)
    if 1 < groups == channels:
        return "DepthwiseConv2D", {**attributes, "multiplier": filters // channels}
    return "Conv2D", {**attributes, "filters": filters, "groups": groups}


def _pool(op: str) -> Callable[[NodeCall], Translated]:
    def pool(call: NodeCall) -> Translated:
        kernel = call.attribute("kernel_shape", [])
        if len(kernel) != 2 or len(call.inputs[0]) != 3 or call.attribute("dilations", [1, 1]) != [1, 1]:
            return None
        # Unlike ours, its stride is one unless it is said.
        attributes = {"kernel": kernel, "stride": call.attribute("strides", [1, 1])}
        padding = _padding(call, attributes)
        if AROUND in padding:
            return None
        if call.attribute("ceil_mode", 0) and padding == {"padding": "valid"}:
            # A window that hangs over the end counts: as 'same' pads there, or not at all.
            _, height, width = call.inputs[0]
            strides = zip((height, width), attributes["stride"], strict=True)
            if call.shape[1:] == tuple(-(-size // step) for size, step in strides):
                padding = {"padding": "same"}
        return op, attributes | padding

    return pool


def _padding(call: NodeCall, window: Mapping[str, Any]) -> dict[str, Any]:
    """Padding as ours: 'valid', 'same', as much on opposite sides; or ``AROUND`` where it is none of these."""
    same = window_padding({**window, "padding": "same"}, call.inputs[0])
    way = call.attribute("auto_pad", "NOTSET")
    top, left, bottom, right = call.attribute("pads", [0, 0, 0, 0])
    around = {
        "NOTSET": (top, bottom, left, right),
        "SAME_UPPER": same,
        "SAME_LOWER": (same[1], same[0], same[3], same[2]),
    }.get(way, (0, 0, 0, 0))
    if not any(around):
        return {"padding": "valid"}
    if around == same:
        return {"padding": "same"}
    if around[0] == around[1] and around[2] == around[3]:
        return {"padding": (around[0], around[2])}
    return {"padding": "valid", AROUND: around}


def _global_pool(kind: str) -> Callable[[NodeCall], Translated]:
    def pool(call: NodeCall) -> Translated:
        return (f"Global{kind}Pooling2D", {"keepdims": True}) if len(call.inputs[0]) == 3 else None

    return pool


def _reduction(kind: str) -> Callable[[NodeCall], Translated]:
    def reduction(call: NodeCall) -> Translated:
        axes = sorted(call.axis(axis) for axis in call.values(1, "axes") or ())
        if len(call.inputs[0]) != 3 or axes != [2, 3]:
            return None
        return f"Global{kind}Pooling2D", {"keepdims": bool(call.attribute("keepdims", 1))}

    return reduction


def _batch_norm(call: NodeCall) -> Translated:
    """A scale or shift with no weights behind it, one number repeated, was never trained."""
    if len(call.inputs[0]) not in (1, 3) or not all(position in call.constants for position in range(1, 5)):
        return None
    return "BatchNormalization", {"scale": call.constants[1].weights > 0, "center": call.constants[2].weights > 0}


def _layer_norm(call: NodeCall) -> Translated:
    axis = call.attribute("axis", -1)
    if not call.on_channels(axis) or axis % (len(call.inputs[0]) + 1) != len(call.inputs[0]) or 1 not in call.constants:
        return None
    centred = 2 in call.constants and call.constants[2].weights > 0
    return "LayerNormalization", {"scale": call.constants[1].weights > 0, "center": centred}


def _reshape(call: NodeCall) -> Translated:
    if call.shape == call.inputs[0]:
        return SAME
    if math.prod(call.shape) != math.prod(call.inputs[0]):
        return None
    return ("Flatten", {}) if len(call.shape) == 1 else ("Reshape", {"shape": call.shape})


def _combine(op: str) -> Callable[[NodeCall], Translated]:
    def combine(call: NodeCall) -> Translated:
        if not call.constants:
            return op, {}
        return _rescale(call)

    return combine


def _multiply(call: NodeCall) -> Translated:
    """By one trained number per channel it is a LayerScale."""
    factors = [constant for constant in call.constants.values() if not constant.single]
    trained = len(factors) == 1 and factors[0].weights == math.prod(factors[0].shape)
    if len(call.inputs) == 1 and trained and call.shape == call.inputs[0]:
        wanted = call.shape[:1] if call.channels_last and len(call.shape) == 3 else per_channel(call.shape)
        if stretches_as(factors[0].shape, wanted):
            return "LayerScale", {}
    return _combine("Multiply")(call)


def _rescale(call: NodeCall) -> Translated:
    """With one number; a constant of more has weights that we cannot place."""
    numbers = all(constant.single for constant in call.constants.values())
    return ("Rescaling", {}) if len(call.inputs) == 1 and numbers and call.shape == call.inputs[0] else None


def _concatenate(call: NodeCall) -> Translated:
    # The first version of the operator had a default.
    joins_all = not call.constants and call.on_channels(call.attribute("axis", 1))
    return ("Concatenate", {}) if joins_all else None


def _softmax(call: NodeCall) -> Translated:
    """Before version 13 all axes from the one said on were flattened, by default all but the batch."""
    rank = len(call.inputs[0]) + 1
    axis = call.attribute("axis", -1 if call.opset >= 13 else 1)
    flattens = call.opset < 13 and axis % rank != rank - 1
    return ("Softmax", {}) if call.on_channels(axis) and not flattens else None


def _pad(call: NodeCall) -> Translated:
    pads, rank = call.values(1, "pads"), len(call.inputs[0]) + 1
    value = call.values(2, "value") or [0]
    if call.attribute("mode", "constant") != "constant" or pads is None or rank != 4 or any(value):
        return None
    axes = [int(axis) % rank for axis in call.values(3, "axes") or range(rank)]
    before, after = [0] * rank, [0] * rank
    for axis, first, last in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[axis], after[axis] = int(first), int(last)
    around = (before[2], after[2], before[3], after[3])
    if before[0] or before[1] or after[0] or after[1]:
        return None
    if not any(around):
        return SAME
    if min(around) >= 0:
        return "ZeroPadding2D", {"padding": around}
    return ("Cropping2D", {"cropping": tuple(-size for size in around)}) if max(around) <= 0 else None


def _slice(call: NodeCall) -> Translated:
    starts, ends = call.values(1, "starts"), call.values(2, "ends")
    if starts is None or ends is None or len(call.inputs[0]) != 3:
        return None
    axes = [int(axis) % 4 for axis in call.values(3, "axes") or range(len(starts))]
    steps = call.values(4, "steps") or [1] * len(starts)
    crop = {2: (0, 0), 3: (0, 0)}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if axis == 0 and (start, step) == (0, 1) and end >= FAR:
            continue
        size = call.inputs[0][axis - 1] if axis else 1
        first, past = (min(max(at + size if at < 0 else at, 0), size) for at in (int(start), int(end)))
        if step != 1 or (axis not in crop and (first, past) != (0, size)):
            return None
        if axis in crop:
            crop[axis] = first, size - past
    around = (*crop[2], *crop[3])
    return ("Cropping2D", {"cropping": around}) if any(around) else SAME


def _clip(call: NodeCall) -> Translated:
    least, most = ((call.values(at, name) or [None])[0] for at, name in ((1, "min"), (2, "max")))
    if least != 0 or (most is None and call.has(2)):
        return None
    if most is None or most > 1e30:
        return "Activation", {"activation": "relu"}
    return ("Activation", {"activation": "relu6"}) if most == 6 else None


def _transpose(call: NodeCall) -> Translated:
    order: Sequence[int] = call.attribute("perm", [])
    return SAME if order and list(order) == sorted(order) else None


def _same(call: NodeCall) -> Translated:
    return SAME if len(call.inputs) == 1 and call.shape == call.inputs[0] else None


ACTIVATIONS = {
    "Relu": "relu",
    "LeakyRelu": "leaky_relu",
    "Elu": "elu",
    "Selu": "selu",
    "Gelu": "gelu",
    "com.microsoft.Gelu": "gelu",
    "Swish": "silu",
    "Mish": "mish",
    "Softplus": "softplus",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_silu",
}

NODES: dict[str, Callable[[NodeCall], Translated]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("MaxPooling2D"),
    "AveragePool": _pool("AveragePooling2D"),
    "GlobalAveragePool": _global_pool("Average"),
    "GlobalMaxPool": _global_pool("Max"),
    "ReduceMean": _reduction("Average"),
    "ReduceMax": _reduction("Max"),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Flatten": _reshape,
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Concat": _concatenate,
    "Add": _combine("Add"),
    "Sum": _combine("Add"),
    "Mul": _multiply,
    "Sub": _rescale,
    "Div": _rescale,
    "Softmax": _softmax,
    "Pad": _pad,
    "Slice": _slice,
    "Clip": _clip,
    "Identity": _same,
    "Dropout": _same,
}
# These do the same wherever the channels stand, or say by an axis what they work along.
ANY_LAYOUT = {
    *ACTIVATIONS,
    *("Add", "Sum", "Mul", "Sub", "Div", "Clip", "Identity", "Dropout"),
    *("LayerNormalization", "MatMul", "Softmax", "Concat", "ReduceMean", "ReduceMax"),
}
