"""Operators with or without weights that keep to no window: dense layers, norms, arithmetic, reshaping."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slotool.errors import GraphError
from slotool.graphs.operators.axes import channel_axis, per_channel
from slotool.graphs.operators.kinds import REQUIRED, Attributes, Effect, OperatorType, Shape


def _input(attributes: Attributes, _: Sequence[Shape]) -> Effect:
    return Effect(attributes["shape"])


def _dense(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    *outer, features = inputs[0]
    units, positions = attributes["units"], math.prod(outer)
    bias = units if attributes.get("bias", True) else 0
    return Effect((*outer, units), features * units + bias, 2 * features * units * positions)


def _flatten(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect((math.prod(inputs[0]),))


def _reshape(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    if math.prod(attributes["shape"]) != math.prod(inputs[0]):
        raise GraphError(f"Reshape cannot make {list(attributes['shape'])} of {list(inputs[0])}")
    return Effect(attributes["shape"])


def _batch_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Moving mean and variance are counted as weights, as Keras counts them."""
    parts = 2 + attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * inputs[0][channel_axis(inputs[0])], 2 * math.prod(inputs[0]))


def _layer_norm(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Per value: one for the mean, three for the variance, one to normalise, two to scale and shift."""
    parts = attributes.get("scale", True) + attributes.get("center", True)
    return Effect(inputs[0], parts * inputs[0][channel_axis(inputs[0])], 7 * math.prod(inputs[0]))


def _normalization(attributes: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Mean and variance per channel and, as in Keras, one counter; no weights when they are ``fixed`` constants."""
    weights = 0 if attributes.get("fixed") else 2 * inputs[0][channel_axis(inputs[0])] + 1
    return Effect(inputs[0], weights, 2 * math.prod(inputs[0]))


def _layer_scale(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """One trained factor per channel (Touvron et al. 2021)."""
    return Effect(inputs[0], math.prod(per_channel(inputs[0])), math.prod(inputs[0]))


def _elementwise(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    return Effect(inputs[0], 0, math.prod(inputs[0]))


def _combine(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    """Inputs broadcast: of each axis, a size of one stretches to the others'."""
    sizes = [sorted(set(axis)) for axis in zip(*inputs, strict=True)]
    if any(len(axis) > 2 or (len(axis) == 2 and axis[0] != 1) for axis in sizes):
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    shape = tuple(axis[-1] for axis in sizes)
    return Effect(shape, 0, math.prod(shape) * (len(inputs) - 1))


def _concatenate(_: Attributes, inputs: Sequence[Shape]) -> Effect:
    axis = channel_axis(inputs[0])
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in inputs}
    if len(rest) != 1:
        raise GraphError(f"inputs of shapes {list(map(list, inputs))} do not fit each other")
    return Effect((*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :]))


LAYERS: dict[str, OperatorType] = {
    "InputLayer": OperatorType(_input, {"shape": REQUIRED}, inputs=0),
    "Dense": OperatorType(_dense, {"units": REQUIRED, "bias": True, "activation": None}),
    "Flatten": OperatorType(_flatten),
    "Reshape": OperatorType(_reshape, {"shape": REQUIRED}),
    "BatchNormalization": OperatorType(_batch_norm, {"scale": True, "center": True}),
    "LayerNormalization": OperatorType(_layer_norm, {"scale": True, "center": True}),
    "Normalization": OperatorType(_normalization, {"fixed": False}),
    "LayerScale": OperatorType(_layer_scale),
    "Rescaling": OperatorType(_elementwise),
    "ReLU": OperatorType(_elementwise),
    "Softmax": OperatorType(_elementwise),
    "Activation": OperatorType(_elementwise, {"activation": REQUIRED}),
    "Add": OperatorType(_combine, inputs=None),
    "Multiply": OperatorType(_combine, inputs=None),
    "Concatenate": OperatorType(_concatenate, inputs=None),
}
