"""Keras layers as our operators: those that are one each, and those that are several or one on turned axes.

Images are channels first here, and sequences (steps, features); Keras' own windows along steps have channels last.
A new layer is an entry of ``SINGLE`` where it is one operator with its attributes, else of ``SEVERAL``, but of
``windows.WINDOWS`` where it moves a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Operation, Step, Steps, in_a_row
from slotool.graphs.capture.keras.windows import WINDOWS, activation_of, has_channels_last, layer_steps, trained
from slotool.graphs.operators import Shape

Attributes = Mapping[str, Any]
# Layers for training only, or that pass their input on.
DROPPED = (
    *("RandomBrightness", "RandomColorDegeneration", "RandomColorJitter", "RandomContrast", "RandomElasticTransform"),
    *("RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert"),
    *("RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness"),
    *("RandomShear", "RandomTranslation", "RandomZoom", "AugMix", "CutMix", "MixUp", "RandAugment"),
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "SpatialDropout1D",
    "SpatialDropout2D",
)


def _around(value: Any) -> tuple[int, int, int, int]:
    (top, bottom), (left, right) = value
    return top, bottom, left, right


def _norm(layer: Any) -> Attributes:
    return {"scale": bool(layer.scale), "center": bool(layer.center)}


def _relu(layer: Any) -> Attributes | None:
    if layer.threshold or (layer.max_value not in (None, 6)):
        return None
    if layer.negative_slope:
        return {"activation": "leaky_relu"} if layer.max_value is None else None
    return {"activation": "relu" if layer.max_value is None else "relu6"}


def _no_attributes(_: Any) -> Attributes:
    return {}


ALONG_AN_AXIS = (
    *("BatchNormalization", "GroupNormalization", "LayerNormalization", "LayerScale", "Concatenate", "Softmax"),
    "Normalization",
)
ACTIVATION_LAYERS = ("Activation", "ReLU", "LeakyReLU", "ELU")
SINGLE: dict[str, Callable[[Any], Attributes | None]] = {
    "Dense": lambda layer: {"units": layer.units, **trained(layer)},
    **{f"Global{kind}Pooling2D": lambda layer: {"keepdims": bool(layer.keepdims)} for kind in ("Average", "Max")},
    "ZeroPadding2D": lambda layer: {"padding": _around(layer.padding)},
    "Cropping2D": lambda layer: {"cropping": _around(layer.cropping)},
    "Embedding": lambda layer: {"vocabulary": layer.input_dim, "units": layer.output_dim},
    "GroupNormalization": lambda layer: {"groups": layer.groups, **_norm(layer)},
    "BatchNormalization": _norm,
    "LayerNormalization": _norm,
    "Normalization": lambda layer: {"fixed": layer.input_mean is not None},
    **dict.fromkeys(
        ("Flatten", "LayerScale", "Rescaling", "Softmax", "Add", "Multiply", "Concatenate"), _no_attributes
    ),
    **dict.fromkeys(DROPPED, _no_attributes),
    "Activation": lambda layer: {"activation": activation_of(layer)},
    "ReLU": _relu,
    "LeakyReLU": lambda _: {"activation": "leaky_relu"},
    "ELU": lambda _: {"activation": "elu"},
}


def steps_of(layer: Any, inputs: Sequence[Shape], shape: Shape, call: dict[str, Any]) -> Steps:
    """Return a layer as steps, the last its output; None for one operator, or an unknown one.

    ``call``: arguments of the call by name.
    """
    name = type(layer).__name__
    if name in WINDOWS:
        return layer_steps(layer, inputs, shape)
    if name not in SEVERAL or not inputs or (name in CHANNELS_LAST and not has_channels_last(layer)):
        return None
    return SEVERAL[name](layer, inputs, shape, call)


def _attention(layer: Any, inputs: Sequence[Shape], shape: Shape, call: dict[str, Any]) -> Steps:
    """Return attention of query, value and perhaps key, in this order, without a mask of its own.

    Key and value may have fewer heads, which Keras repeats.
    """
    if len(inputs) not in (2, 3) or any(len(each) != 2 for each in (*inputs, shape)):
        return None
    if type(layer).__name__ == "MultiHeadAttention":
        heads = fewer = layer.num_heads
        dims = {"query": layer.key_dim, "key": layer.key_dim, "value": layer.value_dim}
    else:
        heads, fewer = layer.num_query_heads, layer.num_key_value_heads
        dims = dict.fromkeys(("query", "key", "value"), layer.head_dim)
    bias, width = bool(layer.use_bias), heads * dims["value"]
    sources = {"query": 0, "key": 2 if len(inputs) == 3 else 1, "value": 1}
    steps: list[Step] = []
    for part, source in sources.items():
        count, length, dim = heads if part == "query" else fewer, inputs[source][0], dims[part]
        steps += [
            (f"{part}.product", "Dense", {"units": count * dim, "bias": bias}, (source,)),
            (f"{part}.split", "Reshape", {"shape": (length, count, dim)}, (f"{part}.product",)),
            (part, "Transpose", {"axes": (1, 0, 2)}, (f"{part}.split",)),
        ]
        if count < heads:
            steps[-1] = (f"{part}.turned", *steps[-1][1:])
            steps += [
                (f"{part}.rows", "Reshape", {"shape": (count, 1, length, dim)}, (f"{part}.turned",)),
                (f"{part}.repeated", "Repeat", {"repeats": (1, heads // count, 1, 1)}, (f"{part}.rows",)),
                (part, "Reshape", {"shape": (heads, length, dim)}, (f"{part}.repeated",)),
            ]
    if call.get("return_attention_scores"):
        steps += [
            ("key.turned_back", "Transpose", {"axes": (0, 2, 1)}, ("key",)),
            ("product", "MatMul", {}, ("query", "key.turned_back")),
            ("scores", "Softmax", {"axis": 2}, ("product",)),
            ("attention", "MatMul", {}, ("scores", "value")),
            # Three axes are an image's, with the last of Keras' first.
            ("output1", "Transpose", {"axes": (2, 0, 1)}, ("scores",)),
        ]
    else:
        causal = {"causal": True} if call.get("use_causal_mask") else {}
        steps.append(("attention", "ScaledDotProductAttention", causal, ("query", "key", "value")))
    steps += [
        ("turned", "Transpose", {"axes": (1, 0, 2)}, ("attention",)),
        ("joined", "Reshape", {"shape": (inputs[0][0], width)}, ("turned",)),
    ]
    if getattr(layer, "use_gate", False):
        steps += [
            ("gate", "Dense", {"units": width, "bias": bias, "activation": "sigmoid"}, (0,)),
            ("gated", "Multiply", {}, ("joined", "gate")),
        ]
    return [*steps, ("output", "Dense", {"units": shape[-1], "bias": bias}, (steps[-1][0],))]


def _recurrent(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a layer with outputs at each step or the last, in one or both directions, and its last states.

    All of these are the last step's here. Inputs after the first are initial states.
    """
    both = type(layer).__name__ == "Bidirectional"
    inner = layer.forward_layer if both else layer
    op = type(inner).__name__
    is_keras = op in RECURRENT and type(inner).__module__.startswith("keras.")
    if not is_keras or (both and (inner.return_state or len(inputs) > 1 or layer.merge_mode not in MERGED)):
        return None
    biases = {} if getattr(inner, "reset_after", False) else {"biases": 1}
    settings = {"units": inner.units, "bidirectional": both, "bias": bool(inner.use_bias), **biases}
    steps: list[Step] = [("every", op, settings, tuple(range(len(inputs))))]
    if both and layer.merge_mode != "concat":
        half = {"axis": 1, "size": inner.units}
        steps += [
            ("forward", "Slice", half, ("every",)),
            ("backward", "Slice", {**half, "start": inner.units}, ("every",)),
            ("merged", MERGED[layer.merge_mode], {}, ("forward", "backward")),
        ]
        if layer.merge_mode == "ave":
            steps.append(("halved", "Rescaling", {}, ("merged",)))
    *before, (name, op, attributes, sources) = steps
    last = {"axis": 0, "start": inputs[0][0] - 1, "size": 1, "keepdims": False}
    if inner.return_sequences:
        steps = [*before, ("output", op, attributes, sources)]
        name = "output"
    else:
        steps.append(("output", "Slice", last, (name,)))
    if inner.return_state:
        steps += [(f"output{at}", "Slice", last, (name,)) for at in range(2 if op == "LSTM" else 1)]
    return steps


def _einsum_dense(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a product of the last axes with a matrix, several axes as one."""
    inner, outer = layer.equation.replace(" ", "").split("->")
    first, weight = inner.split(",")
    contracted = "".join(letter for letter in weight if letter not in outer)
    outputs = "".join(letter for letter in weight if letter in outer)
    if weight != contracted + outputs or not first.endswith(contracted) or not outer.endswith(outputs):
        return None
    leading, units = len(shape) - len(outputs), math.prod(shape[len(shape) - len(outputs) :])
    bias = layer.bias is not None
    if bias and math.prod(layer.bias.shape) != units:
        return None
    flat = inputs[0][: len(inputs[0]) - len(contracted)]
    operations: list[Operation] = [("Dense", {**trained(layer), "units": units, "bias": bias})]
    if len(contracted) > 1:
        operations.insert(0, ("Reshape", {"shape": (*flat, math.prod(inputs[0][len(flat) :]))}))
    if len(outputs) > 1:
        operations.append(("Reshape", {"shape": shape}))
    return in_a_row(*operations) if leading == len(flat) else None


def _permuted(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a permutation of values without channels, whose axes are in another order here."""
    axes = tuple(axis - 1 for axis in layer.dims)
    return in_a_row(("Transpose", {"axes": axes})) if len(axes) != 3 else None


def _repeated(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    return in_a_row(("Reshape", {"shape": (1, *inputs[0])}), ("Repeat", {"repeats": (layer.n, 1)}))


def _globally_pooled(op: str) -> Callable[..., Steps]:
    """Over steps or a volume."""

    def pooled(layer: Any, inputs: Sequence[Shape], *_: object) -> Steps:
        return in_a_row((op, {"axes": tuple(range(len(inputs[0]) - 1)), "keepdims": bool(layer.keepdims)}))

    return pooled


def _padded(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return steps or a volume with zeros around them."""
    pairs = layer.padding if isinstance(layer.padding[0], list | tuple) else (layer.padding,)
    pads = (*(before for before, _ in pairs), 0, *(after for _, after in pairs), 0)
    return in_a_row(("Pad", {"pads": pads}))


def _cropped(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return a part of steps or a volume, axis by axis."""
    pairs = layer.cropping if isinstance(layer.cropping[0], list | tuple) else (layer.cropping,)
    slices = ({"axis": axis, "start": before, "size": shape[axis]} for axis, (before, _) in enumerate(pairs))
    return in_a_row(*(("Slice", part) for part in slices))


def _averaged(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    return [("sum", "Add", {}, tuple(range(len(inputs)))), (OUTPUT, "Rescaling", {}, ("sum",))]


def _scaled_sum(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return the InceptionResNetV2's residual sum, its second part scaled down."""
    return [("scale", "Rescaling", {}, (1,)), ("output", "Add", {}, (0, "scale"))]


def _encoded(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Return each number's row of the unit matrix, or the sum or maximum of all rows."""
    reduced = ("Sum" if layer.output_mode == "count" else "Max", {"axes": (-2,)})
    op, attributes = ("Reshape", {"shape": shape}) if layer.output_mode == "one_hot" else reduced
    return [
        ("rows", "Constant", {"shape": (layer.num_tokens,) * 2}, ()),
        ("each", "Gather", {"axis": 0}, ("rows", 0)),
        (OUTPUT, op, attributes, ("each",)),
    ]


def _each(function: str) -> Callable[..., Steps]:
    def steps(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
        parts: list[Step] = []
        for at in range(1, len(inputs)):
            name = "output" if at == len(inputs) - 1 else f"part{at}"
            parts.append((name, "Elementwise", {"function": function}, (parts[-1][0] if parts else 0, at)))
        return parts or None

    return steps


def _rms_norm(layer: Any, inputs: Sequence[Shape], shape: Shape, _: dict[str, Any]) -> Steps:
    """Along the last axis of what is no image."""
    last = len(shape) != 3 and layer.axis in (-1, len(shape), [-1])
    return in_a_row(("RMSNormalization", {"axes": (len(shape) - 1,)})) if last else None


RECURRENT = ("LSTM", "GRU", "SimpleRNN")
# Combination of both directions, by merge mode.
MERGED = {"concat": "Concatenate", "sum": "Add", "ave": "Add", "mul": "Multiply"}
# Layers of steps or volumes that are followed only where these have their channels last, as by default.
CHANNELS_LAST: dict[str, Callable[..., Steps]] = {
    **{f"GlobalAveragePooling{rank}D": _globally_pooled("Mean") for rank in (1, 3)},
    **{f"GlobalMaxPooling{rank}D": _globally_pooled("Max") for rank in (1, 3)},
    **{f"ZeroPadding{rank}D": _padded for rank in (1, 3)},
    **{f"Cropping{rank}D": _cropped for rank in (1, 3)},
}
SEVERAL: dict[str, Callable[..., Steps]] = {
    **CHANNELS_LAST,
    **dict.fromkeys((*RECURRENT, "Bidirectional"), _recurrent),
    **dict.fromkeys(("MultiHeadAttention", "GroupedQueryAttention"), _attention),
    "EinsumDense": _einsum_dense,
    "Permute": _permuted,
    "RepeatVector": _repeated,
    "Average": _averaged,
    "CustomScaleLayer": _scaled_sum,
    "CategoryEncoding": _encoded,
    "Maximum": _each("maximum"),
    "Minimum": _each("minimum"),
    "Subtract": _each("subtract"),
    "RMSNormalization": _rms_norm,
}
