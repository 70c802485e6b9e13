"""A whole network in int8, one compiled call a query: the alternative to choosing nodes where a network is small.

Weights are quantized as ``quantization`` rounds them; what enters a layer is quantized to uint8 in steps of its largest
value ÷ 255, so inputs must not be negative: pixels, counts, outputs of a ReLU.

Importing this module imports Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from slotool.compilation import njit
from slotool.elastic.activators.kernels.integer_dots import INPUTS_PER_GROUP, LANES, MANY, dots_few, dots_many
from slotool.elastic.activators.kernels.intrinsics import owned, pointer
from slotool.elastic.activators.kernels.layout import require_results
from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.elastic.activators.quantization import Int8Weights

STEPS = np.float32(255)
# Bits of the largest finite float32; those of NaN, infinity and negative numbers are more, read as unsigned.
_LARGEST_BITS, _MINUS_ZERO = np.uint32(0x7F7FFFFF), np.uint32(0x80000000)
# A handle holds an address and a length of each array, then those of the labels, the address of their scores, and the
# thread that it belongs to.
_ARRAYS = 7
_LABELS, _ANSWERS, _SCORES, _OWNER, _HANDLE = range(2 * _ARRAYS, 2 * _ARRAYS + 5)
# No sum of floats is reordered or fused here: plain NumPy gives the very same numbers. Each function says so itself,
# because otherwise it takes the fastmath of the caller that is compiled first.


class QuantizedMLP:
    """``mlp`` with int8 weights and uint8 inputs of every layer. Not to be shared between threads."""

    def __init__(self, mlp: MLP):
        self.mlp = mlp
        self.rows = [Int8Weights.of(layer.view) for layer in mlp.layers]
        packed = [_packed(rows.rows) for rows in self.rows]
        parts = list(zip(mlp.layers, self.rows, packed, strict=True))
        shape = [(layer.inputs, layer.units, len(part) // _groups(layer.inputs)) for layer, _, part in parts]
        steps = [np.concatenate([rows.scale, layer.bias]) for layer, rows, _ in parts]
        # Room for padding, in whole groups.
        width = 4 * _groups(max(max(layer.inputs, layer.units) for layer in mlp.layers)) + LANES * MANY
        workspaces = [np.zeros(width, kind) for kind in (np.float32, np.uint8, np.int64, np.int32)]
        # Shape, weights, steps; then workspaces for values, quantized inputs, the list of groups, and sums.
        self._state = (
            np.array(shape, dtype=np.int64).ravel(),
            np.concatenate(packed),
            np.concatenate(steps),
            *workspaces,
        )
        # Made once: addresses take a while to ask for. Logits want no labels.
        self._handle = self.handle(np.empty(0, np.int32), np.empty(0, np.float32))

    def handle(self, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """int64 for ``top_quantized``, good for as long as this object, ``labels`` int32 [p] and ``scores`` float32 [p]
        live. Raises ``ValueError`` for arrays that no answer fits into."""
        require_results(labels, scores)
        handle = np.zeros(_HANDLE, dtype=np.int64)
        for i, array in enumerate((*self._state, labels)):
            handle[2 * i : 2 * i + 2] = array.ctypes.data, array.size
        handle[_SCORES] = scores.ctypes.data
        return handle

    def logits(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Fill ``out`` float32 [n, classes] for ``x`` float32 [n, inputs], contiguous.

        Returns bool [n]: rows that could not be answered so, because a value is negative, NaN or infinite. Raises
        ``ValueError`` for arrays of another kind.
        """
        if not all(array.dtype == np.float32 and array.ndim == 2 and array.flags.c_contiguous for array in (x, out)):
            raise ValueError("inputs and logits must be float32 [n, values], contiguous")
        refused = np.empty(len(x), dtype=np.bool_)
        _logits(x, out, refused, self._handle)
        return refused

    def __reduce__(self) -> Any:
        raise TypeError(
            "an int8 network cannot be copied or pickled, because it holds addresses; make another of its MLP"
        )

    def logits_numpy(self, x: np.ndarray, out: np.ndarray) -> np.ndarray:
        """The same in plain NumPy."""
        refused: np.ndarray = ~(np.isfinite(x) & (x >= 0)).all(axis=1)
        values = np.where(refused[:, None], np.float32(0), x)
        for at, (layer, rows) in enumerate(zip(self.mlp.layers, self.rows, strict=True)):
            values = np.maximum(values, 0) if at else values
            overflown = ~np.all(np.isfinite(values), axis=1)
            refused |= overflown
            values = _layer_numpy(np.where(overflown[:, None], np.float32(0), values), layer.view, rows)
        out[:] = values
        return refused


def _layer_numpy(x: np.ndarray, layer: DenseLayer, rows: Int8Weights) -> np.ndarray:
    largest = x.max(axis=1, keepdims=True)
    per_step = np.divide(STEPS, largest, out=np.zeros_like(largest), where=largest > 0)
    quantized = (x * per_step + np.float32(0.5)).astype(np.int32)
    sums = (quantized @ rows.rows.T.astype(np.int32)).astype(np.float32)
    answer: np.ndarray = sums * (rows.scale * (largest / STEPS)) + layer.bias
    return answer


def _groups(inputs: int) -> int:
    return -(-inputs // INPUTS_PER_GROUP)


def _packed(rows: np.ndarray) -> np.ndarray:
    """int8 [groups · padded units · 4] from [units, inputs]; see ``integer_dots``."""
    units, inputs = rows.shape
    step = LANES if units <= LANES else LANES * MANY
    padded = np.zeros((-(-units // step) * step, _groups(inputs) * INPUTS_PER_GROUP), dtype=np.int8)
    padded[:units, :inputs] = rows
    return np.ascontiguousarray(padded.reshape(len(padded), -1, INPUTS_PER_GROUP).transpose(1, 0, 2)).ravel()


@njit(cache=True, fastmath=False)
def top_quantized(x: np.ndarray, handle: np.ndarray) -> int:
    """Write the best labels of ``x`` float32 [inputs], contiguous, and their scores to where ``handle`` says.

    Returns 0, or −1 for what cannot be quantized (a value that is negative, NaN or infinite), for another number of
    values, and in another thread than that of the first call.
    """
    return answer_quantized(x, handle) if owned(handle, _OWNER) else -1


@njit(cache=True, fastmath=False)
def answer_quantized(x: np.ndarray, handle: np.ndarray) -> int:
    """``top_quantized`` in any thread, for callers that copy the answer before they return."""
    if not _answer(x, handle):
        return -1
    wanted = handle[_ANSWERS]
    labels = carray(pointer(handle[_LABELS], np.int32(0)), (wanted,))
    scores = carray(pointer(handle[_SCORES], np.float32(0)), (wanted,))
    values, shape = _values(handle), carray(pointer(handle[0], np.int64(0)), (handle[1],))
    for i in range(wanted):
        labels[i], scores[i] = -1, -np.inf
    for label in range(shape[-2]):
        value, place = values[label], wanted - 1
        if value <= scores[place]:
            continue
        while place > 0 and scores[place - 1] < value:
            labels[place], scores[place] = labels[place - 1], scores[place - 1]
            place -= 1
        labels[place], scores[place] = label, value
    return 0


@njit(cache=True, fastmath=False)
def _logits(x: np.ndarray, out: np.ndarray, refused: np.ndarray, handle: np.ndarray) -> None:
    values, shape = _values(handle), carray(pointer(handle[0], np.int64(0)), (handle[1],))
    if out.shape != (len(x), shape[-2]) or len(refused) != len(x) or x.shape[1] != shape[0]:
        raise ValueError("arrays of shapes that do not belong together")
    for query in range(len(x)):
        refused[query] = not _answer(x[query], handle)
        if not refused[query]:
            out[query] = values[: out.shape[1]]


@njit(cache=True, forceinline=True, fastmath=False)
def _values(handle: np.ndarray) -> np.ndarray:
    return carray(pointer(handle[6], np.float32(0)), (handle[7],))


@njit(cache=True, fastmath=False)
def _answer(x: np.ndarray, handle: np.ndarray) -> bool:
    """All scores into the values; False for what cannot be quantized."""
    shape = carray(pointer(handle[0], np.int64(0)), (handle[1],))
    weights = carray(pointer(handle[2], np.int8(0)), (handle[3],))
    steps = carray(pointer(handle[4], np.float32(0)), (handle[5],))
    values = _values(handle)
    quantized = carray(pointer(handle[8], np.uint8(0)), (handle[9],))
    listed = carray(pointer(handle[10], np.int64(0)), (handle[11],))
    sums = carray(pointer(handle[12], np.int32(0)), (handle[13],))
    if len(x) != shape[0]:
        return False
    source: Any = x
    at: Any = 0
    step: Any = 0
    for layer in range(0, len(shape), 3):
        inputs, units, stride = shape[layer], shape[layer + 1], shape[layer + 2]
        largest = _largest(source[:inputs], sums)
        if largest < 0:
            return False
        _round(source[:inputs], np.float32(255) / largest if largest > 0 else np.float32(0), quantized)
        groups: Any = quantized.view(np.int32)[: (inputs + 3) // 4]
        count = _list_groups(groups, listed)
        _multiply(weights, at, stride, groups, listed, count, sums)
        scale = largest / np.float32(255)
        own, bias = steps[step : step + units], steps[step + units : step + 2 * units]
        last = layer == len(shape) - 3
        for unit in range(units):
            value = np.float32(sums[unit]) * (own[unit] * scale) + bias[unit]
            values[unit] = value if last or value > 0 else np.float32(0)
        at += stride * ((inputs + 3) // 4)
        step += 2 * units
        source = values
    return True


@njit(cache=True, fastmath=False)
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


@njit(cache=True, fastmath=False)
def _round(x: np.ndarray, per_step: Any, quantized: np.ndarray) -> None:
    """To uint8, with zeros up to the end of the last group."""
    for i in range(len(x), (len(x) + 3) // 4 * 4):
        quantized[i] = 0
    for i in range(len(x)):
        # By int32: only then are many converted at a time.
        quantized[i] = np.uint8(np.int32(x[i] * per_step + np.float32(0.5)))


@njit(cache=True, fastmath=False)
def _list_groups(groups: Any, listed: np.ndarray) -> int:
    """Which groups of four inputs are not all zero, and how many."""
    count = 0
    for group in range(len(groups)):
        listed[count] = group
        count += groups[group] != 0
    return count


@njit(cache=True, fastmath=False)
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
