"""Keras networks, cut before their last dense layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotool.elastic.activators.last_layer.cutting import Cut, dense_layer
from slotool.errors import InputError
from slotool.graphs.capture.loading import load_keras
from slotool.models.adapters.keras import KerasModel
from slotool.printable import reason

PASSED_ON = ("Softmax", "Dropout", "Identity", "ActivityRegularization")


def cut_keras(path: Path, folder: Path) -> Cut:
    """As ``cut``."""
    model = load_keras(str(path))
    whole = KerasModel(model, name=path.stem)
    if len(model.outputs) != 1:
        raise InputError(f"{path} gives {len(model.outputs)} outputs; tables need a network of one")
    import keras

    last: Any = model.outputs[0]._keras_history.operation
    while _passes_on(last):
        last = last.input._keras_history.operation
    activation = getattr(getattr(last, "activation", None), "__name__", "linear")
    known = type(last).__name__ == "Dense" and activation in ("linear", "softmax") and len(last.input.shape) == 2
    if not known or getattr(last, "quantization_mode", None):
        raise InputError(
            f"{path}: the last layer {last.name!r} is a {type(last).__name__} with activation {activation}, not a "
            "dense layer that ends in logits or a softmax"
        )
    weights = [variable.numpy() for variable in (last.kernel, last.bias) if variable is not None]
    front = folder / "front.keras"
    try:
        keras.Model(model.inputs, last.input).save(front)
    except Exception as error:
        # Keras raises whatever its layers do when they are written.
        raise InputError(f"{path}: Keras cannot cut it before {last.name!r} ({reason(error)})") from error
    layer = dense_layer(last.name, weights[0].T, weights[1] if len(weights) > 1 else None)
    return Cut(front, layer, whole, "Keras")


def _passes_on(layer: Any) -> bool:
    kind = type(layer).__name__
    softmax = kind == "Activation" and getattr(layer.activation, "__name__", "") in ("softmax", "linear")
    return kind in PASSED_ON or softmax
