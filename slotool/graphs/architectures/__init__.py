"""Networks of the kinds that people use, to draw at random: convolutional, transformers, hybrids of both, text."""

from __future__ import annotations

from slotool.graphs.architectures.drawing import ARCHITECTURES, RandomArchitectures
from slotool.graphs.architectures.parts import Architecture

__all__ = ["ARCHITECTURES", "Architecture", "RandomArchitectures"]
