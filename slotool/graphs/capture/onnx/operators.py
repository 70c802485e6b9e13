"""ONNX operators in terms of ours: one entry per operator, for every version of it that is in use.

A node's axes count the batch where the model has it; ours leave it out. Each entry takes a ``Call`` and returns the
node as a chain of our operators, one after the other; None where it is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from slotool.errors import GraphError
from slotool.graphs.capture.drafts import OUTPUT, Operation, Steps
from slotool.graphs.capture.onnx.calls import REDUCTIONS, Call, Chain
from slotool.graphs.capture.onnx.layers import LAYERS, deformable_convolution
from slotool.graphs.operators import Shape, elementwise, per_channel, stretches_as
from slotool.graphs.operators.base import captured_as

# Bounds of Clip beyond which there is none.
_UNBOUNDED = 1e30


def chain_of(call: Call) -> Chain:
    """Return a node as our operators."""
    if not call.values:
        return None
    try:
        if (convert := OPERATORS.get(call.node.op)) is not None:
            return convert(call)
        operation = captured_as("onnx", call.node.op, call)
    except GraphError:
        return None
    return None if operation is None else [operation]


def product_flops(call: Call) -> int:
    """Return the FLOPs per example of a matrix product or convolution that is kept by name; 0 for any other node."""
    op, constants, values = call.node.op, call.constants, math.prod(call.shape)
    if op in ("MatMul", "Gemm"):
        if 1 in constants and call.inputs:
            features = constants[1].shape[-1 if call.attribute("transB", 0) else -2 :][0] if constants[1].shape else 0
        elif 0 in constants:
            features = constants[0].shape[-1] if constants[0].shape else 0
        else:
            features = call.inputs[0][-1] if call.inputs and call.inputs[0] else 0
        return 2 * values * features
    if op in ("Conv", "DeformConv", "ConvTranspose") and 1 in constants and call.inputs:
        return 2 * math.prod(constants[1].shape[1:]) * (values if op != "ConvTranspose" else math.prod(call.inputs[0]))
    return 0


def fourier_flops(call: Call) -> int:
    """Return the FLOPs per example of a Fourier transform, 5 n log2 n for n complex values, 0 of other nodes.

    They are halved if one side is real, as torch's are.
    """
    if call.node.op != "DFT" or not call.inputs or len(call.inputs[0]) < 2:
        return 0
    value, output = call.inputs[0], call.shape
    axis = (call.numbers(2, "axis") or [-2 if call.opset >= 20 else 1])[0]
    length = max(shape[axis - 1 if axis > 0 else axis] for shape in (value, output))
    complete = 5 * max(math.prod(shape[:-1]) for shape in (value, output)) * math.log2(max(length, 2))
    return round(complete / 2 if 1 in (value[-1], output[-1]) else complete)


def _mat_mul(call: Call) -> Chain:
    left, weight = call.constants.get(0), call.constants.get(1)
    if weight is not None and len(weight.shape) == 2 and len(call.values) == 1:
        if call.channels_last:
            # On the channels of an image it is a convolution of one pixel.
            return [("Conv2D", {"filters": weight.shape[1], "kernel": 1, "bias": call.has(2)})]
        return [("Dense", {"units": weight.shape[1], "bias": call.has(2)})]
    if call.channels_last:
        return None
    vector = weight or left
    if vector is not None and len(vector.shape) == 1 and len(call.values) == 1 and not call.has(2):
        example = call.first.example
        rank = len(example)
        turned = [] if weight else [("Transpose", {"axes": [*range(rank - 2), rank - 1, rank - 2]})]
        return [*turned, ("Dense", {"units": 1, "bias": False}), _without_last_axis(call.output.example)]
    return None if call.has(2) or len(call.output.example) < 2 else [("MatMul", {})]


def _without_last_axis(shape: Shape) -> Operation:
    """Return the operator that takes the last axis, of one, from an output and leaves this ``shape``."""
    if not shape:
        return "Slice", {"axis": 0, "size": 1, "keepdims": False}
    return ("Flatten", {}) if len(shape) == 1 else ("Reshape", {"shape": shape})


def _gemm(call: Call) -> Chain:
    """Return a product with weights, whose first axis may be the batch with steps folded into it."""
    weight, turned = call.constants.get(1), call.attribute("transB", 0)
    plain = call.attribute("alpha", 1.0) == call.attribute("beta", 1.0) == 1.0 and not call.attribute("transA", 0)
    if weight is None or not plain or len(weight.shape) != 2 or 0 not in call.values or len(call.values) > 1:
        return None
    return [("Dense", {"units": weight.shape[0 if turned else 1], "bias": call.has(2)})]


def _softmax(call: Call) -> Chain:
    """Before version 13 all axes from the one said on were flattened, by default all but the batch."""
    number, rank = call.attribute("axis", -1 if call.opset >= 13 else 1), len(call.first.shape)
    if call.opset < 13 and math.prod(call.first.shape[number % rank + 1 :]) > 1:
        return None
    logarithm = [("Elementwise", {"function": "log"})] if call.node.op == "LogSoftmax" else []
    return [("Softmax", {"axis": call.inner(number)}), *logarithm]


def _layer_norm(call: Call) -> Chain:
    rank = len(call.first.shape)
    axes = [call.inner(axis) for axis in range(call.attribute("axis", -1) % rank, rank)]
    if 1 not in call.constants:
        return None
    if call.node.op != "LayerNormalization":
        return [("RMSNormalization", {"axes": axes})]
    centred = 2 in call.constants and call.constants[2].weights > 0
    return [("LayerNormalization", {"axes": axes, "scale": call.constants[1].weights > 0, "center": centred})]


def _batch_norm(call: Call) -> Chain:
    if not all(at in call.constants for at in range(1, 5)):
        return None
    scale, center = (call.constants[at].weights > 0 for at in (1, 2))
    return [("BatchNormalization", {"axis": call.inner(1), "scale": scale, "center": center})]


def _group_norm(call: Call) -> Chain:
    """Return also that of each channel alone."""
    scale, center = (at in call.constants and call.constants[at].weights > 0 for at in (1, 2))
    groups = call.attribute("num_groups", call.first.example[0])
    return [("GroupNormalization", {"groups": groups, "scale": scale, "center": center})]


def _attention(call: Call) -> Chain:
    return [("ScaledDotProductAttention", {"causal": bool(call.attribute("is_causal", 0))})]


def _transpose(call: Call) -> Chain:
    value = call.first
    order = call.attribute("perm") or [*range(len(value.shape))[::-1]]
    inner = [value.inner(axis) for axis in order]
    axes = [axis for axis in inner if axis is not None]
    return [] if axes == sorted(axes) else [("Transpose", {"axes": axes})]


def _reshape(call: Call) -> Chain:
    shape = call.output.example
    if shape == call.first.example:
        return []
    if math.prod(shape) != math.prod(call.first.example):
        return None
    return [("Flatten", {}) if len(shape) == 1 else ("Reshape", {"shape": shape})]


def _slice(call: Call) -> Chain:
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    if starts is None or ends is None:
        return None
    value = call.first
    chain: list[Operation] = []
    cropped = [0, 0, 0, 0]
    axes = call.numbers(3, "axes") or [*range(len(starts))]
    for axis, start, end, step in zip(axes, starts, ends, call.numbers(4, "steps") or [1] * len(starts), strict=True):
        size = value.shape[axis % len(value.shape)]
        inner = value.inner(axis)
        if step < 0:
            if inner is None:
                return None
            chain.append(("Flip", {"axes": [inner]}))
            continue
        first, past = (min(max(at + size if at < 0 else at, 0), size) for at in (start, end))
        count = -(-(past - first) // step)
        if count == size:
            continue
        if inner is None or (value.windows > 1 and axis % len(value.shape) == value.axis):
            return None
        chain.append(("Slice", {"axis": inner, "start": first, "size": count, "step": step}))
        if call.is_plain and inner > 0 and step == 1:
            cropped[2 * inner - 2 : 2 * inner] = first, size - past
    is_crop = len(value.example) == 3 and chain and all(op == "Slice" for op, _ in chain)
    if is_crop and all(attributes["axis"] > 0 and attributes["step"] == 1 for _, attributes in chain) and call.is_plain:
        return [("Cropping2D", {"cropping": cropped})]
    return chain


def _gather(call: Call) -> Chain:
    axis = call.attribute("axis", 0)
    if 0 in call.constants and len(call.constants[0].shape) == 2 and axis % 2 == 0:
        vocabulary, units = call.constants[0].shape
        return [("Embedding", {"vocabulary": vocabulary, "units": units})]
    if 0 in call.constants:
        return [("Gather", {"axis": axis % len(call.constants[0].shape)})] if 1 in call.values else None
    inner, places = call.values[0].inner(axis), call.constants.get(1)
    if inner is None:
        return None
    if places is not None and places.shape == () and places.values is not None:
        start = int(places.values[0]) % call.values[0].shape[axis % len(call.values[0].shape)]
        return [("Slice", {"axis": inner, "start": start, "size": 1, "keepdims": False})]
    folded = axis % len(call.values[0].shape) == call.values[0].axis
    return [("Gather", {"axis": inner}), *([("Reshape", {"shape": call.output.example})] if folded else [])]


def _expand(call: Call) -> Chain:
    shape = call.output.example
    return [] if shape == call.first.example else [("Expand", {"shape": shape})]


def _tile(call: Call) -> Chain:
    repeats, value = call.numbers(1), call.first
    if repeats is None or len(repeats) != len(value.shape):
        return None
    inner = [times for axis, times in enumerate(repeats) if value.inner(axis) is not None]
    return [("Repeat", {"repeats": inner})] if any(times > 1 for times in inner) else []


def _pad(call: Call) -> Chain:
    pads, value, mode = call.numbers(1, "pads"), call.first, call.attribute("mode", "constant")
    rank = len(value.shape)
    axes = [axis % rank for axis in call.numbers(3, "axes") or range(rank)]
    if pads is None or len(pads) != 2 * len(axes):
        return None
    whole = dict(zip([*axes, *(rank + axis for axis in axes)], pads, strict=True))
    attributes = [axis for axis in range(rank) if value.inner(axis) is not None]
    before, after = ([whole.get(side + axis, 0) for axis in attributes] for side in (0, rank))
    if not any(before + after):
        return []
    zeros = mode == "constant" and not any(call.settings(2, "value") or [0])
    if call.is_plain and len(attributes) == 3 and zeros and not before[0] and not after[0]:
        around = (before[1], after[1], before[2], after[2])
        if min(around) >= 0:
            return [("ZeroPadding2D", {"padding": around})]
        if max(around) <= 0:
            return [("Cropping2D", {"cropping": tuple(-size for size in around)})]
    return [("Pad", {"pads": before + after, "mode": mode})]


def _clip(call: Call) -> Chain:
    least, most = ((call.settings(at, name) or [None])[0] for at, name in ((1, "min"), (2, "max")))
    if least == 0 and not (most is None and call.has(2)):
        if most is None or most > _UNBOUNDED:
            return [("Activation", {"activation": "relu"})]
        if most == 6:
            return [("Activation", {"activation": "relu6"})]
    return [("Elementwise", {"function": "clamp"})]


def _reduction(op: str) -> Callable[[Call], Chain]:
    pooling = {"Mean": "GlobalAveragePooling2D", "Max": "GlobalMaxPooling2D"}.get(op)

    def reduction(call: Call) -> Chain:
        rank, keepdims = len(call.first.shape), bool(call.attribute("keepdims", 1))
        axes = call.numbers(1, "axes") or [axis for axis in range(rank) if call.first.inner(axis) is not None]
        inner = [call.inner(axis) for axis in axes]
        if pooling and call.is_plain and len(call.inputs[0]) == 3 and sorted(inner) == [1, 2]:
            return [(pooling, {"keepdims": keepdims})]
        return None if call.channels_last else [(op, {"axes": inner, "keepdims": keepdims})]

    return reduction


def _one_hot(call: Call) -> Steps:
    """Return a comparison with the number of each class."""
    depth, shape = call.numbers(1), call.output.example
    if depth is None or call.attribute("axis", -1) not in (-1, len(call.output.shape) - 1):
        return None
    return [
        ("column", "Reshape", {"shape": (*shape[:-1], 1)}, (0,)),
        ("classes", "Constant", {"shape": shape[-1:], "dtype": "int64"}, ()),
        ("equal", "Elementwise", {"function": "equal"}, ("column", "classes")),
        (OUTPUT, "Cast", {"dtype": "float32"}, ("equal",)),
    ]


def _gather_nd(call: Call) -> Steps:
    """Return a lookup by the numbers of several axes as one by that of all of them together."""
    if len(call.inputs) != 2 or not call.is_plain or call.attribute("batch_dims", 0) != 1:
        return None
    (*places, count), data = call.inputs[1], call.inputs[0]
    rows = (math.prod(data[:count]), *data[count:])
    return [
        ("rows", "Reshape", {"shape": rows}, (0,)),
        ("places", "Slice", {"axis": len(places), "size": 1, "keepdims": False}, (1,)),
        (OUTPUT, "Gather", {"axis": 0}, ("rows", "places")),
    ]


def _triangle(call: Call) -> Steps:
    """Return a choice between values and zeros."""
    axes = {"shape": call.first.example[-2:], "dtype": "bool"}
    return [("kept", "Constant", axes, ()), (OUTPUT, "Where", {}, ("kept", 0))]


# Nodes that are several operators, some of which take one value.
STEPS: dict[str, Callable[[Call], Steps]] = {
    "DeformConv": deformable_convolution,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "Trilu": _triangle,
}


def _function(name: str) -> Callable[[Call], Chain]:
    return lambda _: [("Elementwise", {"function": name})]


def _is_rescaling(call: Call) -> bool:
    """True if one number is added to or multiplied with one input."""
    return len(call.values) == 1 and all(constant.single for constant in call.constants.values())


def _combined(op: str) -> Callable[[Call], Chain]:
    """Return the translator of a sum or product; with one number it rescales."""
    return lambda call: [("Rescaling", {})] if _is_rescaling(call) else [(op, {})]


def _multiplied(call: Call) -> Chain:
    """Return a product; by one trained number per channel it is a LayerScale."""
    factors = [constant for constant in call.constants.values() if not constant.single]
    trained = len(factors) == 1 and factors[0].weights == math.prod(factors[0].shape)
    if call.is_plain and len(call.values) == 1 and trained and call.shape == call.inputs[0]:
        expected = call.shape[:1] if call.channels_last and len(call.shape) == 3 else per_channel(call.shape)
        if stretches_as(factors[0].shape, expected):
            return [("LayerScale", {})]
    return _combined("Multiply")(call)


def _subtracted(function: str) -> Callable[[Call], Chain]:
    def subtracted(call: Call) -> Chain:
        if call.is_plain and _is_rescaling(call):
            return [("Rescaling", {})]
        return [("Elementwise", {"function": function})]

    return subtracted


def _activation(name: str) -> Callable[[Call], Chain]:
    return lambda _: [("Activation", {"activation": name})]


ACTIVATIONS = {
    **{names.onnx: name for name, names in elementwise.ACTIVATIONS.items() if names.onnx},
    "com.microsoft.Gelu": "gelu",
}
# Operators that ignore the place of channels, or state their axis.
ANY_LAYOUT = {
    *ACTIVATIONS,
    *("Add", "Sum", "Mul", "Sub", "Div", "Clip", "Identity", "Dropout"),
    *("LayerNormalization", "MatMul", "Softmax", "Concat", "ReduceMean", "ReduceMax"),
}
# Table of the operators; the first of two with one name in ONNX.
_FUNCTIONS = {
    **{names.onnx: function for function, names in reversed(elementwise.FUNCTIONS.items()) if names.onnx},
    "Not": "not",
}
OPERATORS: dict[str, Callable[[Call], Chain]] = {
    **{op: _activation(name) for op, name in ACTIVATIONS.items()},
    **{op: _function(name) for op, name in _FUNCTIONS.items()},
    "Sub": _subtracted("subtract"),
    "Div": _subtracted("divide"),
    "Clip": _clip,
    "MatMul": _mat_mul,
    "Gemm": _gemm,
    **LAYERS,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    "BatchNormalization": _batch_norm,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _group_norm),
    "Attention": _attention,
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Slice": _slice,
    "Gather": _gather,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    **{op: _reduction(ours) for op, ours in REDUCTIONS.items()},
    "Add": _combined("Add"),
    "Sum": _combined("Add"),
    "Mul": _multiplied,
    **dict.fromkeys(("Identity", "Dropout"), lambda _: []),
}
