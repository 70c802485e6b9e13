"""The kinds of networks that can be drawn, by name."""

from __future__ import annotations

from slotool.graphs.architectures.convolutional import CONVOLUTIONAL
from slotool.graphs.architectures.kinds import Architecture
from slotool.graphs.architectures.text import TEXT
from slotool.graphs.architectures.tokens import TOKENS

ARCHITECTURES: dict[str, Architecture] = {kind.name: kind for kind in (*CONVOLUTIONAL, *TOKENS, *TEXT)}
