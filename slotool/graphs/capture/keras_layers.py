"""Keras layers that are several of our operators, or one on turned axes: attention, sequences, transposed windows.

Images are channels first here, and sequences (steps, features); Keras' own windows along steps have channels last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from slotool.graphs.operators import Shape, pair

# An operator, its attributes, and its inputs: names of steps before it, or positions among the layer's own inputs.
Step = tuple[str, str, dict[str, Any], tuple[str | int, ...]]
Steps = list[Step] | None


def steps_of(layer: Any, inputs: Sequence[Shape], shape: Shape, call: dict[str, Any]) -> Steps:
    """What a layer is, step by step, the last its output; ``call`` are the arguments it was called with by name. None:
    one operator or none of ours."""
    known = LAYERS.get(type(layer).__name__)
    return None if known is None or not inputs else known(layer, inputs, shape, call)


def _attention(layer: Any, inputs: Sequence[Shape], shape: Shape, call: dict[str, Any]) -> Steps:
    """Query, value and perhaps key, in this order; without a mask of its own."""
    if len(inputs) not in (2, 3) or any(len(each) != 2 for each in (*inputs, shape)):
        return None
    heads, bias = layer.num_heads, bool(layer.use_bias)
    sources = {"query": 0, "key": 2 if len(inputs) == 3 else 1, "value": 1}
    dims = {"query": layer.key_dim, "key": layer.key_dim, "value": layer.value_dim}
    steps: list[Step] = []
    for part, source in sources.items():
        units = heads * dims[part]
        steps += [
            (f"{part}.product", "Dense", {"units": units, "bias": bias}, (source,)),
            (f"{part}.split", "Reshape", {"shape": (inputs[source][0], heads, dims[part])}, (f"{part}.product",)),
            (part, "Transpose", {"axes": (1, 0, 2)}, (f"{part}.split",)),
        ]
    causal = {"causal": True} if call.get("use_causal_mask") else {}
    return [
        *steps,
        ("attention", "ScaledDotProductAttention", causal, ("query", "key", "value")),
        ("turned", "Transpose", {"axes": (1, 0, 2)}, ("attention",)),
        ("joined", "Reshape", {"shape": (inputs[0][0], heads * layer.value_dim)}, ("turned",)),
        ("output", "Dense", {"units": shape[-1], "bias": bias}, ("joined",)),
    ]


def _conv1d(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    if layer.data_format != "channels_last" or layer.padding not in ("same", "valid", "causal"):
        return None
    (kernel,), (dilation,) = layer.kernel_size, layer.dilation_rate
    padding, before = layer.padding, 0
    if padding == "causal":
        padding, before = "valid", dilation * (kernel - 1)
    window = {
        "filters": layer.filters,
        "kernel": kernel,
        "stride": layer.strides[0],
        "dilation": dilation,
        "groups": layer.groups,
        "padding": padding,
        **_trained(layer),
    }
    pad: list[Step] = [("padded", "Pad", {"pads": (0, before, 0, 0)}, ("turned",))] if before else []
    return [
        ("turned", "Transpose", {"axes": (1, 0)}, (0,)),
        *pad,
        ("window", "Conv1D", window, ("padded" if before else "turned",)),
        ("output", "Transpose", {"axes": (1, 0)}, ("window",)),
    ]


def _pool1d(layer: Any, inputs: Sequence[Shape], _: Shape, __: dict[str, Any]) -> Steps:
    if layer.data_format != "channels_last":
        return None
    window = {"kernel": layer.pool_size[0], "stride": layer.strides[0], "padding": layer.padding}
    return [
        ("turned", "Transpose", {"axes": (1, 0)}, (0,)),
        ("window", type(layer).__name__, window, ("turned",)),
        ("output", "Transpose", {"axes": (1, 0)}, ("window",)),
    ]


def _global_pool1d(op: str) -> Callable[..., Steps]:
    def pool(layer: Any, *_: object) -> Steps:
        if layer.data_format != "channels_last":
            return None
        return [("output", op, {"axes": (0,), "keepdims": bool(layer.keepdims)}, (0,))]

    return pool


def _recurrent(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """A layer that answers at each step or at the last one, in one direction or in both."""
    both = type(layer).__name__ == "Bidirectional"
    inner = layer.forward_layer if both else layer
    op = type(inner).__name__
    known = op in RECURRENT and type(inner).__module__.startswith("keras.") and not inner.return_state
    if len(inputs) != 1 or not known or (both and layer.merge_mode != "concat"):
        return None
    biases = {} if getattr(inner, "reset_after", False) else {"biases": 1}
    given = {"units": inner.units, "bidirectional": both, "bias": bool(inner.use_bias), **biases}
    if inner.return_sequences:
        return [("output", op, given, (0,))]
    last = {"axis": 0, "start": inputs[0][0] - 1, "size": 1, "keepdims": False}
    return [("every", op, given, (0,)), ("output", "Slice", last, ("every",))]


def _transposed(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Padding and what is added at the end follow from the sizes: Keras says only 'same' or 'valid'."""
    if len(inputs[0]) != 3:
        return None
    kernel, stride, dilation = map(pair, (layer.kernel_size, layer.strides, layer.dilation_rate))
    padding, extra = [], []
    for size, wanted, length, step, spread in zip(inputs[0][1:], shape[1:], kernel, stride, dilation, strict=True):
        over = (size - 1) * step + (length - 1) * spread + 1 - wanted
        around = max(0, -(-over // 2))
        padding.append(around)
        extra.append(2 * around - over)
    return [("output", "Conv2DTranspose", {
        "filters": layer.filters, "kernel": kernel, "stride": stride, "dilation": dilation,
        "padding": padding, "output_padding": extra, **_trained(layer),
    }, (0,))]  # fmt: skip


def _upsampling(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    mode = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}.get(layer.interpolation)
    return None if mode is None else [("output", "Resize", {"size": shape[1:], "mode": mode}, (0,))]


def _einsum_dense(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """A product of the last axes with a matrix, several axes as one."""
    inner, outer = layer.equation.replace(" ", "").split("->")
    first, weight = inner.split(",")
    contracted = "".join(letter for letter in weight if letter not in outer)
    made = "".join(letter for letter in weight if letter in outer)
    if weight != contracted + made or not first.endswith(contracted) or not outer.endswith(made):
        return None
    kept, units = len(shape) - len(made), math.prod(shape[len(shape) - len(made) :])
    bias = layer.bias is not None
    if bias and math.prod(layer.bias.shape) != units:
        return None
    flat = inputs[0][: len(inputs[0]) - len(contracted)]
    steps: list[Step] = []
    if len(contracted) > 1:
        steps.append(("flat", "Reshape", {"shape": (*flat, math.prod(inputs[0][len(flat) :]))}, (0,)))
    dense = {**_trained(layer), "units": units, "bias": bias}
    steps.append(("product", "Dense", dense, ("flat" if steps else 0,)))
    if len(made) > 1:
        steps.append(("output", "Reshape", {"shape": shape}, ("product",)))
    return steps if kept == len(flat) else None


def _permuted(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Of what is no image, whose axes are in another order here."""
    axes = tuple(axis - 1 for axis in layer.dims)
    return [("output", "Transpose", {"axes": axes}, (0,))] if len(axes) != 3 else None


def _repeated(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    row: Step = ("row", "Reshape", {"shape": (1, *inputs[0])}, (0,))
    return [row, ("output", "Repeat", {"repeats": (layer.n, 1)}, ("row",))]


def _averaged(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    return [("sum", "Add", {}, tuple(range(len(inputs)))), ("output", "Rescaling", {}, ("sum",))]


def _each(function: str) -> Callable[..., Steps]:
    def steps(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
        made: list[Step] = []
        for at in range(1, len(inputs)):
            name = "output" if at == len(inputs) - 1 else f"part{at}"
            made.append((name, "Elementwise", {"function": function}, (made[-1][0] if made else 0, at)))
        return made or None

    return steps


def _padded1d(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    if getattr(layer, "data_format", "channels_last") not in (None, "channels_last"):
        return None
    before, after = layer.padding
    return [("output", "Pad", {"pads": (before, 0, after, 0)}, (0,))]


def _cropped1d(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    return [("output", "Slice", {"axis": 0, "start": layer.cropping[0], "size": shape[0]}, (0,))]


def _rms_norm(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Along the last axis of what is no image."""
    last = len(shape) != 3 and layer.axis in (-1, len(shape), [-1])
    return [("output", "RMSNormalization", {"axes": (len(shape) - 1,)}, (0,))] if last else None


def _trained(layer: Any) -> dict[str, Any]:
    function = layer.activation
    name = getattr(function, "__name__", type(function).__name__)
    bias = getattr(layer, "use_bias", True)
    return {"bias": bool(bias), "activation": None if name == "linear" else name}


RECURRENT = ("LSTM", "GRU", "SimpleRNN")
LAYERS: dict[str, Callable[..., Steps]] = {
    **dict.fromkeys((*RECURRENT, "Bidirectional"), _recurrent),
    "MultiHeadAttention": _attention,
    "Conv1D": _conv1d,
    "MaxPooling1D": _pool1d,
    "AveragePooling1D": _pool1d,
    "GlobalAveragePooling1D": _global_pool1d("Mean"),
    "GlobalMaxPooling1D": _global_pool1d("Max"),
    "Conv2DTranspose": _transposed,
    "UpSampling2D": _upsampling,
    "EinsumDense": _einsum_dense,
    "Permute": _permuted,
    "RepeatVector": _repeated,
    "Average": _averaged,
    "Maximum": _each("maximum"),
    "Minimum": _each("minimum"),
    "Subtract": _each("subtract"),
    "ZeroPadding1D": _padded1d,
    "Cropping1D": _cropped1d,
    "RMSNormalization": _rms_norm,
}
