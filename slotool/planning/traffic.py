"""The requests that a fleet is simulated with: all that arrive, or stretches of long traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slotool.workloads.arrivals.recorded import BURST_S

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
    def sampled_together(cls, arrival_s: Mapping[str, np.ndarray], most: int, deadline_s: float) -> dict[str, Traffic]:
        """Sample the same stretches, at even distances, of the requests of all models: about ``most`` of them, or all
        of traffic that is no longer.

        A stretch begins with idle workers and ends with no request behind it, so its first and last requests, by
        deadlines, are served but not counted.
        """
        whole = {name: cls.whole(own) for name, own in arrival_s.items()}
        of = np.repeat(np.arange(len(arrival_s)), [len(own) for own in arrival_s.values()])
        times_s = np.concatenate(list(arrival_s.values()))
        order = np.argsort(times_s, kind="stable")
        of, times_s = of[order], times_s[order]
        least = math.ceil(cls.whole(times_s).rate_per_s * (WARM_UP + COUNTED + 1) * deadline_s)
        if len(times_s) <= max(most, least) or not np.ptp(times_s):
            return whole
        count = min(STRETCHES, max(1, most // least))
        size = max(most // count, least)
        # One stretch is the middle one.
        places = np.linspace(0, len(times_s) - size, count + 2)[1:-1].astype(int)
        at = (places[:, None] + np.arange(size)).ravel()
        stretches = times_s[at].reshape(count, size) - times_s[places, None]
        last_s = stretches[:, -1:]
        counted = ((stretches >= WARM_UP * deadline_s) & (stretches <= last_s - deadline_s)).ravel()
        begins_s = np.concatenate([[0.0], np.cumsum(last_s + 2 * deadline_s)[:-1]])
        sample_s = (stretches + begins_s[:, None]).ravel()
        found = {}
        for number, name in enumerate(arrival_s):
            own = of[at] == number
            found[name] = cls(sample_s[own], counted[own], whole[name].rate_per_s, times_s[at][own])
        return found
