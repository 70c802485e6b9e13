"""Networks of the same kinds whose operators are so small that calling them is most of their time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slotool.graphs.architectures.kinds import Architecture
from slotool.graphs.architectures.registry import ARCHITECTURES

_TOKENS: Mapping[str, tuple[Any, ...]] = {"width": (32, 64, 96), "depth": (1, 2, 3, 4, 6), "head_size": (8, 16)}
_TEXT = {"length": (4, 8, 16, 32), "vocabulary": (1000,), **_TOKENS}
_IMAGES = {"image": ((16, 4), (32, 8), (32, 4)), "classes": (10,)}
_STAGES = {"resolution": (32, 64), "depths": ((1, 1, 1, 1), (2, 2, 2, 2))}
_SIZES: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "bert": {**_TEXT, "classes": (2,)},
    "gpt": _TEXT,
    "llama": {**_TEXT, "groups": (1, 2)},
    "vit": {**_IMAGES, **_TOKENS},
    "mixer": {**_IMAGES, "width": (32, 64), "depth": (1, 2, 3, 4, 6), "tokens": (16, 32)},
    "convnext": {**_STAGES, "width": (8, 16), "classes": (10,)},
    "resnet": {**_STAGES, "width": (8, 16), "block": ("basic", "bottleneck"), "classes": (10,)},
}
SMALL: dict[str, Architecture] = {
    kind: replace(ARCHITECTURES[kind], sizes={**ARCHITECTURES[kind].sizes, **sizes}) for kind, sizes in _SIZES.items()
}
