"""Latency headroom: how much later than planned recent answers left, by slow calls or a busy event loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

# Answers considered, and their maximum age.
REMEMBERED, FORGOTTEN_US = 400, 2e6
# Share of them that the headroom covers; it is recomputed after ``EVERY`` answers, when it is asked for.
QUANTILE, EVERY = 0.99, 25
# Largest share of a request's timeout that the headroom takes.
MAX_SHARE = 0.5


class LatencyHeadroom:
    """By how much deadlines are brought forward, to make room for what plans do not know.

    Plans know the latency profile only. ``observe`` receives how much later than planned, in µs, answers left
    together; the headroom is the ``QUANTILE`` of the recent values. It is 0 before any answer, and after
    ``FORGOTTEN_US`` without.
    """

    def __init__(self) -> None:
        self._excess_us: deque[float] = deque(maxlen=REMEMBERED)
        self._seen_at_us = 0.0
        self._since = 0
        self._needed_us = 0.0

    def observe(self, excess_us: float, now_us: float, answers: int = 1) -> None:
        if now_us - self._seen_at_us > FORGOTTEN_US:
            self._excess_us.clear()
        self._excess_us.extend([excess_us] * answers)
        self._seen_at_us = now_us
        self._since += answers

    def of(self, timeout_us: float, now_us: float) -> float:
        """µs by which to bring forward the deadline of a request that has ``timeout_us``."""
        if math.isinf(timeout_us) or now_us - self._seen_at_us > FORGOTTEN_US:
            return 0.0
        if self._since >= EVERY:
            self._since = 0
            self._needed_us = max(0.0, _quantile(self._excess_us, QUANTILE))
        return min(self._needed_us, MAX_SHARE * timeout_us)


def _quantile(values: Iterable[float], share: float) -> float:
    """As ``numpy.quantile`` has it. Requests wait meanwhile: NumPy takes five times as long for so few."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
