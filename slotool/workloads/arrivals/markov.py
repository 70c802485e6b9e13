"""Markov-modulated Poisson arrivals: several rates, each for a random while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from slotool.errors import InputError
from slotool.workloads.arrivals.process import ArrivalProcess, gamma_arrivals, positive_rate, stretched


class MarkovModulated(ArrivalProcess):
    """Poisson at one of ``rates_per_s``; after an exponential stay of mean ``stay_s`` on to another one at random.

    Raises ``InputError`` for fewer than two rates, or a rate or stay that is not positive.
    """

    name: ClassVar[str] = "markov"

    def __init__(self, rates_per_s: Sequence[float], stay_s: float):
        if len(rates_per_s) < 2 or not 0 < stay_s < float("inf"):
            raise InputError(f"{len(rates_per_s)} rates with stays of {stay_s:g} s; two or more and a positive time")
        self.rates_per_s = tuple(positive_rate(rate) for rate in rates_per_s)
        self.stay_s = stay_s

    @property
    def mean_rate_per_s(self) -> float:
        return sum(self.rates_per_s) / len(self.rates_per_s)

    def draw(self, duration_s: float, generator: np.random.Generator) -> np.ndarray:
        stays, state, reached_s = [], int(generator.integers(len(self.rates_per_s))), 0.0
        edges_s = [0.0]
        while reached_s < duration_s:
            stays.append(self.rates_per_s[state])
            reached_s += float(generator.exponential(self.stay_s))
            edges_s.append(reached_s)
            others = len(self.rates_per_s) - 1
            state = (state + 1 + int(generator.integers(others))) % len(self.rates_per_s)
        edges, rates = np.array(edges_s), np.array(stays)
        times_s = stretched(gamma_arrivals(float((np.diff(edges) * rates).sum()), 1.0, generator), edges, rates)
        return times_s[times_s < duration_s]
