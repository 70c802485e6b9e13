"""A company: the network asked about, and those that run beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from slotool.graphs import OperatorGraph

SIZES = {1: "alone", 2: "pair", 3: "trio"}


@dataclass(frozen=True)
class Company:
    """Networks that run side by side: ``members``, the one asked about first, and ``solo_s``, the latency of each when
    alone. ``crowding``: how many times more threads than cores there are with all at work, at least 1.

    The others are kept in the order of their ids, so that companies which differ in that alone are the same.
    """

    members: tuple[OperatorGraph, ...]
    solo_s: tuple[float, ...]
    crowding: float = 1.0

    @classmethod
    def of(
        cls,
        subject: OperatorGraph,
        others: Iterable[OperatorGraph],
        solo_s: Mapping[str, float],
        crowding: float = 1.0,
    ) -> Company:
        """``solo_s``: seconds by graph id."""
        members = (subject, *sorted(others, key=lambda graph: graph.id))
        return cls(members, tuple(float(solo_s[graph.id]) for graph in members), crowding)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def subject(self) -> OperatorGraph:
        """The network asked about."""
        return self.members[0]

    @property
    def others(self) -> tuple[OperatorGraph, ...]:
        return self.members[1:]

    @cached_property
    def id(self) -> str:
        return "+".join(graph.id for graph in self.members)

    @property
    def kind(self) -> str:
        """``pair``, ``trio`` …"""
        return SIZES.get(len(self), f"{len(self)} together")

    @property
    def together(self) -> frozenset[str]:
        """Ids of all members: the same whichever of them is asked about."""
        return frozenset(graph.id for graph in self.members)


def members_of(asked: OperatorGraph | Company) -> tuple[OperatorGraph, ...]:
    """The networks that a question is about: all of a company, or the one."""
    return asked.members if isinstance(asked, Company) else (asked,)
