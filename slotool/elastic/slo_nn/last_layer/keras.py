"""Keras networks, cut before their last dense layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotool.elastic.slo_nn.last_layer.cutting import Cut, dense_layer, require_one_output
from slotool.errors import InputError
from slotool.graphs.capture.loading import load_keras
from slotool.models.adapters.keras import KerasModel
from slotool.printable import reason

PASSED_ON = ("Softmax", "Dropout", "Identity", "ActivityRegularization")


def cut_keras(path: Path, folder: Path) -> Cut:
    """As ``cut``."""
    model = load_keras(str(path))
    require_one_output(str(path), len(model.outputs))
    import keras

    last: Any = model.outputs[0]._keras_history.operation
    while _passes_on(last):
        last = last.input._keras_history.operation
    activation = getattr(getattr(last, "activation", None), "__name__", "linear")
    known = type(last).__name__ == "Dense" and activation in ("linear", "softmax") and len(last.input.shape) in (2, 3)
    if not known or getattr(last, "quantization_mode", None):
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
    return kind in PASSED_ON or softmax
