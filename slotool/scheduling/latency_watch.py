"""Latencies seen in production against those of the table, weighted by age: how much slower a machine has become."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

import numpy as np

from slotool.scheduling.space import PLANNING_QUANTILE, ControlSpace
from slotool.tables import OperatingPoint

# The weight of a call falls by a factor e in this time, and a point has a factor of its own from so much weight on.
MEMORY_US = 3e6
MIN_WEIGHT = 20.0
KEPT_CALLS = 512
# A correction is changed when what is seen differs from it by this share, at so many looks in a row: slow calls of a
# moment are the latency headroom's. To trust a machine that seems faster again takes longer.
NOTICEABLE = 0.15
LOOKS_SLOWER, LOOKS_FASTER = 3, 6
# Beyond these the table is of something else.
MIN_FACTOR, MAX_FACTOR = 0.25, 20.0


class LatencyWatch:
    """By what factor the calls of a model take longer than its table says, by operating point.

    The factor is a quantile of the recent ratios of a call's latency to what ``space`` plans for it, both quantiles
    being the same, so it is 1 where the table is right. A point without recent calls has the factor of all points
    together. ``look`` is called at regular intervals. Instants are µs of any one clock.
    """

    def __init__(self, space: ControlSpace, *, quantile: float = PLANNING_QUANTILE):
        self._space, self._quantile = space, quantile
        self._ratios: dict[OperatingPoint, deque[tuple[float, float]]] = {}
        self._looks_slower = self._looks_faster = 0
        self.factors: Mapping[OperatingPoint, float] = {}

    def observe(self, point: OperatingPoint, examples: int, took_us: float, now_us: float) -> None:
        """A call of so many examples ended at ``now_us``. Calls of which the table says nothing are ignored."""
        expected_us = self._expected_us(point, examples)
        if expected_us is not None and took_us > 0:
            self._ratios.setdefault(point, deque(maxlen=KEPT_CALLS)).append((now_us, took_us / expected_us))

    def look(self, now_us: float) -> bool:
        """Whether the factors have changed for good; ``factors`` then has the new ones."""
        seen = self._seen(now_us)
        changes = [seen[point] / self.factors.get(point, 1.0) for point in seen]
        slower = max(changes, default=1.0) > 1.0 + NOTICEABLE
        faster = bool(changes) and not slower and min(changes) < 1.0 / (1.0 + NOTICEABLE)
        self._looks_slower = self._looks_slower + 1 if slower else 0
        self._looks_faster = self._looks_faster + 1 if faster else 0
        if self._looks_slower < LOOKS_SLOWER and self._looks_faster < LOOKS_FASTER:
            return False
        self._looks_slower = self._looks_faster = 0
        self.factors = seen
        return True

    def _seen(self, now_us: float) -> dict[OperatingPoint, float]:
        """Of every point, when enough calls were seen lately; else none."""
        recent: dict[OperatingPoint, tuple[np.ndarray, np.ndarray]] = {}
        for point, ratios in self._ratios.items():
            at_us, ratio = np.array(ratios).T
            recent[point] = ratio, np.exp((at_us - now_us) / MEMORY_US)
        if not recent:
            return {}
        everything = [np.concatenate(part) for part in zip(*recent.values(), strict=True)]
        if everything[1].sum() < MIN_WEIGHT:
            return {}
        own = {point: found for point, found in recent.items() if found[1].sum() >= MIN_WEIGHT}
        return {point: self._factor(*own.get(point, everything)) for point in self._space.points}

    def _factor(self, ratios: np.ndarray, weights: np.ndarray) -> float:
        order = np.argsort(ratios)
        reached = np.searchsorted(np.cumsum(weights[order]), self._quantile * weights.sum())
        return float(np.clip(ratios[order[min(int(reached), len(ratios) - 1)]], MIN_FACTOR, MAX_FACTOR))

    def _expected_us(self, point: OperatingPoint, examples: int) -> float | None:
        """Between two profiled batch sizes on the line between them: plans take the larger one's, calls do not."""
        sizes = self._space.batch_sizes(point) if point.get("policy") is None else ()
        if not sizes:
            return None
        at = bisect_left(sizes, examples)
        if at == len(sizes) or sizes[at] == examples or at == 0:
            return self._space.latency_us(point, examples)
        ends = sizes[at - 1], sizes[at]
        known = [self._space.latency_us(point, size) or math.nan for size in ends]
        return float(np.interp(examples, ends, known))
