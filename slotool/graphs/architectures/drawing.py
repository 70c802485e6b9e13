"""Random networks of the kinds that people use, with sizes as theirs or small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slotool.errors import InputError
from slotool.graphs.architectures.convolutional import CONVOLUTIONAL
from slotool.graphs.architectures.parts import Architecture
from slotool.graphs.architectures.text import TEXT
from slotool.graphs.architectures.tokens import TOKENS
from slotool.graphs.generators import NetworkLimits, RandomNetworks
from slotool.graphs.graph import OperatorGraph

ARCHITECTURES: dict[str, Architecture] = {kind.name: kind for kind in (*CONVOLUTIONAL, *TOKENS, *TEXT)}


NO_LIMITS = NetworkLimits()


class RandomArchitectures(RandomNetworks):
    """``count`` different networks of these ``kinds``, names in ``known``, drawn one by one.

    The kind is drawn uniformly (among those with a network left to draw), then each of its sizes. Raises
    ``InputError`` for an unknown kind or one named twice, and when fewer such networks exist than ``count``.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        count: int,
        seed: int = 0,
        limits: NetworkLimits = NO_LIMITS,
        architectures: Mapping[str, Architecture] = ARCHITECTURES,
    ):
        unknown = [kind for kind in kinds if kind not in architectures]
        if unknown or len(set(kinds)) != len(kinds) or not kinds:
            raise InputError(f"kinds {', '.join(unknown or kinds)!r}: name each once, from {', '.join(architectures)}")
        self._kinds = {kind: architectures[kind] for kind in kinds}
        super().__init__(count, {name: kind.size for name, kind in self._kinds.items()}, seed, limits)
        smallest = (kind.graph((0,) * len(kind.sizes)) for kind in self._kinds.values())
        self._require_one(min(smallest, key=lambda graph: graph.memory_bytes(limits.batch_size)))

    def _described(self) -> dict[str, Any]:
        return {"architectures": tuple(self._kinds)}

    def _drawn(self, kind: str) -> tuple[int, ...]:
        return tuple(self._random.randrange(len(values)) for values in self._kinds[kind].sizes.values())

    def _graph(self, kind: str, choices: tuple[int, ...]) -> OperatorGraph:
        return self._kinds[kind].graph(choices)


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
