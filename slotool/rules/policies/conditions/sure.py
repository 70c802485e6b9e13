"""A version's own confidence reaches a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition


@dataclass(frozen=True)
class Sure(Condition):
    """``version`` answers with confidence ≥ ``at_least``, compared as float64."""

    version: str
    at_least: float
    kind: ClassVar[str] = "sure"

    def holds(self, asked: Asked) -> np.ndarray:
        return np.asarray(asked.confidence(self.version) >= self.at_least)

    def holds_one(self, asked: AskedOne) -> bool:
        return asked.confidence(self.version) >= self.at_least

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
