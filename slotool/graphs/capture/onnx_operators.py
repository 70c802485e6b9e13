"""ONNX operators that are no layers of images: attention written out, views, lookups, arithmetic, reductions.

A node's axes count the batch where the model has it; ours leave it out. Each entry takes a ``Call`` and says what the
node is as a chain of our operators, one after the other; None where it is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from slotool.graphs.capture.onnx_calls import Batched, Call, Chain
from slotool.graphs.capture.onnx_recurrent import RECURRENT
from slotool.graphs.operators import DTYPES, Shape

FAR = 1 << 31
# The most axes of a convolution of ours.
MAX_WINDOW_AXES = 3
# As onnx.TensorProto numbers them.
_DTYPES = {
    **{1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16"},
    **{11: "float64", 16: "bfloat16"},
}


def chain_of(call: Call) -> Chain:
    """What a node is."""
    known = OPERATORS.get(call.node.op)
    return None if known is None else known(call)


def _mat_mul(call: Call) -> Chain:
    left, weight = call.constants.get(0), call.constants.get(1)
    if weight is not None and len(weight.shape) == 2 and len(call.values) == 1:
        return [("Dense", {"units": weight.shape[1], "bias": call.has(2)})]
    vector = weight or left
    if vector is not None and len(vector.shape) == 1 and len(call.values) == 1 and not call.has(2):
        example = call.first.example
        rank = len(example)
        turned = [] if weight else [("Transpose", {"axes": [*range(rank - 2), rank - 1, rank - 2]})]
        return [*turned, ("Dense", {"units": 1, "bias": False}), _without_last_axis(call.made.example)]
    return None if call.has(2) or len(call.made.example) < 2 else [("MatMul", {})]


def _without_last_axis(shape: Shape) -> tuple[str, dict[str, Any]]:
    """Return the operator that takes the last axis, of one, from an output and leaves this ``shape``."""
    if not shape:
        return "Slice", {"axis": 0, "size": 1, "keepdims": False}
    return ("Flatten", {}) if len(shape) == 1 else ("Reshape", {"shape": shape})


def _gemm(call: Call) -> Chain:
    """A product with weights, whose first axis may be the batch with steps folded into it."""
    weight, turned = call.constants.get(1), call.attribute("transB", 0)
    plain = call.attribute("alpha", 1.0) == call.attribute("beta", 1.0) == 1.0 and not call.attribute("transA", 0)
    if weight is None or not plain or len(weight.shape) != 2 or 0 not in call.values or len(call.values) > 1:
        return None
    return [("Dense", {"units": weight.shape[0 if turned else 1], "bias": call.has(2)})]


def _softmax(call: Call) -> Chain:
    axis = call.first.inner(call.attribute("axis", -1 if call.opset >= 13 else 1))
    if axis is None or (call.opset < 13 and axis != len(call.first.example) - 1):
        return None
    return [("Softmax", {"axis": axis})]


def _layer_norm(call: Call) -> Chain:
    rank = len(call.first.shape)
    axes = call.first.inside(range(call.attribute("axis", -1) % rank, rank))
    if axes is None or 1 not in call.constants:
        return None
    centred = 2 in call.constants and call.constants[2].weights > 0
    return [("LayerNormalization", {"axes": axes, "scale": call.constants[1].weights > 0, "center": centred})]


def _rms_norm(call: Call) -> Chain:
    rank = len(call.first.shape)
    axes = call.first.inside(range(call.attribute("axis", -1) % rank, rank))
    return None if axes is None or 1 not in call.constants else [("RMSNormalization", {"axes": axes})]


def _batch_norm(call: Call) -> Chain:
    axis = call.first.inner(1)
    if axis is None or not all(at in call.constants for at in range(1, 5)):
        return None
    scale, center = (call.constants[at].weights > 0 for at in (1, 2))
    return [("BatchNormalization", {"axis": axis, "scale": scale, "center": center})]


def _instance_norm(call: Call) -> Chain:
    scale, center = (at in call.constants and call.constants[at].weights > 0 for at in (1, 2))
    return [("GroupNormalization", {"groups": call.first.example[0], "scale": scale, "center": center})]


def _transpose(call: Call) -> Chain:
    value = call.first
    order = call.attribute("perm") or [*range(len(value.shape))[::-1]]
    inner = [value.inner(axis) for axis in order]
    axes = [axis for axis in inner if axis is not None]
    return [] if axes == sorted(axes) else [("Transpose", {"axes": axes})]


def _reshape(call: Call) -> Chain:
    shape = call.made.example
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
    chain: list[tuple[str, dict[str, Any]]] = []
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
    return [("Gather", {"axis": inner}), *([("Reshape", {"shape": call.made.example})] if folded else [])]


def _gather_elements(call: Call) -> Chain:
    axis = call.first.inner(call.attribute("axis", 0))
    return None if axis is None else [("GatherElements", {"axis": axis})]


def _concatenate(call: Call) -> Chain:
    axis = call.first.inner(call.attribute("axis", 1))
    return None if axis is None else [("Concatenate", {"axis": axis})]


def _expand(call: Call) -> Chain:
    shape = call.made.example
    return [] if shape == call.first.example else [("Expand", {"shape": shape})]


def _tile(call: Call) -> Chain:
    repeats, value = call.numbers(1), call.first
    if repeats is None or len(repeats) != len(value.shape):
        return None
    inner = [times for axis, times in enumerate(repeats) if value.inner(axis) is not None]
    return [("Repeat", {"repeats": inner})] if any(times > 1 for times in inner) else []


def _pad(call: Call) -> Chain:
    pads, value = call.numbers(1, "pads"), call.first
    rank = len(value.shape)
    if pads is None or len(pads) != 2 * rank:
        return None
    kept = [axis for axis in range(rank) if value.inner(axis) is not None]
    inner = [pads[axis] for axis in kept] + [pads[rank + axis] for axis in kept]
    return [("Pad", {"pads": inner, "mode": call.attribute("mode", "constant")})] if any(inner) else []


def _reduction(op: str) -> Callable[[Call], Chain]:
    def reduction(call: Call) -> Chain:
        rank = len(call.first.shape)
        axes = call.numbers(1, "axes") or [axis for axis in range(rank) if call.first.inner(axis) is not None]
        inner = call.first.inside(axes)
        return None if inner is None else [(op, {"axes": inner, "keepdims": bool(call.attribute("keepdims", 1))})]

    return reduction


def _arg(op: str) -> Callable[[Call], Chain]:
    def arg(call: Call) -> Chain:
        axis = call.first.inner(call.attribute("axis", 0))
        return None if axis is None else [(op, {"axes": [axis], "keepdims": bool(call.attribute("keepdims", 1))})]

    return arg


def _top_k(call: Call) -> Chain:
    axis, k = call.first.inner(call.attribute("axis", -1)), call.numbers(1, "k")
    return None if axis is None or k is None else [("TopK", {"k": k[0], "axis": axis})]


def _cumulative_sum(call: Call) -> Chain:
    axis = call.first.inner((call.numbers(1) or [0])[0])
    return None if axis is None else [("CumulativeSum", {"axis": axis})]


def _cast(call: Call) -> Chain:
    dtype = _DTYPES.get(call.attribute("to", 0), "")
    return [("Cast", {"dtype": dtype})] if dtype in DTYPES else None


def _convolution(call: Call) -> Chain:
    windows = call.first.windows > 1
    weight, rank = call.constants.get(1), len(call.first.example) - 1 - windows
    if weight is None or len(weight.shape) != rank + 2 or rank not in (1, 2, 3):
        return None
    filters, _, *kernel = weight.shape
    padding = _window_padding(call, rank)
    if padding is None:
        return None
    attributes = {
        "filters": filters, "kernel": kernel, "bias": call.has(2), "groups": call.attribute("group", 1),
        "stride": call.attribute("strides", [1] * rank), "dilation": call.attribute("dilations", [1] * rank),
        "padding": padding,
    }  # fmt: skip
    return _over_windows(call.first, attributes) if windows else [(f"Conv{rank}D", attributes)]


def _over_windows(value: Batched, attributes: dict[str, Any]) -> Chain:
    """Over windows that are folded with the batch: as one more axis, along which nothing is summed."""
    rank = len(value.example) - 1
    if value.axis != 0 or rank > MAX_WINDOW_AXES or isinstance(attributes["padding"], str):
        return None
    more = {name: [1, *attributes[name]] for name in ("kernel", "stride", "dilation")}
    given = {**attributes, **more, "padding": [0, *attributes["padding"]]}
    turned = {"axes": (1, 0, *range(2, rank + 1))}
    return [("Transpose", turned), (f"Conv{rank}D", given), ("Transpose", turned)]


def _transposed(call: Call) -> Chain:
    weight, rank = call.constants.get(1), len(call.first.example) - 1
    if weight is None or len(weight.shape) != rank + 2 or rank not in (1, 2, 3):
        return None
    _, filters, *kernel = weight.shape
    padding, groups = _window_padding(call, rank), call.attribute("group", 1)
    if padding is None or padding == "same":
        return None
    return [(f"Conv{rank}DTranspose", {
        "filters": filters * groups, "kernel": kernel, "bias": call.has(2), "groups": groups,
        "stride": call.attribute("strides", [1] * rank), "dilation": call.attribute("dilations", [1] * rank),
        "padding": padding, "output_padding": call.attribute("output_padding", [0] * rank),
    })]  # fmt: skip


def _window_padding(call: Call, rank: int) -> Any:
    """As much on opposite sides, or 'same'; None where it is neither."""
    way, pads = call.attribute("auto_pad", "NOTSET"), call.attribute("pads", [0] * 2 * rank)
    if way == "SAME_UPPER":
        return "same"
    return pads[:rank] if way in ("NOTSET", "VALID") and pads[:rank] == pads[rank:] else None


def _fold(call: Call) -> Chain:
    """Columns added up into images, whose size and windows are inputs."""
    size, kernel, pads = call.numbers(1), call.numbers(2), call.attribute("pads", [0] * 4)
    if size is None or kernel is None or [len(size), len(kernel), len(pads)] != [2, 2, 4]:
        return None
    if pads[:2] != pads[2:]:
        return None
    return [("Fold", {
        "size": size, "kernel": kernel, "padding": pads[:2],
        "stride": call.attribute("strides", [1, 1]), "dilation": call.attribute("dilations", [1, 1]),
    })]  # fmt: skip


def _pool(kind: str) -> Callable[[Call], Chain]:
    def pool(call: Call) -> Chain:
        rank = len(call.first.example) - 1
        padding = _window_padding(call, rank)
        if padding is None or rank not in (1, 2, 3):
            return None
        attributes = {
            "kernel": call.attribute("kernel_shape"),
            "stride": call.attribute("strides", [1] * rank),
            "padding": padding,
            "ceil": bool(call.attribute("ceil_mode", 0)),
        }
        if kind == "Max":
            attributes["dilation"] = call.attribute("dilations", [1] * rank)
        else:
            attributes["count_padding"] = bool(call.attribute("count_include_pad", 0))
        return [(f"{kind}Pooling{rank}D", attributes)]

    return pool


def _global_pool(op: str) -> Callable[[Call], Chain]:
    return lambda call: [(op, {"axes": [*range(1, len(call.first.example))], "keepdims": True})]


def _resize(call: Call) -> Chain:
    kept, shape = call.first.example, call.made.example
    if len(kept) != len(shape) or kept[:1] != shape[:1]:
        return None
    mode = call.attribute("mode", "nearest")
    return [] if kept == shape else [("Resize", {"size": shape[1:], "mode": mode})]


def _depth_to_space(call: Call) -> Chain:
    return [("PixelShuffle", {"factor": call.attribute("blocksize")})]


def _prelu(call: Call) -> Chain:
    slope = call.constants.get(1)
    return None if slope is None else [("PReLU", {"shared": slope.single})]


def _function(name: str) -> Callable[[Call], Chain]:
    return lambda _: [("Elementwise", {"function": name})]


def _plain(op: str) -> Callable[[Call], Chain]:
    return lambda _: [(op, {})]


def _combined(op: str) -> Callable[[Call], Chain]:
    """With one number it rescales."""

    def combined(call: Call) -> Chain:
        others = [constant for constant in call.constants.values() if not constant.single]
        return [("Rescaling", {})] if len(call.values) == 1 and not others else [(op, {})]

    return combined


# Their constants of more than one number are inputs like any other.
WITH_CONSTANTS = {
    *("Add", "Sum", "Mul", "Sub", "Div", "Pow", "Min", "Max", "Mod", "Where", "Concat", "MatMul", "And", "Or", "Xor"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Gather", "GatherElements", "Expand"),
}
_FUNCTIONS = {
    **{"Abs": "abs", "Acos": "acos", "Asin": "asin", "Atan": "atan", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh"},
    **{"Erf": "erf", "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "negative", "Reciprocal": "reciprocal"},
    **{"Round": "round", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "IsNaN": "is_nan"},
    **{"Not": "not", "Sub": "subtract", "Div": "divide", "Pow": "power", "Max": "maximum", "Min": "minimum"},
    **{"Mod": "remainder", "Equal": "equal", "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater"},
    **{"GreaterOrEqual": "greater_equal", "And": "and", "Or": "or", "Xor": "xor", "Clip": "clamp"},
}
OPERATORS: dict[str, Callable[[Call], Chain]] = {
    **{op: _function(name) for op, name in _FUNCTIONS.items()},
    "MatMul": _mat_mul,
    "Gemm": _gemm,
    **RECURRENT,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), _rms_norm),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm,
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": _concatenate,
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "ReduceMean": _reduction("Mean"),
    "ReduceSum": _reduction("Sum"),
    "ReduceMax": _reduction("Max"),
    "ReduceMin": _reduction("Min"),
    "ReduceProd": _reduction("Product"),
    "ReduceL2": _reduction("Norm"),
    "ReduceLogSumExp": _reduction("LogSumExp"),
    "ArgMax": _arg("ArgMax"),
    "ArgMin": _arg("ArgMin"),
    "TopK": _top_k,
    "CumSum": _cumulative_sum,
    "Cast": _cast,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool("Max"),
    "AveragePool": _pool("Average"),
    "GlobalAveragePool": _global_pool("Mean"),
    "GlobalMaxPool": _global_pool("Max"),
    "Col2Im": _fold,
    "Resize": _resize,
    "DepthToSpace": _depth_to_space,
    "PRelu": _prelu,
    "Add": _combined("Add"),
    "Sum": _combined("Add"),
    "Mul": _combined("Multiply"),
    "Where": _plain("Where"),
    **dict.fromkeys(("Identity", "Dropout"), lambda _: []),
}
