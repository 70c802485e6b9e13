"""When requests arrive: one base class, one file per arrival process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from slotool.errors import InputError

MAX_ARRIVALS = 5_000_000


class ArrivalProcess(ABC):
    """A stream of arrivals. ``name``: what provenance calls it. ``mean_rate_per_s``: arrivals per second it aims at."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def mean_rate_per_s(self) -> float:
        """Arrivals per second, averaged over a long time."""

    @abstractmethod
    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        """Arrival instants in [0, duration_s), float64 seconds [n], ascending."""

    def times(self, duration_s: float, seed: int) -> np.ndarray:
        """``draw`` with a seed; the same seed gives the same instants.

        Raises ``InputError`` for a duration that is not positive, or for more than ``MAX_ARRIVALS`` expected.
        """
        if not 0 < duration_s < float("inf"):
            raise InputError(f"a duration of {duration_s:g} s is not a positive, finite time")
        if self.mean_rate_per_s * duration_s > MAX_ARRIVALS:
            raise InputError(
                f"{self.mean_rate_per_s:g} arrivals/s over {duration_s:g} s are more than {MAX_ARRIVALS:,} requests"
            )
        return self.draw(duration_s, np.random.default_rng(seed))
