"""Arrival processes: Poisson, bursty, and with a rate that ramps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from slotool.errors import ArgumentError, InputError

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
        """Return ``draw`` with a seed; the same seed gives the same instants.

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
    """Return ``rate_per_s`` itself. Raises ``InputError`` when it is not positive and finite."""
    if not 0 < rate_per_s < math.inf:
        raise InputError(f"{what} of {rate_per_s:g}/s is not a positive, finite rate")
    return rate_per_s


def variability(cv2: float) -> float:
    """Return ``cv2`` itself. Raises ``InputError`` when it is negative or not finite."""
    if not 0 <= cv2 < math.inf:
        raise InputError(f"a squared coefficient of variation of {cv2:g} is negative or not finite")
    return cv2


def gamma_arrivals(total: float, cv2: float, generator: np.random.Generator) -> np.ndarray:
    """Return the instants in [0, total) at mean gap 1, float64: gamma gaps of variance ``cv2``, evenly spaced for 0.

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
    """Return the seconds at which a piecewise linear count reaches ``total`` (ascending, in arrivals).

    ``rates_per_s`` [bins] holds between ``edges_s`` [bins + 1]; where it is 0 no request arrives.
    """
    reached = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * rates_per_s)])
    busy = np.concatenate([[True], rates_per_s > 0])
    # Time jumps where the rate is 0.
    bins = np.clip(np.searchsorted(reached, total, side="right") - 1, 0, len(rates_per_s) - 1)
    bins = np.where(busy[bins + 1], bins, np.maximum(bins - 1, 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.where(rates_per_s[bins] > 0, (total - reached[bins]) / rates_per_s[bins], 0.0)
    return np.maximum.accumulate(edges_s[bins] + inside)


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


def process_of(kind: str, rate: float, options: Mapping[str, Any]) -> ArrivalProcess:
    """Return the arrival process of a ``kind`` by its mean, or last, rate per second.

    ``options``: arguments of that kind alone: base, cv2, from_rate and acceleration. Raises ``ArgumentError``.
    """
    if kind == "poisson":
        return Poisson(rate)
    if kind == "bursty":
        steady = options.get("base", rate / 4)
        if steady >= rate:
            raise ArgumentError("base", f"{steady:g} leaves nothing of --rate {rate:g} for bursts")
        return Bursty(steady, rate - steady, options.get("cv2", 1.0))
    if kind == "time-varying":
        return TimeVarying(
            options.get("from_rate", rate / 4), rate, options.get("acceleration", 100.0), options.get("cv2", 1.0)
        )
    raise ArgumentError("kind", f"{kind!r} is none of poisson, bursty and time-varying")
