"""Latency headroom: how much later than planned recent answers left, by slow calls or a busy event loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

# Answers considered, and their maximum age.
REMEMBERED, FORGOTTEN_US = 1_000, 2e6
# Share of them that the headroom covers: of answers that use all of their slack so many are in time. It is recomputed
# after ``EVERY`` answers, when it is asked for.
QUANTILE, EVERY = 0.999, 50
# Until so many answers are remembered the headroom is at least this share of a request's timeout: a policy that waits
# as long as plans allow has its first answers late otherwise.
FEW, CAREFUL_SHARE = 100, 0.05
# Largest share of a request's timeout that the headroom takes, where calls are measured of what a call leaves of it: a
# new request can be in time.
MAX_SHARE = 0.5


class LatencyHeadroom:
    """By how much deadlines are brought forward, to make room for what plans do not know.

    Plans know the latency profile only. ``observe`` receives how much later than planned, in µs, answers left
    together; the headroom is the ``QUANTILE`` of the recent values. While few are known, at first and after
    ``FORGOTTEN_US`` without any, it is careful.
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

    def of(self, timeout_us: float, now_us: float, call_us: float = 0.0) -> float:
        """Return by how many µs to bring forward the deadline of a request that has ``timeout_us``. ``call_us``: of the
        call that it needs, as measured; 0 where a policy knows it."""
        if math.isinf(timeout_us):
            return 0.0
        if now_us - self._seen_at_us > FORGOTTEN_US:
            return CAREFUL_SHARE * timeout_us
        if self._since >= EVERY:
            self._since = 0
            self._needed_us = max(0.0, _quantile(self._excess_us, QUANTILE))
        careful_us = CAREFUL_SHARE * timeout_us if len(self._excess_us) < FEW else 0.0
        return min(max(self._needed_us, careful_us), MAX_SHARE * max(0.0, timeout_us - call_us))


def _quantile(values: Iterable[float], share: float) -> float:
    """As ``numpy.quantile`` has it. Requests wait meanwhile: NumPy takes five times as long for so few."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])
