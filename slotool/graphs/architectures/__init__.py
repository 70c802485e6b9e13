"""Networks of the kinds that people use, to draw at random: convolutional, transformers, hybrids of both, text."""

from __future__ import annotations

from slotool.graphs.architectures.drawing import RandomArchitectures
from slotool.graphs.architectures.kinds import Architecture
from slotool.graphs.architectures.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES", "Architecture", "RandomArchitectures"]
