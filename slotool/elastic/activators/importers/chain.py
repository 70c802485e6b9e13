"""A trained network of another library, layer by layer, folded into a chain of layers with ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slotool.elastic.activators.convolution import ConvLayer
from slotool.elastic.activators.mlp import MLP, DenseLayer, Layer
from slotool.errors import InputError


class Chain:
    """Takes a network's layers in their order; what inference does not need is folded into those that have weights.

    A normalisation or another scaling becomes part of the layer before it, or after a ReLU of the one behind it; the
    mean over whole images part of the dense layer behind it. A softmax at the end is left out, for it does not change
    which class is first. ``input_shape``: of one example, images [channels, height, width]; ``channels_last``: the
    library has them the other way round, so that flattening gives their values in another order.
    Raises ``InputError``, naming the layer, for what no chain
    ``(Conv2D(relu) → MaxPooling2D?)* → Flatten? → Dense(relu)… → Dense`` can be.
    """

    def __init__(self, input_shape: tuple[int, ...], channels_last: bool = False):
        self._input_shape = input_shape
        self._layers: list[Layer] = []
        self._rectified: list[bool] = []
        # Of what comes next: its shape, whether it is flattened, and whether only its means over images are left.
        self._shape = input_shape
        self._flat = len(input_shape) == 1
        self._averaged = False
        # Factor and offset of the values that the next layer receives: numbers, one per channel, or one per value.
        self._pending: tuple[np.ndarray, np.ndarray] | None = None
        self._last = channels_last
        self._ended = False

    def dense(self, name: str, weights: Any, bias: Any | None) -> None:
        """``weights``: [units, inputs]; ``bias``: [units] or None."""
        self._open(name)
        if not self._flat:
            raise InputError(f"layer {name!r} takes inputs of several axes, which must be flattened first")
        # Not copied where nothing is folded in: they may be large, and mapped from a file.
        rows = np.asarray(weights)
        if rows.ndim != 2:
            raise InputError(f"layer {name!r} has weights of shape {rows.shape}, not [units, inputs]")
        if rows.shape[1] != self._width:
            raise InputError(f"layer {name!r} takes {rows.shape[1]} values, and {self._width} come in")
        shift = np.zeros(len(rows)) if bias is None else np.asarray(bias)
        self._require_relu(name)
        if not self._averaged:
            rows = rows[:, self._order]
        if self._pending is not None or self._averaged:
            rows = rows.astype(np.float64)
        if self._pending is not None:
            factor, offset = (self._per_value(part) for part in self._pending)
            shift, rows, self._pending = shift + rows @ offset, rows * factor, None
        if self._averaged:
            positions = int(np.prod(self._shape[1:]))
            rows, self._averaged = np.repeat(rows, positions, axis=1) / positions, False
        self._add(DenseLayer(name, _float32(rows), _float32(shift)), (len(rows),))

    def convolution(
        self, name: str, weights: Any, bias: Any | None, stride: tuple[int, int], padding: tuple[int, int, int, int]
    ) -> None:
        """``weights``: [channels, input channels, height, width]; ``padding`` by zeros: (top, bottom, left, right)."""
        self._open(name)
        kernels = np.array(weights, dtype=np.float64)
        if self._flat or len(self._shape) != 3 or self._averaged:
            raise InputError(f"layer {name!r} is a convolution, and its input is no image")
        channels, height, width = self._shape
        if kernels.shape[1] != channels:
            raise InputError(f"layer {name!r} is a grouped convolution, which Node Activators do not support")
        shift = np.zeros(len(kernels)) if bias is None else np.array(bias, dtype=np.float64)
        self._require_relu(name)
        if self._pending is not None:
            factor, offset = self._pending
            if max(len(factor), len(offset)) > channels or (any(padding) and offset.any()):
                raise InputError(f"layer {name!r} pads with zeros what was shifted before, or scaled value by value")
            shift = shift + kernels.sum(axis=(2, 3)) @ np.broadcast_to(offset, channels)
            kernels, self._pending = kernels * np.broadcast_to(factor, channels)[:, None, None], None
        layer = ConvLayer(name, _float32(kernels), _float32(shift), (channels, height, width), stride, padding)
        self._add(layer, (len(kernels), *layer.convolved))

    def relu(self, name: str) -> None:
        self._open(name)
        if not self._layers or self._pending is not None or self._rectified[-1]:
            raise InputError(f"layer {name!r} is a ReLU that follows no convolution or dense layer")
        self._rectified[-1] = True

    def max_pool(self, name: str, kernel: tuple[int, int], stride: tuple[int, int], plain: bool = True) -> None:
        """The greatest values of windows, before or after ReLU; ``plain``: neither padded, dilated nor rounded up."""
        self._open(name)
        if len({*kernel, *stride}) > 1 or not plain:
            raise InputError(f"layer {name!r} pools windows that overlap or are not square, or with padding")
        last = self._layers[-1] if self._layers else None
        rising = self._pending is None or bool((self._pending[0] > 0).all())
        if not isinstance(last, ConvLayer) or self._flat or self._averaged or not rising:
            raise InputError(f"layer {name!r} pools what is not the output of a convolution")
        pooled = replace(last, pool=last.pool * kernel[0])
        self._layers[-1], self._shape = pooled, (pooled.units, *pooled.pooled)

    def average(self, name: str) -> None:
        """The mean of each channel over the whole image."""
        self._open(name)
        if self._flat or len(self._shape) != 3:
            raise InputError(f"layer {name!r} takes a mean over images, and its input is no image")
        self._require_relu(name)
        self._averaged = True

    def scale(self, name: str, factor: Any, offset: Any) -> None:
        """x · factor + offset, both numbers, or one per channel or value."""
        self._open(name)
        factor, offset = np.asarray(factor, dtype=np.float64).ravel(), np.asarray(offset, dtype=np.float64).ravel()
        last = self._layers[-1] if self._layers and not self._rectified[-1] else None
        width = self._shape[0] if last is not None or self._averaged else self._width
        channels = self._shape[0] if len(self._shape) == 3 and not self._flat else width
        if {len(factor), len(offset)} - {1, width, channels}:
            raise InputError(f"layer {name!r} scales {len(factor)} channels of {width} values; one each can be folded")
        if last is not None:
            self._layers[-1] = _scaled(last, factor, offset)
            return
        if not self._averaged:
            factor, offset = (part[self._order] if len(part) == self._width > 1 else part for part in (factor, offset))
        before, shift = self._pending or (np.ones(1), np.zeros(1))
        if max(map(len, (before, shift, factor, offset))) > channels:
            before, shift, factor, offset = map(self._per_value, (before, shift, factor, offset))
        self._pending = (before * factor, shift * factor + offset)

    def flatten(self, name: str) -> None:
        self._open(name)
        if self._pending is not None and not self._averaged:
            factor, offset = (self._per_value(part) for part in self._pending)
            self._pending = (factor, offset)
        self._flat = True

    def softmax(self, name: str) -> None:
        self._open(name)
        self._ended = True

    def refuse(self, name: str, what: str) -> InputError:
        """The error for a layer that no chain has."""
        return InputError(f"layer {name!r} is {what}; Node Activators take convolutions and dense layers in one chain")

    def mlp(self) -> MLP:
        """The network. Raises ``InputError`` as ``MLP`` does, and when its end is not a plain dense layer."""
        last = self._layers[-1] if self._layers else None
        if last and (self._rectified[-1] or self._pending is not None or not isinstance(last, DenseLayer)):
            raise InputError(f"the network must end with plain logits, but goes on after its last layer {last.name!r}")
        return MLP(self._input_shape, tuple(self._layers))

    @property
    def _width(self) -> int:
        """Values that a dense layer would receive here."""
        return self._shape[0] if self._averaged else int(np.prod(self._shape))

    @property
    def _order(self) -> Any:
        """Where each value of what comes in, channels first, stands in the library's order."""
        if not self._last or len(self._shape) != 3:
            return slice(None)
        channels, height, width = self._shape
        return np.arange(self._width).reshape(height, width, channels).transpose(2, 0, 1).ravel()

    def _per_value(self, part: np.ndarray) -> np.ndarray:
        """Numbers for all values, channels first, of one, or one per channel, or one per value."""
        if len(part) in (1, self._width):
            return np.broadcast_to(part, self._width)
        return np.repeat(part, self._width // len(part))

    def _add(self, layer: Layer, shape: tuple[int, ...]) -> None:
        self._layers.append(layer)
        self._rectified.append(False)
        self._shape = shape

    def _require_relu(self, name: str) -> None:
        if self._layers and not self._rectified[-1]:
            raise InputError(f"layer {name!r} follows {self._layers[-1].name!r} without a ReLU between them")

    def _open(self, name: str) -> None:
        if self._ended:
            raise InputError(f"layer {name!r} follows a softmax, which may stand only at the end")


def in_shape(mlp: MLP, shape: tuple[int, ...]) -> MLP:
    """``mlp`` for inputs of another shape with the same values in the same order, such as 784 for 1 × 28 × 28.

    The network itself where the shapes differ in more than axes of one, or in being flattened.
    """
    squeezed, wanted = ([size for size in dims if size != 1] for dims in (mlp.input_shape, shape))
    same = np.prod(mlp.input_shape) == np.prod(shape) and (squeezed == wanted or len(mlp.input_shape) == 1)
    return MLP(shape, mlp.layers) if same else mlp


def square_padding(name: str, padding: Sequence[int]) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) of (vertical, horizontal), or of top, left, bottom, right."""
    if len(padding) == 4:
        top, left, bottom, right = padding
        return top, bottom, left, right
    if len(padding) != 2:
        raise InputError(f"layer {name!r} is a convolution along {len(padding)} axes, not two")
    return padding[0], padding[0], padding[1], padding[1]


def _scaled(layer: Layer, factor: np.ndarray, offset: np.ndarray) -> Layer:
    """``layer`` with its outputs before ReLU scaled."""
    if isinstance(layer, ConvLayer) and layer.pool > 1 and not (factor > 0).all():
        raise InputError(f"layer {layer.name!r} is pooled before it is scaled by negative numbers")
    each = np.broadcast_to(factor, layer.units).reshape(-1, *[1] * (layer.weights.ndim - 1))
    weights, bias = layer.weights.astype(np.float64) * each, layer.bias * factor + offset
    changed: Any = replace(layer, weights=_float32(weights), bias=_float32(bias))  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


def _float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)
