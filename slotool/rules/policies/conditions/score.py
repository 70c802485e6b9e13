"""A small learnt score reaches a threshold: a straight line through what is known of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition


@dataclass(frozen=True)
class Term:
    """What one weight multiplies. ``of``: "confidence" of ``name``, a version; "feature" ``name``; or "agreement" of
    ``name`` with ``other``, 1 where both give the same answer."""

    of: str
    name: str
    weight: float
    other: str = ""

    def values(self, asked: Asked) -> np.ndarray:
        """float64 [requests]."""
        if self.of == "confidence":
            return asked.confidence(self.name)
        if self.of == "feature":
            return asked.feature(self.name)
        return np.asarray(asked.label(self.name) == asked.label(self.other), dtype=np.float64)

    def value(self, asked: AskedOne) -> float:
        """``values`` of a single request."""
        if self.of == "confidence":
            return asked.confidence(self.name)
        if self.of == "feature":
            return asked.feature(self.name)
        return float(asked.label(self.name) == asked.label(self.other))


@dataclass(frozen=True)
class Score(Condition):
    """The sum of ``terms``, each a weight times a number, is ≥ ``at_least``."""

    terms: tuple[Term, ...]
    at_least: float
    kind: ClassVar[str] = "score"

    def score(self, asked: Asked) -> np.ndarray:
        """float64 [requests]; NaN where a version gave no answer."""
        return np.asarray(sum(term.weight * term.values(asked) for term in self.terms))

    def holds(self, asked: Asked) -> np.ndarray:
        return np.asarray(self.score(asked) >= self.at_least)

    def holds_one(self, asked: AskedOne) -> bool:
        return sum([term.weight * term.value(asked) for term in self.terms]) >= self.at_least

    @property
    def words(self) -> str:
        parts = (f"{t.weight:+.3g} × {t.name}" + (f" as {t.other}" if t.other else "") for t in self.terms)
        return f"{' '.join(parts)} ≥ {self.at_least:.10g}"

    @property
    def notation(self) -> str:
        return f"score>={self.at_least:.10g}"

    def settings(self) -> dict[str, Any]:
        terms = [[term.of, term.name, term.weight, *([term.other] if term.other else [])] for term in self.terms]
        return {"terms": terms, "at_least": self.at_least}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        terms = tuple(Term(str(of), str(name), float(weight), *map(str, rest))
                      for of, name, weight, *rest in settings["terms"])  # fmt: skip
        if not terms or any(term.of not in ("confidence", "feature", "agreement") for term in terms):
            raise ValueError("a score without terms, or of other than confidence, feature and agreement")
        return cls(terms, float(settings["at_least"]))
