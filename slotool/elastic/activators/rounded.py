"""A whole network in int8, one compiled call a query: the rival of choosing nodes where a network is small.

Weights are rounded as ``quantisation`` rounds them; what enters a layer is rounded to uint8 in steps of its largest
value ÷ 255, which asks for inputs that are not negative: pixels, counts, and whatever leaves a ReLU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from slotool.elastic.activators.integer_dots import INPUTS_PER_GROUP, LANES, MANY, dots_few, dots_many
from slotool.elastic.activators.layer_kernels import FAST
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.activators.quantisation import Int8Rows
from slotool.errors import InputError

STEPS = np.float32(255)
# Bits of the largest finite float32; those of NaN, infinity and negative numbers are more, read as unsigned.
_LARGEST_BITS, _MINUS_ZERO = np.uint32(0x7F7FFFFF), np.uint32(0x80000000)


class RoundedMLP:
    """``mlp`` with int8 weights and uint8 inputs of every layer. Not to be shared between threads."""

    def __init__(self, mlp: MLP):
        self.mlp = mlp
        self.rows = [Int8Rows.of(layer) for layer in mlp.layers]
        packed = [_packed(rows.rows) for rows in self.rows]
        parts = list(zip(mlp.layers, self.rows, packed, strict=True))
        shape = [(layer.inputs, layer.units, len(part) // _groups(layer.inputs)) for layer, _, part in parts]
        self._shape = np.array(shape, dtype=np.int64)
        self._weights = np.concatenate(packed)
        self._steps = np.concatenate([np.concatenate([rows.scale, layer.bias]) for layer, rows, _ in parts])
        # Room for padding, in whole groups.
        width = 4 * _groups(max(max(layer.inputs, layer.units) for layer in mlp.layers)) + LANES * MANY
        self._values: np.ndarray = np.zeros(width, np.float32)
        self._rounded: np.ndarray = np.zeros(width, np.uint8)
        self._listed: np.ndarray = np.zeros(width, np.int64)
        self._sums: np.ndarray = np.zeros(width, np.int32)

    def label(self, x: np.ndarray) -> int:
        """The label that scores highest for ``x`` float32 [inputs], contiguous.

        Raises ``InputError`` for NaN, infinite and negative values.
        """
        label = _answer(
            x, self._shape, self._weights, self._steps, self._values, self._rounded, self._listed, self._sums
        )
        if label < 0:
            raise InputError("the input cannot be answered in int8: a value is negative, NaN or infinite")
        return label

    def logits(self, x: np.ndarray) -> np.ndarray:
        """float32 [classes] of ``x`` float32 [inputs]; see ``label``."""
        self.label(x)
        return self._values[: self.mlp.classes].copy()

    def logits_numpy(self, x: np.ndarray) -> np.ndarray:
        """The same in plain NumPy."""
        values = x
        for at, (layer, rows) in enumerate(zip(self.mlp.layers, self.rows, strict=True)):
            values = _layer_numpy(np.maximum(values, 0) if at else values, layer, rows)
        return values


def _layer_numpy(x: np.ndarray, layer: DenseLayer, rows: Int8Rows) -> np.ndarray:
    largest = x.max()
    per_step = STEPS / largest if largest > 0 else np.float32(0)
    rounded = (x * per_step + np.float32(0.5)).astype(np.int32)
    return (rows.rows.astype(np.int32) @ rounded).astype(np.float32) * (rows.scale * (largest / STEPS)) + layer.bias


def _groups(inputs: int) -> int:
    return -(-inputs // INPUTS_PER_GROUP)


def _packed(rows: np.ndarray) -> np.ndarray:
    """int8 [groups · padded units · 4] from [units, inputs]; see ``integer_dots``."""
    units, inputs = rows.shape
    step = LANES if units <= LANES else LANES * MANY
    padded = np.zeros((-(-units // step) * step, _groups(inputs) * INPUTS_PER_GROUP), dtype=np.int8)
    padded[:units, :inputs] = rows
    return np.ascontiguousarray(padded.reshape(len(padded), -1, INPUTS_PER_GROUP).transpose(1, 0, 2)).ravel()


@njit(cache=True, fastmath=FAST)
def _answer(
    x: np.ndarray,
    shape: np.ndarray,
    weights: np.ndarray,
    steps: np.ndarray,
    values: np.ndarray,
    rounded: np.ndarray,
    listed: np.ndarray,
    sums: np.ndarray,
) -> int:
    """The best label, or −1 for what cannot be rounded; ``values`` then hold all scores."""
    source: Any = x
    at: Any = 0
    step: Any = 0
    for layer in range(len(shape)):
        inputs, units, stride = shape[layer, 0], shape[layer, 1], shape[layer, 2]
        largest = _largest(source[:inputs], sums)
        if largest < 0:
            return -1
        _round(source[:inputs], np.float32(255) / largest if largest > 0 else np.float32(0), rounded)
        groups: Any = rounded.view(np.int32)[: (inputs + 3) // 4]
        count = _list_groups(groups, listed)
        _multiply(weights, at, stride, groups, listed, count, sums)
        scale = largest / np.float32(255)
        own, bias = steps[step : step + units], steps[step + units : step + 2 * units]
        last = layer == len(shape) - 1
        for unit in range(units):
            value = np.float32(sums[unit]) * (own[unit] * scale) + bias[unit]
            values[unit] = value if last or value > 0 else np.float32(0)
        at += stride * ((inputs + 3) // 4)
        step += 2 * units
        source = values
    best = 0
    for label in range(shape[-1, 1]):
        if values[label] > values[best]:
            best = label
    return best


@njit(cache=True, fastmath=FAST)
def _largest(x: np.ndarray, scratch: np.ndarray) -> Any:
    """The largest value, by its bits: they order numbers that are not negative. −1 for anything else."""
    bits: Any = x.view(np.uint32)
    most = np.uint32(0)
    for i in range(len(bits)):
        most = max(most, bits[i] if bits[i] != _MINUS_ZERO else np.uint32(0))
    if most > _LARGEST_BITS:
        return np.float32(-1)
    scratch.view(np.uint32)[0] = most
    return scratch.view(np.float32)[0]


@njit(cache=True, fastmath=FAST)
def _round(x: np.ndarray, per_step: Any, rounded: np.ndarray) -> None:
    """To uint8, with zeros up to the end of the last group."""
    for i in range(len(x), (len(x) + 3) // 4 * 4):
        rounded[i] = 0
    for i in range(len(x)):
        # By int32: only then are many converted at a time.
        rounded[i] = np.uint8(np.int32(x[i] * per_step + np.float32(0.5)))


@njit(cache=True)
def _list_groups(groups: Any, listed: np.ndarray) -> int:
    """Which groups of four inputs are not all zero, and how many."""
    count = 0
    for group in range(len(groups)):
        listed[count] = group
        count += groups[group] != 0
    return count


@njit(cache=True)
def _multiply(
    weights: np.ndarray, at: int, stride: int, groups: np.ndarray, listed: np.ndarray, count: int, sums: np.ndarray
) -> None:
    done, padded = 0, stride // 4
    while padded - done >= 128:
        dots_many(weights, at + 4 * done, stride, groups, listed, count, sums, done)
        done += 128
    while done < padded:
        dots_few(weights, at + 4 * done, stride, groups, listed, count, sums, done)
        done += 16
