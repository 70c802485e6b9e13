"""From where a network is, to what cuts it."""

from __future__ import annotations

from pathlib import Path

from slotool.elastic.activators.last_layer.cutting import Cut


def cut(source: str, input_shape: tuple[int, ...], folder: Path) -> Cut:
    """The network ``source`` (.onnx, .keras, or module:factory of a torch module) in two parts, its front written to
    ``folder``. Raises ``InputError`` naming what its last layer is where that is no dense layer on features.
    """
    suffix = Path(source).suffix
    if suffix == ".onnx":
        from slotool.elastic.activators.last_layer.onnx import cut_onnx

        return cut_onnx(Path(source), folder)
    if suffix == ".keras":
        from slotool.elastic.activators.last_layer.keras import cut_keras

        return cut_keras(Path(source), folder)
    from slotool.elastic.activators.last_layer.torch import cut_torch

    return cut_torch(source, input_shape, folder)
