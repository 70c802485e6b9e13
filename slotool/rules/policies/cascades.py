"""Cascades: up to four versions asked one after the other, until one is sure enough of its answer.

A cascade is data: steps of a version and a threshold of its confidence, the choice among the answers, and each
version's worth of confidence. ``document`` is its JSON form, which its point carries too; the point's label has
``notation`` and ``id`` in its place. Replaying a table and serving share ``Step.accepts`` and ``chosen``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.rules.policies.routing import Replayed, RoutingPolicy
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable

MAX_STEPS = 4
ANSWERS = ("last", "surer")
_ANSWER_WORDS = {"last": "the last answers", "surer": "the surest answers"}
# Length of a notation: a point's label stays within 120 characters, safe in headers and metrics.
MAX_NOTATION = 95
_NAME_LENGTHS = (40, 20, 12, 8)
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/=-]")
_NOTED_ANSWERS = {"last": "", "surer": "; surest answers"}
# The only kind of condition in a document.
_SURE = "sure"


@dataclass(frozen=True)
class Step:
    """Step that consults ``version``; none further with a confidence ≥ ``at_least``. None: the last step."""

    version: str
    at_least: float | None = None

    def accepts(self, confidence: np.ndarray) -> np.ndarray:
        """Return bool like ``confidence``, compared as float64; False where the version gave no answer (NaN)."""
        assert self.at_least is not None
        return np.asarray(confidence, dtype=np.float64) >= self.at_least

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        if self.at_least is None:
            return {"ask": self.version}
        return {"ask": self.version, "accept": {"if": _SURE, "version": self.version, "at_least": self.at_least}}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Step:
        """Read the JSON form. Raises ``InputError`` for a condition of another kind, or on another version."""
        version = str(document["ask"])
        if "accept" not in document:
            return cls(version)
        accept = document["accept"]
        if accept.get("if") != _SURE or accept["version"] != version:
            raise InputError(
                f"no condition {accept.get('if')!r} after {version}: a step accepts by its version's confidence; "
                "make the rules again"
            )
        return cls(version, float(accept["at_least"]))


@dataclass(frozen=True)
class Worth:
    """Probability of a right answer: straight lines from ``confidence`` (ascending) to ``right``, constant outside."""

    confidence: tuple[float, ...]
    right: tuple[float, ...]

    def of(self, confidence: np.ndarray) -> np.ndarray:
        """Return float64 like ``confidence``; NaN stays NaN."""
        return np.where(np.isnan(confidence), np.nan, np.interp(confidence, *self._line))

    @cached_property
    def _line(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.confidence), np.array(self.right)


def chosen(answer: str, worth: np.ndarray) -> np.ndarray:
    """Return which of the given answers is sent: int [requests].

    ``worth``: float64 [requests, asked], how sure each answer is, NaN for none. Ties go to the version asked last;
    without any answer, the last asked counts.
    """
    count = worth.shape[1]
    votes = np.broadcast_to(np.arange(count, dtype=np.float64), worth.shape) if answer == "last" else worth
    votes = np.where(np.isnan(worth), -np.inf, votes)
    return np.asarray(count - 1 - np.argmax(votes[:, ::-1], axis=1))


@dataclass(frozen=True)
class Cascade(RoutingPolicy):
    """Cascade of ``steps``; ``answer`` (of ``ANSWERS``) chooses among answers by ``worth``, else by confidence."""

    steps: tuple[Step, ...]
    answer: str = "last"
    worth: tuple[tuple[str, Worth], ...] = ()
    kind: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        versions = [step.version for step in self.steps]
        thresholds = [step.at_least for step in self.steps]
        if not 1 <= len(versions) <= MAX_STEPS or len(set(versions)) < len(versions):
            raise InputError(f"a cascade of {', '.join(versions) or 'nothing'}; expected 1 to {MAX_STEPS} versions")
        if None in thresholds[:-1] or thresholds[-1] is not None or self.answer not in ANSWERS:
            raise InputError("a cascade: expected a condition at every step but the last, and a known way to answer")

    @property
    def point(self) -> OperatingPoint:
        return OperatingPoint.of(cascade=self.notation, id=self.id, tree=self._text)

    @cached_property
    def _text(self) -> str:
        return json.dumps(self.document(), separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def id(self) -> str:
        """Letter, so that it never reads as a number, and nine digits that distinguish cascades."""
        return f"c{int(hashlib.sha256(self._text.encode()).hexdigest(), 16) % 10**9:09d}"

    @cached_property
    def notation(self) -> str:
        """Line of ASCII, at most ``MAX_NOTATION`` characters, without details: "small if sure>=0.8 else large"."""
        for most in _NAME_LENGTHS:
            steps = [(_UNSAFE.sub("_", step.version)[:most], step.at_least) for step in self.steps]
            noted = [name if least is None else f"{name} if sure>={least:.10g}" for name, least in steps]
            text = " else ".join(noted) + _NOTED_ANSWERS[self.answer]
            if len(text) <= MAX_NOTATION:
                return text
        return f"{text[: MAX_NOTATION - 3]}..."

    @cached_property
    def versions(self) -> tuple[str, ...]:
        return tuple(step.version for step in self.steps)

    @property
    def words(self) -> str:
        first, *later = self.versions
        then = [f"{name} below {step.at_least:.10g}" for name, step in zip(later, self.steps, strict=False)]
        answers = "" if self.answer == "last" else f"; {_ANSWER_WORDS[self.answer]}"
        return f"{' → '.join([first, *then])}{answers}" if later else f"{first} alone"

    @property
    def tree(self) -> list[str]:
        """Policy as a picture of lines: the versions asked, and the results of their conditions."""
        lines = [f"ask {self.steps[0].version}"]
        for depth, (step, after) in enumerate(zip(self.steps, self.steps[1:], strict=False)):
            indent, outcome = "   " * depth, "answer" if depth == 0 else self._outcome
            lines += [f"{indent}├─ {step.version}'s confidence ≥ {step.at_least:.10g}: {outcome}"]
            lines += [f"{indent}└─ otherwise ask {after.version}"]
        return [*lines, f"{'   ' * (len(self.steps) - 1)}└─ {self._outcome}"] if len(self.steps) > 1 else lines

    @property
    def _outcome(self) -> str:
        return _ANSWER_WORDS[self.answer]

    def document(self) -> dict[str, Any]:
        """Return the JSON form; ``from_document`` is the inverse."""
        steps = [step.document() for step in self.steps]
        worth = {version: [list(line.confidence), list(line.right)] for version, line in self.worth}
        return {"steps": steps, "answer": self.answer, **({"worth": worth} if worth else {})}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Cascade:
        """Read the JSON form. Raises ``InputError`` for anything else."""
        try:
            steps = tuple(map(Step.from_document, document["steps"]))
            worth = tuple(
                (str(version), Worth(tuple(map(float, at)), tuple(map(float, right))))
                for version, (at, right) in document.get("worth", {}).items()
            )
            return cls(steps, str(document["answer"]), worth)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"no cascade ({type(error).__name__}: {error}); expected steps and answer") from error

    @cached_property
    def _worth(self) -> dict[str, Worth]:
        return dict(self.worth)

    def choose(self, confidences: Sequence[np.ndarray]) -> np.ndarray:
        """Return which answer is sent, by the confidences of the versions asked so far: int [requests]."""
        if self.answer == "last" and not np.isnan(confidences[-1]).any():
            return np.full(len(confidences[-1]), len(confidences) - 1)
        worth = [sure if name not in self._worth else self._worth[name].of(sure)
                 for name, sure in zip(self.versions, confidences, strict=False)]  # fmt: skip
        return chosen(self.answer, np.stack(worth, axis=1))

    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        confidences = outcomes.matrix("confidence")
        count = np.full(len(outcomes.examples), len(self.steps))
        for number, step in reversed(list(enumerate(self.steps[:-1], 1))):
            count[step.accepts(confidences[:, outcomes.index(step.version)])] = number
        return count

    def replay(self, outcomes: OutcomeTable) -> Replayed:
        at = [outcomes.index(version) for version in self.versions]
        errors, confidences = outcomes.matrix("error"), outcomes.matrix("confidence")[:, at]
        columns = [outcomes.matrix("latency_s"), outcomes.matrix("cost")]
        error, depth = errors[:, at[0]].copy(), self.depths(outcomes)
        spent = [values[:, at[0]].copy() for values in columns]
        for count, version in enumerate(at[1:], 2):
            rows = np.flatnonzero(depth >= count)
            for total, values in zip(spent, columns, strict=True):
                total[rows] += values[rows, version]
            picked = np.array(at)[self.choose(list(confidences[rows, :count].T))]
            error[rows] = errors[rows, picked]
        return Replayed(error, *spent)
