"""When requests arrive: one base class, one file per arrival process."""

from __future__ import annotations

import math
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


def positive_rate(rate_per_s: float, what: str = "a rate") -> float:
    """``rate_per_s`` itself. Raises ``InputError`` when it is not positive and finite."""
    if not 0 < rate_per_s < math.inf:
        raise InputError(f"{what} of {rate_per_s:g}/s is not a positive, finite rate")
    return rate_per_s


def variability(cv2: float) -> float:
    """``cv2`` itself. Raises ``InputError`` when it is negative or not finite."""
    if not 0 <= cv2 < math.inf:
        raise InputError(f"a squared coefficient of variation of {cv2:g} is negative or not finite")
    return cv2


def gamma_arrivals(total: float, cv2: float, generator: np.random.Generator) -> np.ndarray:
    """Instants in [0, total) at mean gap 1, float64: gamma gaps of variance ``cv2``, evenly spaced for 0.

    Bursty for ``cv2`` above 1, Poisson at 1.
    """
    if cv2 == 0:
        return np.arange(math.ceil(total), dtype=np.float64) + 0.5 * (total >= 1)
    parts, reached = [], 0.0
    while reached < total:
        count = math.ceil(1.1 * (total - reached) + 16)
        parts.append(reached + np.cumsum(generator.gamma(1.0 / cv2, cv2, count)))
        reached = float(parts[-1][-1])
    times = np.concatenate(parts)
    return times[times < total]


def stretched(total: np.ndarray, edges_s: np.ndarray, rates_per_s: np.ndarray) -> np.ndarray:
    """Seconds at which a piecewise linear count reaches ``total`` (ascending, in arrivals).

    ``rates_per_s`` [bins] holds between ``edges_s`` [bins + 1]; where it is 0 no request arrives.
    """
    reached = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * rates_per_s)])
    busy = np.concatenate([[True], rates_per_s > 0])
    # Where the rate is 0 the count stands still: time jumps there.
    bins = np.clip(np.searchsorted(reached, total, side="right") - 1, 0, len(rates_per_s) - 1)
    bins = np.where(busy[bins + 1], bins, np.maximum(bins - 1, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.where(rates_per_s[bins] > 0, (total - reached[bins]) / rates_per_s[bins], 0.0)
    return np.maximum.accumulate(edges_s[bins] + inside)
