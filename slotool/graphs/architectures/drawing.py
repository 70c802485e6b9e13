"""Random networks of the kinds that people use, with sizes as theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotool.errors import InputError
from slotool.graphs.architectures.kinds import Architecture
from slotool.graphs.architectures.registry import ARCHITECTURES
from slotool.graphs.drawing import NetworkLimits, RandomNetworks
from slotool.graphs.graph import OperatorGraph

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
        known: Mapping[str, Architecture] = ARCHITECTURES,
    ):
        unknown = [kind for kind in kinds if kind not in known]
        if unknown or len(set(kinds)) != len(kinds) or not kinds:
            raise InputError(f"kinds {', '.join(unknown or kinds)!r}: name each once, from {', '.join(known)}")
        self._kinds: list[Architecture] = [known[kind] for kind in kinds]
        self.size = sum(kind.size for kind in self._kinds)
        super().__init__(count, self.size, seed, limits)
        self._seen: set[tuple[str, tuple[int, ...]]] = set()
        self._left = {kind.name: kind.size for kind in self._kinds}
        smallest = (kind.graph((0,) * len(kind.sizes)) for kind in self._kinds)
        self._require_one(min(smallest, key=lambda graph: graph.memory_bytes(limits.batch_size)))

    def _unseen(self) -> OperatorGraph | None:
        kinds = [kind for kind in self._kinds if self._left[kind.name]]
        if not kinds:
            return None
        kind = self._random.choice(kinds)
        while True:
            choices = tuple(self._random.randrange(len(values)) for values in kind.sizes.values())
            if (kind.name, choices) not in self._seen:
                break
        self._seen.add((kind.name, choices))
        self._left[kind.name] -= 1
        return kind.graph(choices)
