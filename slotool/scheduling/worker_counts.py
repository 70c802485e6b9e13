"""Numbers of workers by the requests that arrive: pure decisions."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from slotool.errors import ArgumentError

# Seconds between two looks at it.
LOOK_S = 1.0
# A rate is that of so many seconds: a burst shorter than this is for the queue.
RATE_S = 2.0
# Seconds of low load before fewer workers are enough.
CALM_S = 30.0
# Share of the workers' capacity that the highest rate of that time may reach: below 1, as the next burst would undo it.
CALM_SHARE = 0.8


@dataclass(frozen=True)
class Scaling:
    """``workers``: how many there should be from now on; ``reason``: one sentence."""

    workers: int
    reason: str


class Autoscaler:
    """Between ``least`` and ``most`` workers, each good for ``per_worker_per_s`` requests a second.

    Workers are added as soon as the rate of the last ``RATE_S`` is more than those there are good for, as many as it
    takes. They leave when the highest such rate of the last ``CALM_S`` is at most ``CALM_SHARE`` of what the rest is
    good for. So a load that swings faster than that has the workers of its peaks, and one that lies anywhere within a
    fifth of a limit does not add and remove by turns. The rate is of requests and not of busy workers, since policies
    spend spare time on more accurate answers: their workers are busy at any load.

    Raises ``ArgumentError`` for no worker, fewer at most than at least, or a rate that is not above 0.
    """

    def __init__(self, least: int, most: int, per_worker_per_s: float):
        if not 1 <= least <= most:
            raise ArgumentError("max_replicas", f"{least} to {most} workers: at least 1, and no fewer than --replicas")
        if not 0 < per_worker_per_s < math.inf:
            raise ArgumentError("requests_per_worker", f"{per_worker_per_s:g} is not above 0")
        self.least, self.most, self.per_worker_per_s = least, most, per_worker_per_s
        # Instants and requests until then, of the last ``RATE_S``; and the rates of the last ``CALM_S``.
        self._counts: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()
        self._began_s: float | None = None

    def look(self, now_s: float, arrived: int, workers: int) -> Scaling | None:
        """Return the change of the worker count, or None; call it about every second, in order of time.

        ``arrived``: requests since the service began; ``workers``: present ones, those still starting included.
        """
        if self._began_s is None:
            self._began_s = now_s
        rate_per_s = self._current_rate(now_s, arrived)
        if rate_per_s is None:
            return None
        needed = math.ceil(rate_per_s / self.per_worker_per_s - 1e-9)
        if needed > workers and workers < self.most:
            to = min(needed, self.most)
            return self._change(to, f"{rate_per_s:.4g} requests/s over {RATE_S:g} s", workers)
        if workers > self.least and now_s - self._began_s >= CALM_S:
            highest = max(rate for _, rate in self._rates)
            enough = max(self.least, math.ceil(highest / (CALM_SHARE * self.per_worker_per_s) - 1e-9))
            if enough < workers:
                return self._change(enough, f"at most {highest:.4g} requests/s in {CALM_S:g} s", workers)
        return None

    def _current_rate(self, now_s: float, arrived: int) -> float | None:
        """Return the requests per second over ``RATE_S``; None until half of it has passed."""
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

    def _change(self, workers: int, reason: str, before: int) -> Scaling:
        good_for = f"a worker is good for {self.per_worker_per_s:.4g}"
        return Scaling(workers, f"{before} to {workers} workers: {reason}, and {good_for}")
