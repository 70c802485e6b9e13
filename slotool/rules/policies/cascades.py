"""Cascades: up to four versions asked one after the other, until one is sure enough of its answer.

A cascade is data: steps of a version and a threshold of its confidence. ``document`` is its JSON form, which its point
carries too; the point's label has ``notation`` and ``id`` in its place. Replaying a table and serving share
``Step.accepts``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
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
# Length of a notation: a point's label stays within 120 characters, safe in headers and metrics.
MAX_NOTATION = 95
_NAME_LENGTHS = (40, 20, 12, 8)
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/=-]")
# The only kind of condition in a document.
_SURE = "sure"
_LAST = "the last answers"


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
class Cascade(RoutingPolicy):
    """Cascade of ``steps``; the answer of the version consulted last is sent."""

    steps: tuple[Step, ...]
    kind: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        versions = [step.version for step in self.steps]
        thresholds = [step.at_least for step in self.steps]
        if not 1 <= len(versions) <= MAX_STEPS or len(set(versions)) < len(versions):
            raise InputError(f"a cascade of {', '.join(versions) or 'nothing'}; expected 1 to {MAX_STEPS} versions")
        if None in thresholds[:-1] or thresholds[-1] is not None:
            raise InputError("a cascade: expected a condition at every step but the last")

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
            text = " else ".join(noted)
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
        return " → ".join([first, *then]) if later else f"{first} alone"

    @property
    def tree(self) -> list[str]:
        """Policy as a picture of lines: the versions asked, and the results of their conditions."""
        lines = [f"ask {self.steps[0].version}"]
        for depth, (step, after) in enumerate(zip(self.steps, self.steps[1:], strict=False)):
            indent, outcome = "   " * depth, "answer" if depth == 0 else _LAST
            lines += [f"{indent}├─ {step.version}'s confidence ≥ {step.at_least:.10g}: {outcome}"]
            lines += [f"{indent}└─ otherwise ask {after.version}"]
        return [*lines, f"{'   ' * (len(self.steps) - 1)}└─ {_LAST}"] if len(self.steps) > 1 else lines

    def document(self) -> dict[str, Any]:
        """Return the JSON form; ``from_document`` is the inverse."""
        return {"steps": [step.document() for step in self.steps], "answer": "last"}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Cascade:
        """Read the JSON form. Raises ``InputError`` for anything else."""
        try:
            answer, steps = document["answer"], tuple(map(Step.from_document, document["steps"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"no cascade ({type(error).__name__}: {error}); expected steps and answer") from error
        if answer != "last":
            raise InputError(f"a cascade that answers by {answer!r}: the last answer is sent; make the rules again")
        return cls(steps)

    def depths(self, outcomes: OutcomeTable) -> np.ndarray:
        confidences = outcomes.matrix("confidence")
        count = np.full(len(outcomes.examples), len(self.steps))
        for number, step in reversed(list(enumerate(self.steps[:-1], 1))):
            count[step.accepts(confidences[:, outcomes.index(step.version)])] = number
        return count

    def replay(self, outcomes: OutcomeTable) -> Replayed:
        at = [outcomes.index(version) for version in self.versions]
        errors = outcomes.matrix("error")
        columns = [outcomes.matrix("latency_s"), outcomes.matrix("cost")]
        error, depth = errors[:, at[0]].copy(), self.depths(outcomes)
        spent = [values[:, at[0]].copy() for values in columns]
        for count, version in enumerate(at[1:], 2):
            rows = np.flatnonzero(depth >= count)
            for total, values in zip(spent, columns, strict=True):
                total[rows] += values[rows, version]
            error[rows] = errors[rows, version]
        return Replayed(error, *spent)
