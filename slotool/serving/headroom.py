"""How much later than planned answers leave: calls that take longer than profiled, and an event loop with others to
answer first."""

from __future__ import annotations

from collections import deque

import numpy as np

# Of the last so many answers, and not of older ones than so long.
REMEMBERED, FORGOTTEN_US = 400, 2e6
# Which share of them would have been in time by the headroom; it is reckoned anew after so many answers.
QUANTILE, EVERY = 0.99, 25
# A headroom takes at most this share of the time that a request has.
MOST = 0.5


class LatencyHeadroom:
    """What a deadline is brought forward by, so that an answer planned to end by then has left when it comes.

    Plans know the profile and no more. ``observe`` is told of every answer how much later it left than its call was
    planned to end, in µs; what most of the recent ones needed is the headroom. 0 before anything has been seen, and
    again when nothing has been for long.
    """

    def __init__(self) -> None:
        self._excess_us: deque[float] = deque(maxlen=REMEMBERED)
        self._seen_at_us = 0.0
        self._since = 0
        self._needed_us = 0.0

    def observe(self, excess_us: float, now_us: float) -> None:
        if now_us - self._seen_at_us > FORGOTTEN_US:
            self._excess_us.clear()
        self._excess_us.append(excess_us)
        self._seen_at_us = now_us
        self._since += 1
        if self._since >= EVERY:
            self._since = 0
            self._needed_us = max(0.0, float(np.quantile(self._excess_us, QUANTILE)))

    def of(self, timeout_us: float, now_us: float) -> float:
        """µs by which to bring forward the deadline of a request that has ``timeout_us``."""
        if now_us - self._seen_at_us > FORGOTTEN_US:
            return 0.0
        return min(self._needed_us, MOST * timeout_us)
