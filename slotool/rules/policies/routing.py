"""Routing policies: one version for all, two in sequence, two at once (tolerance-tiers, §IV-C).

Offline replay and live serving share one rule, ``consults_second`` and ``takes_second``. In Seq and in Conc it is
always the ``first`` version's confidence that decides, whichever version finishes first. The answer then depends on
the two answers alone and never on timing, so what was certified on a table holds under any load, and one certificate
covers Seq and Conc of the same pair and threshold. The paper's "faster version" is the pair in the other order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable


def consults_second(first_confidence: Any, threshold: float) -> Any:
    """True if the first answer is not sure enough: not (confidence ≥ threshold). NaN is not sure.

    ``first_confidence``: a number or array, compared as float64 as in the tables; returns bool of the same shape.
    """
    return ~(np.asarray(first_confidence, dtype=np.float64) >= threshold)


def takes_second(first_confidence: Any, second_confidence: Any) -> Any:
    """True if the second of two answers is sent: at least as confident as the first, or the first is NaN."""
    first = np.asarray(first_confidence, dtype=np.float64)
    return (np.asarray(second_confidence, dtype=np.float64) >= first) | np.isnan(first)


@dataclass(frozen=True)
class Replayed:
    """Results of a policy on each example: float64 arrays [examples] (or means, one per candidate).

    ``response_time_s`` in seconds until the answer; ``cost`` in the table's unit, by default machine seconds.
    """

    error: np.ndarray
    response_time_s: np.ndarray
    cost: np.ndarray


class RoutingPolicy(ABC):
    """Way to answer a request with service versions; equal policies have equal ``point``."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def point(self) -> OperatingPoint:
        """Operating point that names it in rules; ``from_point`` is the inverse."""

    @property
    @abstractmethod
    def versions(self) -> tuple[str, ...]:
        """Service versions that it may consult."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Policy in words."""

    @abstractmethod
    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        """Return how many of ``versions``, in order, each answer needs: int64 [examples].

        Conc always calls both; counted are those whose answers it waits for. Raises ``InputError`` for a version
        that the table lacks.
        """

    @abstractmethod
    def replay(self, outcomes: OutcomeTable) -> Replayed:
        """Return error, response time and cost per example. Raises ``InputError`` for a version the table lacks."""


@dataclass(frozen=True)
class OSFA(RoutingPolicy):
    """One size fits all: ``version`` answers everything."""

    version: str
    kind: ClassVar[str] = "osfa"

    @property
    def point(self) -> OperatingPoint:
        return OperatingPoint.of(policy=self.kind, version=self.version)

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.version,)

    @property
    def words(self) -> str:
        return f"{self.version} alone"

    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        return np.ones(len(_columns(outcomes, self.version)[0]), dtype=np.int64)

    def replay(self, outcomes: OutcomeTable) -> Replayed:
        error, _, latency_s, cost = _columns(outcomes, self.version)
        return Replayed(error, latency_s, cost)


@dataclass(frozen=True)
class _Pair(RoutingPolicy):
    """Pair that consults ``second`` if ``first`` has confidence < ``threshold``; the surer answer is sent."""

    first: str
    second: str
    threshold: float

    @property
    def point(self) -> OperatingPoint:
        return OperatingPoint.of(
            policy=self.kind, first=self.first, second=self.second, threshold=float(self.threshold)
        )

    @property
    def versions(self) -> tuple[str, ...]:
        return (self.first, self.second)

    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        first, _ = _columns(outcomes, self.first), _columns(outcomes, self.second)
        return np.where(consults_second(first[1], self.threshold), 2, 1)

    def replay(self, outcomes: OutcomeTable) -> Replayed:
        first, second = _columns(outcomes, self.first), _columns(outcomes, self.second)
        full = self.depths(outcomes) == 2
        error = np.where(full & takes_second(first[1], second[1]), second[0], first[0])
        early_s, full_s = self.times(first[2], second[2])
        early_cost, full_cost = self.costs(first[2], second[2], first[3], second[3])
        return Replayed(error, np.where(full, full_s, early_s), np.where(full, full_cost, early_cost))

    @classmethod
    @abstractmethod
    def times(cls, first_s: np.ndarray, second_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return response times of early termination and full operation."""

    @classmethod
    @abstractmethod
    def costs(
        cls, first_s: np.ndarray, second_s: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return costs of early termination and full operation, from latencies and costs of the two versions."""


class Seq(_Pair):
    """One after the other: early termination takes t₁ and costs c₁, full operation t₁ + t₂ and c₁ + c₂."""

    kind: ClassVar[str] = "seq"

    @property
    def words(self) -> str:
        return f"{self.first}, then {self.second} below {self.threshold:.10g}"

    @classmethod
    def times(cls, first_s: np.ndarray, second_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return first_s, first_s + second_s

    @classmethod
    def costs(
        cls, first_s: np.ndarray, second_s: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return first, first + second


class Conc(_Pair):
    """Both at once: early termination after t₁ stops the second, full operation takes max(t₁, t₂) and c₁ + c₂.

    A stopped version costs the share min(t₁, t₂) / t₂ of its price. Where the second is the faster one its answer
    waits for the first (whose confidence decides), so that early termination saves nothing: t₁, at c₁ + c₂.
    """

    kind: ClassVar[str] = "conc"

    @property
    def words(self) -> str:
        return f"{self.first} and {self.second} at once, falling back to {self.second} below {self.threshold:.10g}"

    @classmethod
    def times(cls, first_s: np.ndarray, second_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return first_s, np.maximum(first_s, second_s)

    @classmethod
    def costs(
        cls, first_s: np.ndarray, second_s: np.ndarray, first: np.ndarray, second: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        ran = np.divide(np.minimum(first_s, second_s), second_s, out=np.ones_like(second_s), where=second_s > 0)
        return first + ran * second, first + second


PAIRS: dict[str, type[_Pair]] = {Seq.kind: Seq, Conc.kind: Conc}
PAIR_POLICIES = (OSFA.kind, *PAIRS)
POLICIES = (*PAIR_POLICIES, "cascade")


def _columns(outcomes: OutcomeTable, version: str) -> tuple[np.ndarray, ...]:
    at = outcomes.index(version)
    return tuple(outcomes.matrix(column)[:, at] for column in ("error", "confidence", "latency_s", "cost"))
