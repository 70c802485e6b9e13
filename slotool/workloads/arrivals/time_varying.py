"""A rate that climbs (or falls) from one level to another."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.workloads.arrivals.process import ArrivalProcess, gamma_arrivals, positive_rate, stretched, variability

# A ramp in this many steps is a ramp to every queue.
RAMP_STEPS = 1_000


class TimeVarying(ArrivalProcess):
    """``from_per_s`` until ``starts_s``, then towards ``to_per_s`` by ``acceleration`` (arrivals/s²), then that rate.

    Gaps are gamma with squared coefficient of variation ``cv2``, in the time that the rate stretches.
    Source: superserve, §6.1. Raises ``InputError`` for rates or an acceleration that are not positive.
    """

    name: ClassVar[str] = "time-varying"

    def __init__(
        self, from_per_s: float, to_per_s: float, acceleration: float, cv2: float = 1.0, starts_s: float = 0.0
    ):
        self.from_per_s, self.to_per_s = positive_rate(from_per_s), positive_rate(to_per_s)
        if not (acceleration > 0 and starts_s >= 0):
            raise InputError(f"an acceleration of {acceleration:g}/s² from {starts_s:g} s is no ramp")
        self.acceleration, self.cv2, self.starts_s = acceleration, variability(cv2), starts_s

    @property
    def mean_rate_per_s(self) -> float:
        return self.to_per_s

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        ramp_s = max(abs(self.to_per_s - self.from_per_s) / self.acceleration, 1e-9)
        within = np.linspace(0.0, ramp_s, RAMP_STEPS + 1)
        edges_s = np.concatenate([[0.0], self.starts_s + within, [self.starts_s + ramp_s + duration_s]])
        middle = (np.arange(RAMP_STEPS) + 0.5) / RAMP_STEPS
        climbing = self.from_per_s + (self.to_per_s - self.from_per_s) * middle
        rates = np.concatenate([[self.from_per_s], climbing, [self.to_per_s]])
        most = duration_s * max(self.from_per_s, self.to_per_s)
        times_s = stretched(gamma_arrivals(most, self.cv2, generator), edges_s, rates)
        return times_s[times_s < duration_s]
