"""Conditions on which an answer is sent without asking a further version.

A condition is data: ``document()`` is its form in a rule file, ``condition_of`` reads it. It reads the request and the
answers so far through ``Answers``; so a table's replay and a server share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from slotool.errors import InputError
from slotool.tables.labels import label_text


class Answers(Protocol):
    """Requests, and versions' answers to them. A version is read only after it was asked.

    Each method returns an array [requests] or, of a single request, a plain value: most batches of a server have one.
    """

    def confidence(self, version: str) -> Any:
        """Return float64; NaN where the version gave no answer."""

    def label(self, version: str) -> Any:
        """Return the version's answers as text. Raises ``InputError`` where answers are unknown."""

    def feature(self, name: str) -> Any:
        """Return a number of each request, float64. Raises ``InputError`` for an unknown name."""


class Condition(ABC):
    """Condition on which answers are sent. Equal conditions are equal data."""

    kind: ClassVar[str]

    @abstractmethod
    def holds(self, answers: Answers) -> Any:
        """Return bool, an array or one like the answers; False where a version gave no answer (confidence NaN)."""

    @property
    def labels(self) -> Iterable[str]:
        """Answers that it names, as in outcome tables."""
        return ()

    @property
    @abstractmethod
    def words(self) -> str:
        """Condition in words: "small's confidence ≥ 0.8"."""

    @property
    def unless(self) -> str:
        """Negation in words, after the name of the version asked next: "below 0.8"."""
        return f"unless {self.words}"

    @property
    @abstractmethod
    def notation(self) -> str:
        """Condition in at most 24 letters of ASCII, after the name of the version asked last: "sure>=0.8"."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``from_settings``, as JSON."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Invert ``settings``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for others."""

    def document(self) -> dict[str, Any]:
        return {"if": self.kind, **self.settings()}


@dataclass(frozen=True)
class Sure(Condition):
    """Condition that ``version`` answers with confidence ≥ ``at_least``, compared as float64."""

    version: str
    at_least: float
    kind: ClassVar[str] = "sure"

    def holds(self, answers: Answers) -> Any:
        return answers.confidence(self.version) >= self.at_least

    @property
    def words(self) -> str:
        return f"{self.version}'s confidence ≥ {self.at_least:.10g}"

    @property
    def unless(self) -> str:
        return f"below {self.at_least:.10g}"

    @property
    def notation(self) -> str:
        return f"sure>={self.at_least:.10g}"

    def settings(self) -> dict[str, Any]:
        return {"version": self.version, "at_least": self.at_least}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        return cls(str(settings["version"]), float(settings["at_least"]))


@dataclass(frozen=True)
class SureByLabel(Condition):
    """Condition that ``version`` answers with confidence ≥ the threshold of its answer.

    ``at_least``: pairs (label, threshold), and ``otherwise`` for all other labels. A threshold of infinity: never.
    """

    version: str
    at_least: tuple[tuple[str, float], ...]
    otherwise: float
    kind: ClassVar[str] = "sure-by-label"

    def holds(self, answers: Answers) -> Any:
        labels, confidence = answers.label(self.version), answers.confidence(self.version)
        if isinstance(labels, str):
            return confidence >= self._thresholds.get(labels, self.otherwise)
        threshold = np.full(len(labels), self.otherwise)
        for label, least in self._thresholds.items():
            threshold[labels == label] = least
        return confidence >= threshold

    @cached_property
    def _thresholds(self) -> dict[str, float]:
        return {label_text(label): least for label, least in self.at_least}

    @property
    def labels(self) -> Iterable[str]:
        return self._thresholds

    @property
    def words(self) -> str:
        thresholds = ", ".join(f"{label} {threshold:.10g}" for label, threshold in self.at_least)
        return f"{self.version}'s confidence ≥ its answer's threshold ({thresholds}, others {self.otherwise:.10g})"

    @property
    def notation(self) -> str:
        return "sure by label"

    def settings(self) -> dict[str, Any]:
        thresholds = {label: _written(threshold) for label, threshold in self.at_least}
        return {"version": self.version, "at_least": thresholds, "otherwise": _written(self.otherwise)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        thresholds = tuple((str(label), _read(threshold)) for label, threshold in settings["at_least"].items())
        return cls(str(settings["version"]), thresholds, _read(settings["otherwise"]))


def _written(threshold: float) -> float | None:
    """Replace infinity, which JSON lacks, by null."""
    return None if np.isinf(threshold) else threshold


def _read(threshold: float | None) -> float:
    return np.inf if threshold is None else float(threshold)


@dataclass(frozen=True)
class Term:
    """Factor of one weight.

    ``of``: "confidence" of ``name``, a version; "feature" ``name``; or "agreement" of ``name`` with ``other``, 1 where
    both give the same answer.
    """

    of: str
    name: str
    weight: float
    other: str = ""

    def values(self, answers: Answers) -> Any:
        """Return the number of each request, or of the single one."""
        if self.of == "confidence":
            return answers.confidence(self.name)
        if self.of == "feature":
            return answers.feature(self.name)
        return answers.label(self.name) == answers.label(self.other)


@dataclass(frozen=True)
class Score(Condition):
    """Condition that the sum of ``terms``, each a weight times a number, is ≥ ``at_least``."""

    terms: tuple[Term, ...]
    at_least: float
    kind: ClassVar[str] = "score"

    def score(self, answers: Answers) -> Any:
        """Return float64, an array or one like the answers; NaN where a version gave no answer."""
        return sum([term.weight * term.values(answers) for term in self.terms])

    def holds(self, answers: Answers) -> Any:
        return self.score(answers) >= self.at_least

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
            raise ValueError("expected a score of at least one term, each confidence, feature or agreement")
        return cls(terms, float(settings["at_least"]))


CONDITIONS: dict[str, type[Condition]] = {kind.kind: kind for kind in (Sure, SureByLabel, Score)}


def condition_of(document: Mapping[str, Any]) -> Condition:
    """Invert ``document``. Raises ``InputError`` for an unknown kind, and as ``from_settings``."""
    kind = document.get("if")
    if kind not in CONDITIONS:
        raise InputError(f"no condition {kind!r}; there are {', '.join(CONDITIONS)}")
    return CONDITIONS[str(kind)].from_settings(document)
