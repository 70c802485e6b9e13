"""ATen calls that compute value by value or along axes, as operators."""

from __future__ import annotations

import math
from typing import Any

from slotool.graphs.capture.torch.values import Call, Names, Translator, Untranslatable, Value
from slotool.graphs.operators import OPERATORS, elementwise, per_channel, stretches_as

ACTIVATIONS = {names.torch: name for name, names in elementwise.ACTIVATIONS.items()}
# An operand that is a number or a constant of one value makes a rescaling.
_RESCALING = ("add", "sub", "mul", "div", "rsub", "true_divide", "subtract", "multiply")
# Tables of the operators; then calls of other names.
_FUNCTIONS = {
    **{names.torch: function for function, names in elementwise.FUNCTIONS.items()},
    **{"negative": "negative", "clip": "clamp", "clamp_min": "clamp", "clamp_max": "clamp", "isinf": "is_finite"},
    **{"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "__and__": "and", "__or__": "or"},
    **{"__xor__": "xor", "fmod": "remainder", "rsub": "subtract", "subtract": "subtract", "true_divide": "divide"},
    **{"divide": "divide", "hypot": "power", "nan_to_num": "clamp", "frac": "trunc", "sgn": "sign", "log10": "log"},
    **{"exp2": "exp", "erfinv": "erf", "sinc": "sin", "logit": "log", "not_equal": "not_equal", "greater": "greater"},
    **{"less": "less", "bitwise_left_shift": "power", "bitwise_right_shift": "power", "__rshift__": "power"},
    **{"__lshift__": "power"},
}
_MORE_ACTIVATIONS = {
    **{"log_softmax": "log_softmax", "log_sigmoid": "log_sigmoid", "softsign": "softsign", "celu": "celu"},
    **{"hardshrink": "hard_shrink", "softshrink": "soft_shrink", "threshold": "threshold", "rrelu": "leaky_relu"},
    **{"glu_gate": "sigmoid"},
}
_REDUCTIONS = {
    **{getattr(kind, "torch_name", op): op for op, kind in OPERATORS.items() if hasattr(kind, "reduced")},
    **{"mean": "Mean", "nansum": "Sum", "max": "Max", "min": "Min", "prod": "Product", "norm": "Norm"},
    **{"linalg_vector_norm": "Norm", "frobenius_norm": "Norm", "var": "Variance", "std": "Variance"},
    **{"var_mean": "Variance", "std_mean": "Variance", "median": "Max", "count_nonzero": "Sum"},
}


def activation(call: Call) -> Names:
    name = {**ACTIVATIONS, **_MORE_ACTIVATIONS}[call.name]
    return [call.emit.activation(call.source(call.data()), name)]


def function(call: Call) -> Names:
    """Append a function of one tensor, of one and a number, or of several."""
    if call.name == "mul" and _is_layer_scale(call):
        return [call.emit.add("LayerScale", [call.source(value) for value in call.tensors if value.is_data])]
    tensors = [value for value in call.tensors if value.is_data or math.prod(value.whole) != 1]
    names = [call.stretched(value) for value in tensors]
    if len(names) == 1 and call.name in _RESCALING:
        if tensors[0].dtype != call.out.dtype:
            # Whole numbers by a float are floats.
            names = [call.emit.add("Cast", names, dtype=call.out.dtype)]
        return [_to_size(call, call.emit.add("Rescaling", names))]
    if call.name in ("add", "mul", "multiply"):
        return [_to_size(call, call.emit.add("Add" if call.name == "add" else "Multiply", names))]
    return [_to_size(call, call.emit.add("Elementwise", names, function=_FUNCTIONS[call.name]))]


def _is_layer_scale(call: Call) -> bool:
    """True if one tensor with the batch first is multiplied by a constant of one number per channel."""
    data, factors = [each for each in call.tensors if each.is_data], [each for each in call.tensors if not each.is_data]
    if len(data) != 1 or len(factors) != 1 or factors[0].is_computed or data[0].folded_axis != 0:
        return False
    factor = factors[0].whole
    if call.turned:
        factor = (factor[-1], 1, 1) if factor and math.prod(factor[:-1]) == 1 else ()
    return call.out.shape == data[0].shape and stretches_as(factor, per_channel(call.out.shape))


def _to_size(call: Call, name: str) -> str:
    """Append axes of size one that operands had before the others."""
    fits = math.prod(call.out.shape) == math.prod(call.emit.shape(name))
    return call.emit.reshape(name, call.out.shape) if fits else name


def composed(*functions: str) -> Translator:
    """Several passes over the values: of ``addcmul`` a product and a sum."""

    def compose(call: Call) -> Names:
        names = [call.stretched(value) for value in call.tensors]
        last = names[0]
        for function, other in zip(functions, [*names[1:], *names[-1:]], strict=False):
            inputs = [last, other] if len(names) > 1 else [last]
            last = (
                call.emit.add(function, inputs)
                if function in ("Add", "Multiply")
                else call.emit.add("Elementwise", inputs, function=function)
            )
        return [last]

    return compose


def where(call: Call) -> Names:
    tensors = [call["condition"], call["mask"], call["self"], call["other"], call["value"]]
    values = [value for value in tensors if isinstance(value, Value)]
    values = [value for value in values if value.is_data or math.prod(value.whole) != 1]
    return [_to_size(call, call.emit.add("Where", [call.stretched(value) for value in values]))]


def triangle(call: Call) -> Names:
    """Return a choice between values and zeros."""
    value = call.data()
    constant = call.emit.add("Constant", [], shape=value.shape[-2:], dtype="bool")
    return [call.emit.add("Where", [constant, call.source(value)])]


def softmax(call: Call) -> Names:
    value = call.data()
    source, axis = call.source(value), value.at(call["dim"])
    if call.turned and axis != 0:
        raise Untranslatable("along a side of an image with its channels last")
    name = call.emit.add("Softmax", source, axis=axis)
    if "log" in call.name:
        name = call.emit.add("Elementwise", name, function="log")
    return [call.emit.add("Cast", name, dtype=call.out.dtype) if value.dtype != call.out.dtype else name]


def reduction(call: Call) -> Names:
    value = call.data()
    dims = call["dim"] if call["dim"] is not None else call["axis"]
    axes = [dims] if isinstance(dims, int) else list(dims or range(len(value.whole)))
    keepdims = bool(call["keepdim"])
    op = _REDUCTIONS[call.name]
    source, inner = call.source(value), [value.at(axis) for axis in axes]
    pooling = {"mean": "GlobalAveragePooling2D", "amax": "GlobalMaxPooling2D"}.get(call.name)
    if pooling and value.is_image and sorted(inner) == [1, 2] and not (call.turned and keepdims):
        return [call.emit.add(pooling, source, keepdims=keepdims)]
    if call.turned:
        raise Untranslatable("reduces an image with its channels last")
    name = call.emit.add(op, source, axes=inner, keepdims=keepdims)
    others = [name] * (len(call.outs) - 1)
    if call.name.startswith("std"):
        name = call.emit.add("Elementwise", name, function="sqrt")
    return [name, *others]


def maximum(call: Call) -> Names:
    """Append a maximum of two tensors, or along an axis with the places."""
    if not isinstance(call["other"], Value):
        return reduction(call)
    names = [call.stretched(value) for value in call.tensors]
    return [call.emit.add("Elementwise", names, function="maximum" if call.name == "max" else "minimum")]


def ordered(call: Call) -> Names:
    """Return the values, and where they were."""
    value = call.data()
    axis = value.at(-1 if call["dim"] is None else call["dim"])
    attributes: dict[str, Any] = {"axis": axis}
    if call.name == "topk":
        attributes["k"] = call["k"]
    op, source = "TopK" if call.name == "topk" else "Sort", call.source(value)
    if call.name == "argsort":
        return [call.emit.add(op, source, **attributes, indices=True)]
    return [call.emit.add(op, source, **attributes), call.emit.add(op, source, **attributes, indices=True)]


def glu(call: Call) -> Names:
    """Append one half times the sigmoid of the other."""
    value = call.data()
    axis = value.at(-1 if call["dim"] is None else call["dim"])
    source, half = call.source(value), value.shape[axis] // 2
    first = call.emit.add("Slice", source, axis=axis, size=half)
    gate = call.emit.activation(call.emit.add("Slice", source, axis=axis, start=half, size=half), "sigmoid")
    return [call.emit.add("Multiply", [first, gate])]


def hardtanh(call: Call) -> Names:
    source = call.source(call.data())
    if (call["min_val"], call["max_val"]) == (0, 6):
        return [call.emit.activation(source, "relu6")]
    return [call.emit.add("Elementwise", source, function="clamp")]


ARITHMETIC: dict[str, Translator] = {
    **dict.fromkeys((*ACTIVATIONS, *_MORE_ACTIVATIONS), activation),
    **dict.fromkeys((*_FUNCTIONS, "add", "mul", "multiply"), function),
    **dict.fromkeys(("where", "masked_fill"), where),
    **dict.fromkeys(("tril", "triu"), triangle),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax", "special_log_softmax"), softmax),
    **dict.fromkeys(_REDUCTIONS, reduction),
    **dict.fromkeys(("max", "min"), maximum),
    **dict.fromkeys(("topk", "sort", "argsort", "kthvalue"), ordered),
    "glu": glu,
    "hardtanh": hardtanh,
    "addcmul": composed("Multiply", "Add"),
    "addcdiv": composed("divide", "Add"),
    "lerp": composed("subtract", "Multiply"),
}
