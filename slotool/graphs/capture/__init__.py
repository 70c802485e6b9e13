"""Operator graphs of existing models: from Keras, torch and ONNX, with loaders that run no foreign pickle."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.graphs.capture.keras.capture import capture_keras
    from slotool.graphs.capture.loading import load_keras, load_torch
    from slotool.graphs.capture.onnx.capture import capture_onnx
    from slotool.graphs.capture.sources import Source
    from slotool.graphs.capture.subprocess_capture import Limits, all_captured_apart
    from slotool.graphs.capture.torch.capture import capture_torch

__all__ = [
    "Limits",
    "Source",
    "all_captured_apart",
    "capture_keras",
    "capture_onnx",
    "capture_torch",
    "load_keras",
    "load_torch",
]

__getattr__ = names_on_demand(__name__)
