"""Bursty arrivals: a steady base, and bursts on top of it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from slotool.workloads.arrivals.process import ArrivalProcess, gamma_arrivals, positive_rate, variability


class Bursty(ArrivalProcess):
    """``base_per_s`` evenly spaced, plus ``burst_per_s`` with gamma gaps of squared coefficient of variation ``cv2``.

    Source: superserve, §6.1. Raises ``InputError`` for a rate that is not positive or a ``cv2`` that is negative.
    """

    name: ClassVar[str] = "bursty"

    def __init__(self, base_per_s: float, burst_per_s: float, cv2: float):
        self.base_per_s = positive_rate(base_per_s, "a base rate")
        self.burst_per_s = positive_rate(burst_per_s, "a burst rate")
        self.cv2 = variability(cv2)

    @property
    def mean_rate_per_s(self) -> float:
        return self.base_per_s + self.burst_per_s

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        base = gamma_arrivals(self.base_per_s * duration_s, 0.0, generator) / self.base_per_s
        bursts = gamma_arrivals(self.burst_per_s * duration_s, self.cv2, generator) / self.burst_per_s
        times_s = np.sort(np.concatenate([base, bursts]))
        return times_s[times_s < duration_s]
