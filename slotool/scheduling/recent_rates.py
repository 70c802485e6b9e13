"""Rates at which requests have arrived lately, for decisions about workers."""

from __future__ import annotations

from collections import deque

# Seconds between two looks at it.
LOOK_S = 1.0
# A rate is that of so many seconds: a burst shorter than this is for the queue.
RATE_S = 2.0
# What holds for so many seconds may decide that fewer, or other, workers are enough.
CALM_S = 30.0
# Of what workers are good for, that the highest rate of that time may reach: below 1, or the next burst would undo it.
CALM_SHARE = 0.8


class RecentRates:
    """Requests per second over ``RATE_S``, as they were at each look of the last ``CALM_S``."""

    def __init__(self) -> None:
        # Instants and requests until then, of the last ``RATE_S``; and the rates of the last ``CALM_S``.
        self._counts: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()

    @property
    def of_calm(self) -> list[float]:
        """Those of the last ``CALM_S``, oldest first."""
        return [rate for _, rate in self._rates]

    def look(self, now_s: float, arrived: int) -> float | None:
        """The rate now; None while half of ``RATE_S`` has not passed. ``arrived``: requests until now. To be asked
        about every second, in order of time."""
        self._counts.append((now_s, arrived))
        while len(self._counts) > 2 and self._counts[1][0] <= now_s - RATE_S:
            self._counts.popleft()
        since_s, before = self._counts[0]
        if now_s - since_s < RATE_S / 2:
            return None
        rate_per_s = (arrived - before) / (now_s - since_s)
        self._rates.append((now_s, rate_per_s))
        while self._rates[0][0] < now_s - CALM_S:
            self._rates.popleft()
        return rate_per_s
