"""Inputs and constants, products, attention, recurrent layers and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slotool.errors import GraphError
from slotool.graphs.operators.axes import (
    broadcast,
    channel_axis,
    chosen_axes,
    chosen_axis,
    per_channel,
    settle_channel_axes,
    settle_channel_axis,
)
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, Infer, OperatorType, Shape


def _input(attributes: Attributes, _: Sequence[Shape]) -> Effect:
    return Effect(attributes["shape"], moved=0)


def _constant(attributes: Attributes, _: Sequence[Shape]) -> Effect:
    """Values that are the same for every example: trained, as position embeddings, or fixed, as masks. ``shape`` has
    no batch; ``weights`` says how many trained numbers they are made of, ``flops`` what their products cost, which run
    once for a whole batch."""
    return Effect(attributes["shape"], attributes.get("weights", 0), attributes.get("flops", 0), moved=0)


def _dense(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    *outer, features = inputs[0]
    units, positions = attributes["units"], math.prod(outer)
    bias = units if attributes.get("bias", True) else 0
    return Effect((*outer, units), features * units + bias, 2 * features * units * positions)


def _embedding(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Of whole numbers below ``vocabulary`` each one's row of ``units`` numbers."""
    shape = (*inputs[0], attributes["units"])
    return Effect(
        shape, attributes["vocabulary"] * attributes["units"], moved=math.prod(inputs[0]) + 2 * math.prod(shape)
    )


def _mat_mul(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Products of matrices [..., rows, inner] and [..., inner, columns]; leading axes stretch."""
    (*left, rows, inner), (*right, height, columns) = inputs
    if inner != height:
        raise GraphError(f"matrices of {list(inputs[0])} and {list(inputs[1])} cannot be multiplied")
    leading = broadcast([tuple(left), tuple(right)])
    return Effect((*leading, rows, columns), 0, 2 * math.prod(leading) * rows * inner * columns)


def _attention(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Of query [..., heads, length, dim], key [..., heads, steps, dim], value [..., heads, steps, width] and perhaps a
    mask that is added to or chooses among the scores [..., length, steps].

    Heads of key and value may be fewer, each for as many of the query's. FLOPs are those of both products over all
    scores, also where ``causal`` hides half of them; the softmax between is left out, as torch's own counter does.
    """
    query, key, value, *mask = inputs
    (*outer, length, dim), (*groups, steps, depth), width = query, key, value[-1]
    if len(mask) > 1 or depth != dim or value[:-1] != key[:-1] or not _is_grouped(outer, groups):
        raise GraphError(f"attention cannot take inputs {list(map(list, inputs))}")
    if mask:
        broadcast([mask[0], (*outer, length, steps)])
    scores = math.prod(outer) * length * steps
    return Effect((*outer, length, width), 0, 2 * scores * (dim + width))


def _is_grouped(outer: Sequence[int], groups: Sequence[int]) -> bool:
    """Whether heads of key and value fit those of the query."""
    if list(outer) == list(groups):
        return True
    return len(outer) == len(groups) > 0 and outer[:-1] == groups[:-1] and outer[-1] % groups[-1] == 0


# Weights of a recurrent layer that stay in the last cache from step to step, as numbers: 16 MiB of float32.
CACHED_WEIGHTS = 2**22


def _recurrent(gates: int, products: int, calls: int = 0) -> Infer:
    """A layer over (steps, features), or over (sequences, steps, features) of which each is one more example, that
    keeps a state of ``units`` numbers, with so many gates. It may take the states that it begins with as further
    inputs, each of as many numbers as its output has, layer by layer, of each both directions. ``projection``: of how
    many numbers its output is, made of the state by one more product, where these are not the state itself (Sak, Senior
    and Beaufays 2014).
    ``biases``: how many each gate has, two as in torch, ONNX and Keras' GRU, or one as in Keras' other layers.

    Each step waits for the one before: it reads again what of the state's weights no cache holds, and takes ``calls``
    kernels of its own. All steps of an LSTM without a projection are one kernel, as oneDNN has it.
    """

    def infer(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
        *sequences, steps, features = inputs[0]
        if len(sequences) > 1:
            raise GraphError(f"a recurrent layer cannot take inputs of {list(inputs[0])}")
        units, directions = attributes["units"], 1 + attributes.get("bidirectional", False)
        bias = attributes.get("biases", 2) * gates * units if attributes.get("bias", True) else 0
        projection = attributes.get("projection", 0)
        answer = projection or units
        states = directions * attributes.get("layers", 1) * answer
        if inputs[1:] and (sequences or {*map(math.prod, inputs[1:])} != {states}):
            raise GraphError(f"a recurrent layer cannot begin with states of {list(map(list, inputs[1:]))}")
        # Of layers after the first each takes what all directions of the one before give.
        more = attributes.get("layers", 1) - 1
        matrices = gates * units * (features + answer + more * (directions * answer + answer))
        matrices += (1 + more) * units * projection
        weights = directions * (matrices + (1 + more) * bias)
        flops = directions * products * matrices * steps * math.prod(sequences)
        shape = (*sequences, steps, directions * answer)
        state = gates * units * answer + units * projection
        again = directions * (1 + more) * (steps - 1) * max(0, state - CACHED_WEIGHTS)
        waits = directions * (1 + more) * steps * (calls or bool(projection))
        return Effect(shape, weights, flops, math.prod(inputs[0]) + math.prod(shape) + again, 1 + waits)

    return infer


def _batch_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Moving mean and variance are counted as weights, as Keras counts them."""
    parts = 2 + attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * inputs[0][chosen_axis(attributes, inputs[0])], 2 * math.prod(inputs[0]))


def _layer_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Per value: one for the mean, three for the variance, one to normalise, two to scale and shift."""
    parts = attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * _sizes(attributes, inputs[0]), 7 * math.prod(inputs[0]))


def _rms_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Per value: two for the mean of squares, one to divide, one to scale (Zhang and Sennrich 2019)."""
    return Effect(inputs[0], attributes.get("scale", True) * _sizes(attributes, inputs[0]), 4 * math.prod(inputs[0]))


def _sizes(attributes: Attributes, shape: Shape) -> int:
    return math.prod(shape[axis] for axis in chosen_axes(attributes, shape))


def _group_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Channels (axis 0) are normalised in ``groups``: as many as channels, and it is an instance norm."""
    channels = inputs[0][0]
    if channels % attributes["groups"]:
        raise GraphError(f"{channels} channels cannot form {attributes['groups']} groups")
    parts = attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * channels, 7 * math.prod(inputs[0]))


def _response_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Divides by a mean of squares over ``size`` neighbouring channels."""
    return Effect(inputs[0], 0, (2 * attributes["size"] + 3) * math.prod(inputs[0]))


def _normalization(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Mean and variance per channel and, as in Keras, one counter; no weights when they are ``fixed`` constants."""
    weights = 0 if attributes.get("fixed") else 2 * inputs[0][channel_axis(inputs[0])] + 1
    return Effect(inputs[0], weights, 2 * math.prod(inputs[0]))


def _layer_scale(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """One trained factor per channel (Touvron et al. 2021)."""
    return Effect(inputs[0], math.prod(per_channel(inputs[0])), math.prod(inputs[0]))


_NORM = {"scale": True, "center": True}
_RECURRENT = {"units": REQUIRED, "layers": 1, "bidirectional": False, "bias": True, "biases": 2}

LAYERS: dict[str, OperatorType] = {
    "InputLayer": OperatorType(_input, {"shape": REQUIRED, "dtype": "float32"}, inputs=0),
    "Constant": OperatorType(
        _constant, {"shape": REQUIRED, "dtype": "float32", "weights": 0, "flops": 0}, inputs=0, is_product=True
    ),
    "Dense": OperatorType(_dense, {"units": REQUIRED, "bias": True, "activation": None}, is_product=True),
    "Embedding": OperatorType(_embedding, {"vocabulary": REQUIRED, "units": REQUIRED}),
    "MatMul": OperatorType(_mat_mul, inputs=2, is_product=True),
    "ScaledDotProductAttention": OperatorType(_attention, {"causal": False}, inputs=None, is_product=True),
    "LSTM": OperatorType(_recurrent(4, 2), {**_RECURRENT, "projection": 0}, inputs=None, is_product=True),
    "GRU": OperatorType(_recurrent(3, 2, 1), _RECURRENT, inputs=None, is_product=True),
    "SimpleRNN": OperatorType(_recurrent(1, 2, 1), _RECURRENT, inputs=None, is_product=True),
    "BatchNormalization": OperatorType(_batch_norm, {**_NORM, "axis": None}, settle=settle_channel_axis),
    "LayerNormalization": OperatorType(_layer_norm, {**_NORM, "axes": None}, settle=settle_channel_axes),
    "RMSNormalization": OperatorType(_rms_norm, {"scale": True, "axes": None}, settle=settle_channel_axes),
    "GroupNormalization": OperatorType(_group_norm, {"groups": REQUIRED, **_NORM}, channels_first=True),
    "LocalResponseNormalization": OperatorType(_response_norm, {"size": REQUIRED}, channels_first=True),
    "Normalization": OperatorType(_normalization, {"fixed": False}),
    "LayerScale": OperatorType(_layer_scale),
}
