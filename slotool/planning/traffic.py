"""The requests that a fleet is simulated with: all that arrive, or stretches of long traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slotool.workloads.arrivals.recorded import BURST_S

# Maximum number of stretches of long traffic.
STRETCHES = 40
# Warm-up of a stretch until queues are typical, and least counted part after it, in deadlines.
WARM_UP, COUNTED = 5, 20


@dataclass(frozen=True)
class Traffic:
    """Traffic: instants ``arrival_s`` float64 [n], ascending from about 0.

    ``counted``: bool [n], those that a verdict counts. ``rate_per_s``: of the traffic planned for, which may be longer.
    """

    arrival_s: np.ndarray
    counted: np.ndarray
    rate_per_s: float

    @classmethod
    def whole(cls, arrival_s: np.ndarray) -> Traffic:
        span_s = float(np.ptp(arrival_s)) or BURST_S
        return cls(arrival_s, np.ones(len(arrival_s), dtype=bool), len(arrival_s) / span_s)

    @classmethod
    def sampled_together(cls, arrival_s: Mapping[str, np.ndarray], most: int, deadline_s: float) -> dict[str, Traffic]:
        """Sample equal, evenly spaced stretches of all models' requests: about ``most`` of them, or all.

        A stretch begins with idle workers and ends with no request behind it, so its first and last requests, by
        deadlines, are served but not counted.
        """
        whole = {name: cls.whole(selected) for name, selected in arrival_s.items()}
        of = np.repeat(np.arange(len(arrival_s)), [len(selected) for selected in arrival_s.values()])
        times_s = np.concatenate(list(arrival_s.values()))
        order = np.argsort(times_s, kind="stable")
        of, times_s = of[order], times_s[order]
        least = math.ceil(cls.whole(times_s).rate_per_s * (WARM_UP + COUNTED + 1) * deadline_s)
        if len(times_s) <= max(most, least) or not np.ptp(times_s):
            return whole
        count = min(STRETCHES, max(1, most // least))
        size = max(most // count, least)
        # A single stretch is the middle one.
        places = np.linspace(0, len(times_s) - size, count + 2)[1:-1].astype(int)
        at = (places[:, None] + np.arange(size)).ravel()
        stretches = times_s[at].reshape(count, size) - times_s[places, None]
        last_s = stretches[:, -1:]
        counted = ((stretches >= WARM_UP * deadline_s) & (stretches <= last_s - deadline_s)).ravel()
        begins_s = np.concatenate([[0.0], np.cumsum(last_s + 2 * deadline_s)[:-1]])
        sample_s = (stretches + begins_s[:, None]).ravel()
        sampled = {}
        for number, name in enumerate(arrival_s):
            selected = of[at] == number
            sampled[name] = cls(sample_s[selected], counted[selected], whole[name].rate_per_s)
        return sampled
