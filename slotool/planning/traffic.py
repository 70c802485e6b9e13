"""The requests that a fleet is simulated with: all that arrive, or stretches of long traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slotool.workloads.traces import BURST_S

# Of long traffic at most so many stretches at even distances.
STRETCHES = 40
# Of a stretch, in deadlines: until queues are as they would be, and at least counted behind that.
WARM_UP, COUNTED = 5, 20


@dataclass(frozen=True)
class Traffic:
    """``arrival_s``: float64 [n], ascending from about 0. ``counted``: bool [n], those that a verdict counts.
    ``recorded_s``: float64 [n], when they came in the traffic that is planned for, which may be longer."""

    arrival_s: np.ndarray
    counted: np.ndarray
    rate_per_s: float
    recorded_s: np.ndarray

    @classmethod
    def whole(cls, arrival_s: np.ndarray) -> Traffic:
        span_s = float(np.ptp(arrival_s)) or BURST_S
        return cls(arrival_s, np.ones(len(arrival_s), dtype=bool), len(arrival_s) / span_s, arrival_s)

    @classmethod
    def sampled(cls, arrival_s: np.ndarray, most: int, deadline_s: float) -> Traffic:
        """About ``most`` requests in stretches at even distances; all of traffic that is no longer.

        A stretch begins with idle workers and ends with no request behind it, so its first and last requests, by
        deadlines, are served but not counted.
        """
        whole = cls.whole(arrival_s)
        least = math.ceil(whole.rate_per_s * (WARM_UP + COUNTED + 1) * deadline_s)
        if len(arrival_s) <= max(most, least) or not np.ptp(arrival_s):
            return whole
        count = min(STRETCHES, max(1, most // least))
        size = max(most // count, least)
        # One stretch is the middle one.
        places = np.linspace(0, len(arrival_s) - size, count + 2)[1:-1].astype(int)
        sample, counted, recorded, ends_s = [], [], [], 0.0
        for first in places:
            stretch = arrival_s[first : first + size] - arrival_s[first]
            last_s = float(stretch[-1])
            sample.append(stretch + ends_s)
            recorded.append(arrival_s[first : first + size])
            counted.append((stretch >= WARM_UP * deadline_s) & (stretch <= last_s - deadline_s))
            ends_s += last_s + 2 * deadline_s
        return cls(np.concatenate(sample), np.concatenate(counted), whole.rate_per_s, np.concatenate(recorded))

    def faster(self, times: float) -> Traffic:
        """The same requests, so many times as close to each other."""
        return Traffic(self.arrival_s / times, self.counted, times * self.rate_per_s, self.recorded_s)
