"""Time after which a call counts as hung: the server's limit, and less where calls like it are known to be short."""

from __future__ import annotations

from collections import defaultdict

from slotool.scheduling.workers import CallTimes
from slotool.tables import OperatingPoint

# A busy machine makes calls several times as long, and stops all for a while: that is no hang. Where it can be, half of
# the limit is left, so that the requests of a frozen worker are answered by another.
USUAL_FACTOR, MIN_FACTOR, MIN_S = 20.0, 3.0, 2.0


class HangLimit:
    """Limits of calls in seconds, at most ``hang_s``, by model, operating point and power of two of their size."""

    def __init__(self, hang_s: float):
        self.hang_s = hang_s
        # Between two looks for calls that are longer.
        self.look_s = min(hang_s, MIN_S) / 4
        self._times: defaultdict[str, CallTimes] = defaultdict(CallTimes)

    def observe(self, model: str, point: OperatingPoint, size: int, took_s: float) -> None:
        self._times[model].observe(point, size.bit_length(), 1e6 * took_s)

    def of(self, model: str, point: OperatingPoint, size: int) -> float:
        usual_s = 1e-6 * self._times[model].of(point, size.bit_length())
        if not usual_s:
            return self.hang_s
        limit_s = max(MIN_S, MIN_FACTOR * usual_s, min(USUAL_FACTOR * usual_s, self.hang_s / 2))
        return min(self.hang_s, limit_s)
