"""Libraries of networks, imported when one of their names is first used, so that graphs are read without any of them.

``torch_parts`` holds the torch modules that operators are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotool.names_on_demand import modules_on_demand

if TYPE_CHECKING:
    import keras
    import onnx
    import torch
    from torch import nn
    from torch.nn import functional

    from slotool.graphs.operators import torch_parts
else:
    keras, onnx, torch, nn, functional, torch_parts = modules_on_demand(
        "keras", "onnx", "torch", "torch.nn", "torch.nn.functional", "slotool.graphs.operators.torch_parts"
    )

__all__ = ["functional", "keras", "nn", "onnx", "torch", "torch_parts"]
