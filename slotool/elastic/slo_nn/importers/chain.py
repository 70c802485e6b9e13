"""A trained network of another library, layer by layer, folded into a chain of dense layers with ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator

# Default epsilon of batch normalisations.
EPSILON = 1e-5


class Chain:
    """Importer of a network's layers in order; parts that inference does not need are folded into layers with weights.

    A normalisation or another scaling becomes part of the layer before it, or after a ReLU of the one behind it. A
    softmax at the end is left out, for it does not change which class is first. ``input_shape``: of one example, images
    [channels, height, width]; ``channels_last``: the library has them the other way round, so that flattening gives
    their values in another order.
    Raises ``InputError``, naming the layer, for what no chain ``Flatten? → Dense(relu)… → Dense`` can be.
    """

    def __init__(self, input_shape: tuple[int, ...], channels_last: bool = False):
        self._input_shape = input_shape
        self._layers: list[DenseLayer] = []
        # True if the last of them is followed by ReLU.
        self._rectified = False
        # Shape of the data so far, and True if it is flattened.
        self._shape = input_shape
        self._flat = len(input_shape) == 1
        # Factor and offset of the values that the next layer receives: numbers, one per channel, or one per value.
        self._pending: tuple[np.ndarray, np.ndarray] | None = None
        self._last = channels_last
        self._ended = False

    def dense(self, name: str, weights: Any, bias: Any | None) -> None:
        """Append a dense layer; ``weights``: [units, inputs]; ``bias``: [units] or None."""
        self._open(name)
        if not self._flat:
            raise InputError(f"layer {name!r} takes inputs of several axes, which must be flattened first")
        # No copy without folding: weights may be large, and mapped from a file.
        rows = np.asarray(weights)
        if rows.ndim != 2:
            raise InputError(f"layer {name!r} has weights of shape {rows.shape}, not [units, inputs]")
        if rows.shape[1] != self._width:
            raise InputError(f"layer {name!r} takes {rows.shape[1]} values, and {self._width} come in")
        if self._layers and not self._rectified:
            raise InputError(f"layer {name!r} follows {self._layers[-1].name!r} without a ReLU between them")
        shift = np.zeros(len(rows)) if bias is None else np.asarray(bias)
        rows = rows[:, self._order]
        if self._pending is not None:
            rows = rows.astype(np.float64)
            factor, offset = (self._per_value(part) for part in self._pending)
            shift, rows, self._pending = shift + rows @ offset, rows * factor, None
        self._layers.append(DenseLayer(name, _float32(rows), _float32(shift)))
        self._rectified, self._shape = False, (len(rows),)

    def relu(self, name: str) -> None:
        self._open(name)
        if not self._layers or self._pending is not None or self._rectified:
            raise InputError(f"layer {name!r} is a ReLU that follows no dense layer")
        self._rectified = True

    def scale(self, name: str, factor: Any, offset: Any) -> None:
        """Append x · factor + offset, both numbers, or one per channel or value."""
        self._open(name)
        factor, offset = np.asarray(factor, dtype=np.float64).ravel(), np.asarray(offset, dtype=np.float64).ravel()
        width = self._width
        channels = self._shape[0] if len(self._shape) == 3 and not self._flat else width
        if {len(factor), len(offset)} - {1, width, channels}:
            raise InputError(f"layer {name!r} scales {len(factor)} channels of {width} values; one each can be folded")
        if self._layers and not self._rectified:
            self._layers[-1] = _scaled(self._layers[-1], factor, offset)
            return
        factor, offset = (part[self._order] if len(part) == width > 1 else part for part in (factor, offset))
        before, shift = self._pending or (np.ones(1), np.zeros(1))
        if max(map(len, (before, shift, factor, offset))) > channels:
            before, shift, factor, offset = map(self._per_value, (before, shift, factor, offset))
        self._pending = (before * factor, shift * factor + offset)

    def flatten(self, name: str) -> None:
        self._open(name)
        if self._pending is not None:
            factor, offset = (self._per_value(part) for part in self._pending)
            self._pending = (factor, offset)
        self._flat = True

    def softmax(self, name: str) -> None:
        self._open(name)
        self._ended = True

    def refuse(self, name: str, what: str) -> InputError:
        """Return the error for a layer that no chain has."""
        return InputError(f"layer {name!r} is {what}; Node Activators take dense layers in one chain")

    def mlp(self) -> MLP:
        """Return the network. Raises ``InputError`` as ``MLP`` does, and when its end is not a plain dense layer."""
        last = self._layers[-1] if self._layers else None
        if last and (self._rectified or self._pending is not None):
            raise InputError(f"the network must end with plain logits, but goes on after its last layer {last.name!r}")
        return MLP(self._input_shape, tuple(self._layers))

    @property
    def _width(self) -> int:
        """Number of values that come in here."""
        return int(np.prod(self._shape))

    @property
    def _order(self) -> Any:
        """Position of each value of the data, channels first, in the library's order."""
        if not self._last or len(self._shape) != 3:
            return slice(None)
        channels, height, width = self._shape
        return np.arange(self._width).reshape(height, width, channels).transpose(2, 0, 1).ravel()

    def _per_value(self, part: np.ndarray) -> np.ndarray:
        """Return the numbers for all values, channels first, of one, or one per channel, or one per value."""
        if len(part) in (1, self._width):
            return np.broadcast_to(part, self._width)
        return np.repeat(part, self._width // len(part))

    def _open(self, name: str) -> None:
        if self._ended:
            raise InputError(f"layer {name!r} follows a softmax, which may stand only at the end")


def in_shape(mlp: MLP, shape: tuple[int, ...]) -> MLP:
    """Return ``mlp`` for inputs of another shape with the same values in the same order, such as 784 for 1 × 28 × 28.

    The network itself where the shapes differ in more than axes of one, or in being flattened.
    """
    squeezed, target = ([size for size in dims if size != 1] for dims in (mlp.input_shape, shape))
    same = np.prod(mlp.input_shape) == np.prod(shape) and (squeezed == target or len(mlp.input_shape) == 1)
    return MLP(shape, mlp.layers) if same else mlp


def _scaled(layer: DenseLayer, factor: np.ndarray, offset: np.ndarray) -> DenseLayer:
    """Return ``layer`` with its outputs before ReLU scaled."""
    weights = layer.weights.astype(np.float64) * np.broadcast_to(factor, layer.units)[:, None]
    return DenseLayer(layer.name, _float32(weights), _float32(layer.bias * factor + offset))


def _float32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)


def from_graph(
    graph: OperatorGraph, parameters: Mapping[str, np.ndarray], epsilon: Mapping[str, float] = MappingProxyType({})
) -> MLP:
    """Return the network of an operator graph.

    Args:
        graph: Operators of a chain.
        parameters: Arrays by ``layers.<operator>.<parameter>``, as ``GraphModule.state_dict`` names them.
        epsilon: Epsilon of batch normalisations other than ``EPSILON``, by operator.

    Raises:
        InputError: An operator breaks the chain ``Flatten? → Dense(relu)… → Dense``; the sentence names it.
    """
    chain, current = Chain(tuple(graph.input_shape)), graph.operators[0]
    weights: dict[str, dict[str, np.ndarray]] = {}
    for name, array in parameters.items():
        _, layer, *_, parameter = name.split(".")
        weights.setdefault(layer, {})[parameter] = array
    for operator in graph.operators[1:]:
        if operator.inputs != (current.name,):
            raise chain.refuse(operator.name, "where the network branches")
        tensors = weights.get(operator.name.replace(".", "_"), {})
        _add(chain, operator, tensors, epsilon.get(operator.name, EPSILON))
        current = operator
    return chain.mlp()


def _add(chain: Chain, operator: Operator, tensors: Mapping[str, np.ndarray], epsilon: float) -> None:
    name, op, attributes = operator.name, operator.op, operator.attributes
    if op == "Dense":
        chain.dense(name, tensors["weight"], tensors.get("bias"))
    elif op == "BatchNormalization":
        factor = tensors["weight"] / np.sqrt(tensors["running_var"] + epsilon)
        chain.scale(name, factor, tensors["bias"] - tensors["running_mean"] * factor)
    elif op == "Scale":
        chain.scale(name, attributes.get("factor", 1.0), attributes.get("offset", 0.0))
    elif op == "LayerScale":
        chain.scale(name, tensors["weight"], 0.0)
    elif op in ("ChannelShift", "PositionEmbedding"):
        chain.scale(name, 1.0, tensors["weight"])
    elif op == "Flatten" or (op == "Reshape" and len(operator.shape) == 1):
        chain.flatten(name)
    elif op not in ("ReLU", "Activation"):
        raise chain.refuse(name, op)
    activation = "relu" if op == "ReLU" else attributes.get("activation")
    if activation == "relu":
        chain.relu(name)
    elif activation is not None:
        raise chain.refuse(name, f"of activation {activation}")
