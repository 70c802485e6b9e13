"""A version's confidence reaches the threshold of the label it answers with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition
from slotool.tables.labels import label_text


@dataclass(frozen=True)
class SureByLabel(Condition):
    """``version`` answers with confidence ≥ the threshold of its answer: pairs (label, threshold) in ``at_least``, and
    ``otherwise`` for all other labels. A threshold of infinity: never."""

    version: str
    at_least: tuple[tuple[str, float], ...]
    otherwise: float
    kind: ClassVar[str] = "sure-by-label"

    def holds(self, asked: Asked) -> np.ndarray:
        labels = asked.label(self.version)
        threshold = np.full(len(labels), self.otherwise)
        for label, own in self._thresholds.items():
            threshold[labels == label] = own
        return np.asarray(asked.confidence(self.version) >= threshold)

    def holds_one(self, asked: AskedOne) -> bool:
        threshold = self._thresholds.get(asked.label(self.version), self.otherwise)
        return asked.confidence(self.version) >= threshold

    @cached_property
    def _thresholds(self) -> dict[str, float]:
        return {label_text(label): own for label, own in self.at_least}

    @property
    def labels(self) -> Iterable[str]:
        return self._thresholds

    @property
    def words(self) -> str:
        own = ", ".join(f"{label} {threshold:.10g}" for label, threshold in self.at_least)
        return f"{self.version}'s confidence ≥ its answer's threshold ({own}, others {self.otherwise:.10g})"

    @property
    def notation(self) -> str:
        return "sure by label"

    def settings(self) -> dict[str, Any]:
        own = {label: _written(threshold) for label, threshold in self.at_least}
        return {"version": self.version, "at_least": own, "otherwise": _written(self.otherwise)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        own = tuple((str(label), _read(threshold)) for label, threshold in settings["at_least"].items())
        return cls(str(settings["version"]), own, _read(settings["otherwise"]))


def _written(threshold: float) -> float | None:
    """JSON has no infinity: never is null."""
    return None if np.isinf(threshold) else threshold


def _read(threshold: float | None) -> float:
    return np.inf if threshold is None else float(threshold)
