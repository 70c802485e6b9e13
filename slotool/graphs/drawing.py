"""Drawing networks one by one, each once, within limits: what all generators of random networks share."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from slotool.errors import InputError
from slotool.graphs.graph import OperatorGraph

# So many in a row over a limit, and the search for one within it ends.
MAX_SKIPPED_IN_A_ROW = 20_000


@dataclass(frozen=True)
class NetworkLimits:
    """What a network may take at most, None for no limit: bytes of weights and of one batch's outputs, and FLOPs for
    one example."""

    memory_bytes: int | None = None
    batch_size: int = 1
    flops: int | None = None

    def allow(self, graph: OperatorGraph) -> bool:
        small = self.memory_bytes is None or graph.memory_bytes(self.batch_size) <= self.memory_bytes
        return small and (self.flops is None or graph.flops <= self.flops)

    @property
    def words(self) -> str:
        memory = [] if self.memory_bytes is None else [f"a memory limit of {self.memory_bytes:,} bytes"]
        return " and ".join(memory + ([] if self.flops is None else [f"a limit of {self.flops:,} FLOPs"]))


class RandomNetworks(Iterator[OperatorGraph], ABC):
    """``count`` different networks, drawn one by one: same seed, same networks in the same order.

    A network over ``limits`` is passed over, counted in ``skipped``, and another drawn in its place. Memory grows by
    some hundred bytes per network. Raises ``InputError`` when fewer such networks exist than ``count``: at once where
    there are fewer than ``available``, else when the search has found no more.
    """

    def __init__(self, count: int, available: int, seed: int, limits: NetworkLimits):
        if count > available:
            raise InputError(f"{count:,} networks wanted, but the search space has only {available:,}")
        self.count, self.drawn, self.skipped = count, 0, 0
        self._limits = limits
        self._random = random.Random(seed)

    @abstractmethod
    def _unseen(self) -> OperatorGraph | None:
        """A network not drawn before; None when there is none left."""

    def __next__(self) -> OperatorGraph:
        if self.drawn == self.count:
            raise StopIteration
        for _ in range(MAX_SKIPPED_IN_A_ROW):
            graph = self._unseen()
            if graph is None:
                break
            if self._limits.allow(graph):
                self.drawn += 1
                return graph
            self.skipped += 1
        raise InputError(
            f"found only {self.drawn:,} of {self.count:,} networks within {self._limits.words}; "
            f"{self.skipped:,} drawn ones take more"
        )

    def _require_one(self, smallest: OperatorGraph) -> None:
        """Raises ``InputError`` when not even the smallest network is within the limits."""
        if not self._limits.allow(smallest):
            raise InputError(
                f"the smallest network in this search space takes {smallest.memory_bytes(self._limits.batch_size):,} "
                f"bytes and {smallest.flops:,} FLOPs, more than {self._limits.words}"
            )
