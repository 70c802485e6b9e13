"""Keras networks, Sequential or functional: as chains of layers with ReLU, or cut before their last dense layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.slo_nn.importers.chain import Chain
from slotool.elastic.slo_nn.importers.cutting import Cut, dense_layer, require_one_output
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import InputError
from slotool.graphs.capture.loading import load_keras
from slotool.models.adapters.keras import KerasModel
from slotool.printable import reason

if TYPE_CHECKING:
    import keras

PASSED_ON = (
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "Identity",
    "InputLayer",
)


def from_keras(model: keras.Model) -> MLP:
    """Return the network of a built Sequential or functional Keras model; its images have their channels first here.

    Raises ``InputError`` naming the layer that breaks the chain.
    """
    functional = getattr(model, "_functional", None) or model
    if not hasattr(functional, "_nodes_by_depth") or len(functional.inputs) != 1:
        raise InputError(f"{model.name} is no built Sequential or functional Keras model of one input")
    shape = tuple(functional.inputs[0].shape[1:])
    if None in shape:
        raise InputError(f"{model.name} has a free axis besides the batch: its input is {functional.inputs[0].shape}")
    images = len(shape) == 3
    chain = Chain((shape[2], *shape[:2]) if images else shape, channels_last=images)
    for layer in _layers(functional, chain):
        if getattr(layer, "data_format", "channels_last") == "channels_first":
            raise chain.refuse(layer.name, "of images with channels first, which Keras computes on GPUs only")
        _add(chain, layer)
    return chain.mlp()


def _layers(functional: Any, chain: Chain) -> Iterator[Any]:
    """Yield the layers in their order, those of nested models among them."""
    current = functional.inputs[0]
    for depth in sorted(functional._nodes_by_depth, reverse=True):
        for node in functional._nodes_by_depth[depth]:
            if not node.input_tensors:
                continue
            layer = node.operation
            if [id(tensor) for tensor in node.input_tensors] != [id(current)]:
                raise chain.refuse(layer.name, "where the network branches")
            inner = getattr(layer, "_functional", None) or layer
            if hasattr(inner, "_nodes_by_depth"):
                yield from _layers(inner, chain)
            else:
                yield layer
            current = node.outputs[0]
    if [id(tensor) for tensor in functional.outputs] != [id(current)]:
        raise InputError("the network must have one output, that of its last layer")


def _add(chain: Chain, layer: Any) -> None:
    kind, is_own = type(layer).__name__, type(layer).__module__.startswith("keras.")
    if kind == "Dense" and is_own:
        weights = [np.asarray(value) for value in layer.get_weights()]
        chain.dense(layer.name, weights[0].T, weights[1] if layer.use_bias else None)
        _activate(chain, layer.name, layer.activation.__name__)
    elif kind == "Activation" and is_own:
        _activate(chain, layer.name, layer.activation.__name__)
    elif kind == "ReLU" and is_own and layer.max_value is None and not layer.negative_slope and not layer.threshold:
        chain.relu(layer.name)
    elif kind == "Softmax" and is_own:
        chain.softmax(layer.name)
    elif is_own and (kind == "Flatten" or (kind == "Reshape" and len(layer.target_shape) == 1)):
        chain.flatten(layer.name)
    elif kind == "BatchNormalization" and is_own:
        chain.scale(layer.name, *_normalisation(layer))
    elif kind == "Rescaling" and is_own:
        chain.scale(layer.name, layer.scale, layer.offset)
    elif not (kind in PASSED_ON and is_own):
        raise chain.refuse(layer.name, kind)


def _activate(chain: Chain, name: str, activation: str) -> None:
    if activation == "relu":
        chain.relu(name)
    elif activation in ("softmax", "log_softmax"):
        chain.softmax(name)
    elif activation != "linear":
        raise chain.refuse(name, f"of activation {activation}")


def _normalisation(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset in inference mode."""
    mean, variance = np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)
    factor = 1.0 / np.sqrt(variance + layer.epsilon)
    if layer.scale:
        factor = factor * np.asarray(layer.gamma)
    return factor, (np.asarray(layer.beta) if layer.center else 0.0) - mean * factor


ENDINGS = ("Softmax", "Dropout", "Identity", "ActivityRegularization")


def cut_keras(path: Path, folder: Path) -> Cut:
    """Cut a Keras model, as ``cut``."""
    model = load_keras(str(path))
    require_one_output(str(path), len(model.outputs))
    import keras

    last: Any = model.outputs[0]._keras_history.operation
    while _passes_on(last):
        last = last.input._keras_history.operation
    activation = getattr(getattr(last, "activation", None), "__name__", "linear")
    is_dense = type(last).__name__ == "Dense" and len(last.input.shape) in (2, 3)
    if not is_dense or activation not in ("linear", "softmax") or getattr(last, "quantization_mode", None):
        raise InputError(
            f"{path}: the last layer {last.name!r} is a {type(last).__name__} with activation {activation}, not a "
            "dense layer that ends in logits or a softmax"
        )
    weights = [variable.numpy() for variable in (last.kernel, last.bias) if variable is not None]
    front = folder / "front.keras"
    features, positions = last.input, None
    try:
        if len(features.shape) == 3:
            positions, features = features.shape[1] or 0, features[:, -1]
            model = keras.Model(model.inputs, last(features))
        keras.Model(model.inputs, features).save(front)
    except Exception as error:
        # Keras raises whatever its layers do when they are written.
        raise InputError(f"{path}: Keras cannot cut it before {last.name!r} ({reason(error)})") from error
    layer = dense_layer(last.name, weights[0].T, weights[1] if len(weights) > 1 else None)
    return Cut(front, layer, KerasModel(model, name=path.stem), "Keras", positions)


def _passes_on(layer: Any) -> bool:
    kind = type(layer).__name__
    softmax = kind == "Activation" and getattr(layer.activation, "__name__", "") in ("softmax", "linear")
    return kind in ENDINGS or softmax
