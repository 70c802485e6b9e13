"""Every known operator as a torch layer: one file per group of operators, as in ``slotool.graphs.operators``."""

from __future__ import annotations

from slotool.graphs.torch_layers.arithmetic import ARITHMETIC
from slotool.graphs.torch_layers.common import Builder
from slotool.graphs.torch_layers.moving import MOVING
from slotool.graphs.torch_layers.weighted import WEIGHTED, Constant
from slotool.graphs.torch_layers.windows import WINDOWS

__all__ = ["LAYERS", "Builder", "Constant"]

LAYERS: dict[str, Builder] = {**WEIGHTED, **WINDOWS, **ARITHMETIC, **MOVING}
