"""Versions answer the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition


@dataclass(frozen=True)
class Agree(Condition):
    """All of ``versions``, two or more, give one and the same answer, with ``at_least`` this confidence of the last."""

    versions: tuple[str, ...]
    at_least: float = -np.inf
    kind: ClassVar[str] = "agree"

    def holds(self, asked: Asked) -> np.ndarray:
        first, *others = self.versions
        label = asked.label(first)
        # A comparison with NaN, no answer, does not hold.
        holds = asked.confidence(others[-1]) >= self.at_least
        for version in (first, *others[:-1]):
            holds = holds & (asked.confidence(version) >= -np.inf)
        for version in others:
            holds = holds & (asked.label(version) == label)
        return np.asarray(holds)

    def holds_one(self, asked: AskedOne) -> bool:
        first, *others = self.versions
        if not asked.confidence(others[-1]) >= self.at_least:
            return False
        label = asked.label(first)
        return all(asked.label(version) == label for version in others) and not any(
            math.isnan(asked.confidence(version)) for version in self.versions
        )

    @property
    def words(self) -> str:
        sure = "" if np.isinf(self.at_least) else f" and {self.versions[-1]}'s confidence ≥ {self.at_least:.10g}"
        return f"{' and '.join(self.versions)} agree{sure}"

    @property
    def notation(self) -> str:
        return "agreed" if np.isinf(self.at_least) else f"agreed, >={self.at_least:.10g}"

    def settings(self) -> dict[str, Any]:
        sure = {} if np.isinf(self.at_least) else {"at_least": self.at_least}
        return {"versions": list(self.versions), **sure}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        versions = tuple(str(version) for version in settings["versions"])
        if len(versions) < 2:
            raise ValueError("agreement of fewer than two versions")
        return cls(versions, float(settings.get("at_least", -np.inf)))
