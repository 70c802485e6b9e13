"""A trained network of another library, layer by layer, folded into a chain of dense layers with ReLU."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.elastic.activators.mlp import MLP, DenseLayer
from slotool.errors import InputError


class Chain:
    """Takes a network's layers in their order; what inference does not need is folded into the dense layers.

    A normalisation or another scaling becomes part of the dense layer before it, or after a ReLU of the one behind it.
    A softmax at the end is left out, for it does not change which class is first. Raises ``InputError``, naming the
    layer, for what no chain ``Flatten? → Dense(relu)… → Dense`` can be.
    """

    def __init__(self, input_shape: tuple[int, ...]):
        self._input_shape = input_shape
        self._layers: list[DenseLayer] = []
        self._rectified: list[bool] = []
        # Factor and offset of the values that the next dense layer receives.
        self._pending: tuple[Any, Any] | None = None
        self._flat = len(input_shape) == 1
        self._ended = False

    def dense(self, name: str, weights: Any, bias: Any | None) -> None:
        """``weights``: [units, inputs]; ``bias``: [units] or None."""
        self._open(name)
        if not self._flat:
            raise InputError(f"layer {name!r} takes inputs of several axes, which must be flattened first")
        rows = np.array(weights, dtype=np.float64)
        if rows.ndim != 2:
            raise InputError(f"layer {name!r} has weights of shape {rows.shape}, not [units, inputs]")
        shift = np.zeros(len(rows)) if bias is None else np.array(bias, dtype=np.float64)
        if self._layers and not self._rectified[-1]:
            raise InputError(f"layer {name!r} follows {self._layers[-1].name!r} without a ReLU between them")
        if self._pending is not None:
            factor, offset = self._pending
            shift = shift + rows @ np.broadcast_to(offset, rows.shape[1:])
            rows, self._pending = rows * factor, None
        self._layers.append(DenseLayer(name, _float32(rows), _float32(shift)))
        self._rectified.append(False)

    def relu(self, name: str) -> None:
        self._open(name)
        if not self._layers or self._pending is not None or self._rectified[-1]:
            raise InputError(f"layer {name!r} is a ReLU that follows no dense layer")
        self._rectified[-1] = True

    def scale(self, name: str, factor: Any, offset: Any) -> None:
        """x · factor + offset, both numbers or one per value."""
        self._open(name)
        factor, offset = np.asarray(factor, dtype=np.float64).ravel(), np.asarray(offset, dtype=np.float64).ravel()
        width = int(np.prod(self._input_shape)) if not self._layers else self._layers[-1].units
        if {len(factor), len(offset)} - {1, width}:
            raise InputError(f"layer {name!r} scales {len(factor)} channels of {width} values; one each can be folded")
        if self._layers and not self._rectified[-1]:
            last = self._layers[-1]
            rows = last.weights.astype(np.float64) * np.broadcast_to(factor, last.units)[:, None]
            self._layers[-1] = DenseLayer(last.name, _float32(rows), _float32(last.bias * factor + offset))
        elif self._pending is None:
            self._pending = (factor, offset)
        else:
            self._pending = (self._pending[0] * factor, self._pending[1] * factor + offset)

    def flatten(self, name: str) -> None:
        self._open(name)
        self._flat = True

    def softmax(self, name: str) -> None:
        self._open(name)
        self._ended = True

    def refuse(self, name: str, what: str) -> InputError:
        """The error for a layer that no chain has."""
        return InputError(f"layer {name!r} is {what}; Node Activators take dense layers with ReLU in one chain")

    def mlp(self) -> MLP:
        """The network. Raises ``InputError`` as ``MLP`` does, and when its end is not a plain dense layer."""
        if self._layers and (self._rectified[-1] or self._pending is not None):
            raise InputError(f"the network goes on behind its last layer {self._layers[-1].name!r}: no plain logits")
        return MLP(self._input_shape, tuple(self._layers))

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


def channels_first(mlp: MLP) -> MLP:
    """A network on flattened images [height, width, channels], for images [channels, height, width]."""
    height, width, channels = mlp.input_shape
    order = np.arange(height * width * channels).reshape(mlp.input_shape).transpose(2, 0, 1).ravel()
    first, *rest = mlp.layers
    turned = DenseLayer(first.name, np.ascontiguousarray(first.weights[:, order]), first.bias)
    return MLP((channels, height, width), (turned, *rest))


def _float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)
