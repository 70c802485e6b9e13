"""Cascades: up to four versions asked one after the other, until a condition accepts an answer.

A cascade is data: steps of a version and a condition (``conditions``), the choice among the answers, and each version's
worth of confidence. ``document`` is its JSON form, which its point carries too; the point's label has ``notation`` and
``id`` in its place. Replaying a table and serving share ``holds`` and ``chosen``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.rules.policies.conditions import Answers, Condition, Score, condition_of
from slotool.rules.policies.routing import Replayed, RoutingPolicy
from slotool.tables import OperatingPoint

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable

MAX_STEPS = 4
ANSWERS = ("last", "surer", "majority", "weighted")
_ANSWER_WORDS = {
    "last": "the last answers",
    "surer": "the surest answers",
    "majority": "the majority answers",
    "weighted": "the majority by confidence answers",
}
# Length of a notation: a point's label stays within 120 characters, safe in headers and metrics.
MAX_NOTATION = 95
_NAME_LENGTHS = (40, 20, 12, 8)
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/=-]")
_NOTED_ANSWERS = {"last": "", "surer": "; surest answers", "majority": "; majority", "weighted": "; weighted majority"}


@dataclass(frozen=True)
class Step:
    """Step that consults ``version``; if ``accept`` then holds, no further one is consulted. None: the last step."""

    version: str
    accept: Condition | None = None


@dataclass(frozen=True)
class Worth:
    """Probability of a right answer: straight lines from ``confidence`` (ascending) to ``right``, constant outside."""

    confidence: tuple[float, ...]
    right: tuple[float, ...]

    def of(self, confidence: np.ndarray) -> np.ndarray:
        """Return float64 like ``confidence``; NaN stays NaN."""
        return np.where(np.isnan(confidence), np.nan, np.interp(confidence, *self._line))

    def of_one(self, confidence: float) -> float:
        """Return ``of`` a single confidence."""
        at, right = self.confidence, self.right
        place = bisect_right(at, confidence) - 1
        if math.isnan(confidence) or not 0 <= place < len(at) - 1:
            return confidence if math.isnan(confidence) else right[0] if place < 0 else right[-1]
        slope = (right[place + 1] - right[place]) / (at[place + 1] - at[place])
        return slope * (confidence - at[place]) + right[place]

    @cached_property
    def _line(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.confidence), np.array(self.right)


def chosen(answer: str, worth: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """Return which of the given answers is sent: int [requests].

    ``worth``: float64 [requests, asked], how sure each answer is, NaN for none. ``labels``: [requests, asked], the
    answers as integers or text, needed by votes. Ties go to the version asked last; without any answer, the last asked
    counts.
    """
    count = worth.shape[1]
    if answer == "last":
        votes = np.broadcast_to(np.arange(count, dtype=np.float64), worth.shape)
    elif answer == "surer":
        votes = worth
    else:
        assert labels is not None
        answered = ~np.isnan(worth)
        weight = answered.astype(np.float64) if answer == "majority" else np.where(answered, worth, 0.0)
        same = labels[:, :, None] == labels[:, None, :]
        votes = np.sum(same * weight[:, None, :], axis=2)
    votes = np.where(np.isnan(worth), -np.inf, votes)
    return np.asarray(count - 1 - np.argmax(votes[:, ::-1], axis=1))


def chosen_of_one(answer: str, worth: Sequence[float], labels: Sequence[object]) -> int:
    """Return ``chosen`` of one request without arrays: most batches of a server have one request."""
    if answer in ("last", "surer"):
        votes = list(range(len(worth))) if answer == "last" else list(worth)
    else:
        weight = [0.0 if math.isnan(sure) else 1.0 if answer == "majority" else sure for sure in worth]
        totals: dict[object, float] = {}
        for label, sure in zip(labels, weight, strict=True):
            totals[label] = totals.get(label, 0.0) + sure
        votes = [totals[label] for label in labels]
    best = len(worth) - 1
    for at in range(len(worth) - 1, -1, -1):
        if not math.isnan(worth[at]) and (math.isnan(worth[best]) or votes[at] > votes[best]):
            best = at
    return best


@dataclass(frozen=True)
class Cascade(RoutingPolicy):
    """Cascade of ``steps``; ``answer`` (of ``ANSWERS``) chooses among answers by ``worth``, else by confidence."""

    steps: tuple[Step, ...]
    answer: str = "last"
    worth: tuple[tuple[str, Worth], ...] = ()
    kind: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        versions = [step.version for step in self.steps]
        conditions = [step.accept for step in self.steps]
        if not 1 <= len(versions) <= MAX_STEPS or len(set(versions)) < len(versions):
            raise InputError(f"a cascade of {', '.join(versions) or 'nothing'}; expected 1 to {MAX_STEPS} versions")
        if None in conditions[:-1] or conditions[-1] is not None or self.answer not in ANSWERS:
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
            steps = [(_UNSAFE.sub("_", step.version)[:most], step.accept) for step in self.steps]
            noted = [name if accept is None else f"{name} if {accept.notation}" for name, accept in steps]
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
        conditions = [step.accept for step in self.steps if step.accept is not None]
        then = [f"{name} {condition.unless}" for name, condition in zip(later, conditions, strict=True)]
        answers = "" if self.answer == "last" else f"; {_ANSWER_WORDS[self.answer]}"
        return f"{' → '.join([first, *then])}{answers}" if later else f"{first} alone"

    @property
    def tree(self) -> list[str]:
        """Policy as a picture of lines: the versions asked, and the results of their conditions."""
        lines = [f"ask {self.steps[0].version}"]
        for depth, (step, after) in enumerate(zip(self.steps, self.steps[1:], strict=False)):
            assert step.accept is not None
            indent = "   " * depth
            lines += [f"{indent}├─ {step.accept.words}: {'answer' if depth == 0 else self._outcome}"]
            lines += [f"{indent}└─ otherwise ask {after.version}"]
        return [*lines, f"{'   ' * (len(self.steps) - 1)}└─ {self._outcome}"] if len(self.steps) > 1 else lines

    @property
    def _outcome(self) -> str:
        return _ANSWER_WORDS[self.answer]

    @cached_property
    def labels(self) -> frozenset[str]:
        """Answers that its conditions name, as in the outcome table."""
        return frozenset(label for step in self.steps if step.accept is not None for label in step.accept.labels)

    @property
    def features(self) -> frozenset[str]:
        """Numbers of a request that its conditions read."""
        terms = [term for step in self.steps if isinstance(step.accept, Score) for term in step.accept.terms]
        return frozenset(term.name for term in terms if term.of == "feature")

    @property
    def needs_labels(self) -> bool:
        """True if answers must be known, and not only confidences."""
        return self.answer in ("majority", "weighted")

    def document(self) -> dict[str, Any]:
        """Return the JSON form; ``from_document`` is the inverse."""
        steps = [
            {"ask": step.version, **({"accept": step.accept.document()} if step.accept else {})} for step in self.steps
        ]
        worth = {version: [list(line.confidence), list(line.right)] for version, line in self.worth}
        return {"steps": steps, "answer": self.answer, **({"worth": worth} if worth else {})}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Cascade:
        """Read the JSON form. Raises ``InputError`` for anything else."""
        try:
            steps = tuple(
                Step(str(step["ask"]), condition_of(step["accept"]) if "accept" in step else None)
                for step in document["steps"]
            )
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

    def choose_one(self, answers: Answers, names: Sequence[str]) -> int:
        """Return which of these versions' answers is sent to a single request."""
        sure = [answers.confidence(name) for name in names]
        worth = [confidence if name not in self._worth else self._worth[name].of_one(confidence)
                 for name, confidence in zip(names, sure, strict=True)]  # fmt: skip
        labels = [answers.label(name) for name in names] if self.needs_labels else names
        return chosen_of_one(self.answer, worth, labels)

    def choose(self, answers: Answers, count: int) -> np.ndarray:
        """Return which of the first ``count`` versions' answers is sent, all of them asked: int [requests]."""
        names = self.versions[:count]
        confidences = [answers.confidence(name) for name in names]
        if self.answer == "last" and not np.isnan(confidences[-1]).any():
            return np.full(len(confidences[-1]), count - 1)
        worth = np.stack([sure if name not in self._worth else self._worth[name].of(sure)
                          for name, sure in zip(names, confidences, strict=True)], axis=1)  # fmt: skip
        labels = np.stack([answers.label(name) for name in names], axis=1) if self.needs_labels else None
        return chosen(self.answer, worth, labels)

    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        answers = TableAnswers(outcomes)
        at = [outcomes.index(version) for version in self.versions]
        count = np.full(len(outcomes.examples), len(at))
        for number, step in reversed(list(enumerate(self.steps[:-1]))):
            assert step.accept is not None
            count[step.accept.holds(answers)] = number + 1
        return count

    def replay(self, outcomes: OutcomeTable) -> Replayed:
        answers = TableAnswers(outcomes)
        first, *others = (outcomes.index(version) for version in self.versions)
        errors = outcomes.matrix("error")
        columns = [outcomes.matrix("latency_s"), outcomes.matrix("cost")]
        error, depth = errors[:, first].copy(), self.depths(outcomes)
        spent = [values[:, first].copy() for values in columns]
        for count, version in enumerate(others, 2):
            rows = np.flatnonzero(depth >= count)
            for total, values in zip(spent, columns, strict=True):
                total[rows] += values[rows, version]
            picked = np.array([first, *others])[self.choose(answers, count)]
            error[rows] = errors[rows, picked[rows]]
        return Replayed(error, *spent)


class TableAnswers:
    """Requests of an outcome table, each answered by every version."""

    def __init__(self, outcomes: OutcomeTable):
        self._outcomes = outcomes

    def confidence(self, version: str) -> np.ndarray:
        return self._outcomes.matrix("confidence")[:, self._outcomes.index(version)]

    def label(self, version: str) -> np.ndarray:
        return self._outcomes.labels[:, self._outcomes.index(version)]

    def feature(self, name: str) -> np.ndarray:
        return self._outcomes.feature(name)
