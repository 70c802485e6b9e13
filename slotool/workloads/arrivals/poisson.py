"""Poisson arrivals: independent users, exponential gaps."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.workloads.arrivals.process import ArrivalProcess


class Poisson(ArrivalProcess):
    """A constant rate, in arrivals per second. Raises ``InputError`` when it is not positive.

    With one seed a longer duration continues the shorter one's arrivals.
    """

    name: ClassVar[str] = "poisson"

    def __init__(self, rate_per_s: float):
        if not 0 < rate_per_s < math.inf:
            raise InputError(f"a rate of {rate_per_s:g}/s is not a positive, finite rate")
        self.rate_per_s = rate_per_s

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        expected = self.rate_per_s * duration_s
        enough = math.ceil(expected + 6.0 * math.sqrt(expected) + 16.0)
        gaps_s = np.empty(0)
        while gaps_s.sum() < duration_s:
            gaps_s = np.concatenate([gaps_s, generator.standard_exponential(enough) / self.rate_per_s])
        times_s = np.cumsum(gaps_s)
        return times_s[times_s < duration_s]
