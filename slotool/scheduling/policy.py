"""The one interface of every scheduling policy, and what it can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from traceback import walk_tb
from typing import NamedTuple

from slotool.scheduling.edf import EdfQueue, Query
from slotool.tables import OperatingPoint


class Decision(NamedTuple):
    """Serve the most urgent query at ``point``, ``batch_size`` examples in the call.

    ``reason``: one clause for a person. ``rule``: id of the routing rule that led here, empty without one.
    ``switches``: the policy stays at a point until it switches, so that another point than before is an event.
    ``concurrent``: the point is an ensemble whose two versions begin at the same time, on a worker each.
    """

    point: OperatingPoint
    batch_size: int
    reason: str
    rule: str = ""
    switches: bool = False
    concurrent: bool = False


@dataclass(frozen=True, slots=True)
class CannotMeet:
    """Rejection of the most urgent query before any work is spent on it: its demand cannot be met."""

    reason: str


class Policy(ABC):
    """Chooses how the most urgent query is served.

    ``points``: every operating point a decision may name. A policy reads no clock and depends on its arguments
    only: the same instant and queue give the same answer, until it has observed more (superserve, §5: pluggable
    policies over the EDF queue and the profile).
    """

    points: tuple[OperatingPoint, ...]

    @abstractmethod
    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        """Return the answer for ``queue.peek()`` at the instant ``now_us``.

        None: this policy has nothing to say, because the queue is empty or the query does not ask for what the policy
        is about. ``CannotMeet``: it has, and no point will do. Where latencies are known, a ``Decision`` finishes
        by the deadline if it is acted on at once.
        """

    def shed_candidate(self, now_us: float, queue: EdfQueue) -> Query | None:
        """Return the query to shed, when not all can be in time and some have a higher priority; None: none.

        Called again after each drop. A policy that does not know latencies sheds no query.
        """
        return None

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        """Return µs that a call is expected to take; 0 when this policy does not know."""
        return 0.0

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes that the policy forms, ascending, if it states them; a server warms them up."""
        return ()

    def own_point(self, query: Query) -> OperatingPoint | None:
        """Return the point that ``query`` requires, whatever else waits; None if it requires none.

        Queries of other such points may be passed, while each of them can still begin in time.
        """
        return None

    def decision_for(self, query: Query, decision: Decision) -> Decision:
        """Return ``decision``, as it reads for a query that joined the one it was made for; by default as it is."""
        return decision

    def serves(self, point: OperatingPoint, query: Query) -> bool:
        """True if ``query``, further back in the queue, may join a batch at ``point``; False by default."""
        return False

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        """Record the latency of a call; by default it is ignored."""
        return


# Consequence of a failure, by method of a policy.
INSTEAD = {
    "decide": "the request gets no answer",
    "shed_candidate": "no request is shed",
    "serves": "requests do not share a call",
    "own_point": "no request passes another",
    "decision_for": "requests of a call are all reported as its first one",
    "planned_us": "the call has no planned length",
    "observe": "the policy learns nothing of the call",
}


@dataclass(frozen=True)
class PolicyFailure:
    """A policy, perhaps somebody's own, raised ``error`` in ``method``, or answered what it must not."""

    policy: Policy
    method: str
    error: Exception

    def __str__(self) -> str:
        kind = type(self._at_fault)
        name = getattr(kind, "name", None) or f"{kind.__module__}:{kind.__qualname__}"
        return f"the policy {name} failed in {self.method}: {type(self.error).__name__}: {self.error}"

    @property
    def _at_fault(self) -> Policy:
        """Policy that raised, if this one calls others."""
        selves = (frame.f_locals.get("self") for frame, _ in walk_tb(self.error.__traceback__))
        return [self.policy, *(each for each in selves if isinstance(each, Policy))][-1]

    @property
    def instead(self) -> str:
        """Consequence of the failure, in words."""
        return INSTEAD[self.method]
