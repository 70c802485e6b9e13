"""Co-locations: a network whose latency is predicted, and its co-runners on the same machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from slotool.graphs import OperatorGraph

SIZES = {1: "solo", 2: "pair", 3: "trio"}


@dataclass(frozen=True)
class Colocation:
    """Networks that run at the same time: ``members``, the subject first, and ``solo_s``, the latency of each alone.

    ``oversubscription``: busy threads per core while all members run, at least 1. Co-runners are sorted by id, so
    their order does not matter.
    """

    members: tuple[OperatorGraph, ...]
    solo_s: tuple[float, ...]
    oversubscription: float = 1.0

    @classmethod
    def of(
        cls,
        subject: OperatorGraph,
        co_runners: Iterable[OperatorGraph],
        solo_s: Mapping[str, float],
        oversubscription: float = 1.0,
    ) -> Colocation:
        """Return the co-location of ``subject`` with ``co_runners``; ``solo_s``: seconds by graph id."""
        members = (subject, *sorted(co_runners, key=lambda graph: graph.id))
        return cls(members, tuple(float(solo_s[graph.id]) for graph in members), oversubscription)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def subject(self) -> OperatorGraph:
        return self.members[0]

    @property
    def co_runners(self) -> tuple[OperatorGraph, ...]:
        return self.members[1:]

    @cached_property
    def id(self) -> str:
        return "+".join(graph.id for graph in self.members)

    @property
    def kind(self) -> str:
        return SIZES.get(len(self), f"{len(self)} co-located")


def members_of(item: OperatorGraph | Colocation) -> tuple[OperatorGraph, ...]:
    return item.members if isinstance(item, Colocation) else (item,)
