"""Latency of calls as a server observes it, where no policy knows it."""

from __future__ import annotations

from slotool.tables import OperatingPoint

# Share of the latest call in an estimate, and what one call may at most do to it: a stall is none of the model's.
LATEST, MAX_RISE = 0.125, 2.0
# Factor on an estimate at each query that it alone rules out: it may have been learnt in a bad moment.
DOUBT = 1 - 1 / 128
MAX_KNOWN = 4_096


class CallTimes:
    """Estimates of the latency of calls, µs, by operating point and number of examples."""

    def __init__(self) -> None:
        self._us: dict[tuple[OperatingPoint, int], float] = {}

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        before_us = self._us.get((point, examples))
        if before_us is None:
            if len(self._us) >= MAX_KNOWN:
                self._us.clear()
            before_us = took_us
        self._us[point, examples] = before_us + LATEST * (min(took_us, MAX_RISE * before_us) - before_us)

    def of(self, point: OperatingPoint, examples: int) -> float:
        """Return the estimate, 0 where such a call was never observed."""
        return self._us.get((point, examples), 0.0)

    def doubt(self, point: OperatingPoint, examples: int) -> None:
        """Lower the estimate a little, so that after many queries that it rules out one is tried again."""
        self._us[point, examples] *= DOUBT
