"""How much longer than planned long calls take at the moment, in proportion: what a busy machine does to them."""

from __future__ import annotations

from collections import deque

# Calls of at least this length are a measure of it: to shorter ones a busy machine adds a time slice or nothing.
LONG_US = 4e3
# Considered are the calls of so long, but no more than so many; the factor covers this share of their planned time.
SPAN_US, REMEMBERED, QUANTILE = 5e6, 512, 0.99
# It is recomputed after so many calls, or so much planned time.
EVERY, EVERY_US = 25, 50e3
# Of which more is no noise, but a worker that hangs, or a latency table of something else.
MAX_FACTOR = 2.0


class Slowness:
    """Of recent long calls, how many times as long as planned they took: a quantile by planned time, from 1 to
    ``MAX_FACTOR``; 1 before any, and ``SPAN_US`` after the last."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, float, float]] = deque(maxlen=REMEMBERED)
        self._factor = 1.0
        self._since, self._since_us = 0, 0.0

    def of(self, now_us: float) -> float:
        """The factor at this instant."""
        if self._factor == 1.0 or now_us - self._calls[-1][0] > SPAN_US:
            return 1.0
        return self._factor

    def observe(self, planned_us: float, took_us: float, now_us: float) -> None:
        """A call that was planned to take ``planned_us`` was decided at about ``now_us``, and took ``took_us``."""
        if planned_us < LONG_US:
            return
        self._calls.append((now_us, took_us / planned_us, planned_us))
        self._since, self._since_us = self._since + 1, self._since_us + planned_us
        if self._since >= EVERY or self._since_us >= EVERY_US:
            self._since, self._since_us = 0, 0.0
            while self._calls[0][0] < now_us - SPAN_US:
                self._calls.popleft()
            self._factor = min(MAX_FACTOR, max(1.0, self._covering()))

    def _covering(self) -> float:
        """The least ratio with which ``QUANTILE`` of the planned time was in calls that took no longer."""
        beyond_us = (1 - QUANTILE) * sum([planned_us for _, _, planned_us in self._calls])
        for ratio, planned_us in sorted([call[1:] for call in self._calls], reverse=True):
            beyond_us -= planned_us
            if beyond_us < 0:
                return ratio
        return 1.0
