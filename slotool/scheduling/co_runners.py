"""β from outside: how many busy copies stand beside us, told by how long our own answers take; and LCAO that obeys."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slotool.errors import InputError
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.latency_constrained import LatencyConstrained
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# A scheduler hands out slices of some milliseconds, so a share of a core can be told over many of them only.
MEMORY_US = 100_000.0


class CoRunnerEstimator:
    """Picks β by the ratio of what recent answers took to what the latency profile expects of them.

    Compared are sums, not medians: on a shared core most short answers are as quick as ever, and a few wait for a whole
    time slice. ``mean_us``: mean latency by β and point (``LatencyProfile.mean_us``). ``memory_us``: answers count the
    less the longer ago, by a factor e per so much time. ``start``: β until a quarter of that has been seen.
    Raises ``InputError`` when ``start`` is not among the β, or the memory not positive.
    """

    def __init__(
        self,
        mean_us: Mapping[int, Mapping[OperatingPoint, float]],
        *,
        memory_us: float = MEMORY_US,
        start: int | None = None,
    ):
        if not mean_us:
            raise InputError("co-runners cannot be told from latencies: none are known")
        self._mean_us = {beside: dict(by_point) for beside, by_point in sorted(mean_us.items())}
        self.beside = min(self._mean_us) if start is None else start
        if self.beside not in self._mean_us or not memory_us > 0:
            raise InputError(f"β starts as one of {', '.join(map(str, self._mean_us))}, with a memory above 0 µs")
        self._memory_us = memory_us
        self._took_us = self._seen_us = 0.0
        self._expected_us = dict.fromkeys(self._mean_us, 0.0)

    def observe(self, point: OperatingPoint, took_us: float) -> int:
        """Take in that an answer at ``point`` took so long; returns β as it is now estimated.

        A point that some β has no mean of tells nothing.
        """
        means = [by_point.get(point) for by_point in self._mean_us.values()]
        if None in means:
            return self.beside
        kept = math.exp(-took_us / self._memory_us)
        self._took_us = kept * self._took_us + took_us
        self._seen_us += took_us
        for beside, mean_us in zip(self._mean_us, means, strict=True):
            self._expected_us[beside] = kept * self._expected_us[beside] + (mean_us or 0.0)
        if self._seen_us >= self._memory_us / 4:
            self.beside = min(self._expected_us, key=self._distance)
        return self.beside

    def _distance(self, beside: int) -> float:
        return abs(math.log(self._took_us / self._expected_us[beside]))


class InterferenceAware(Policy):
    """``LatencyConstrained`` with the latencies of the β that ``estimator`` tells; whoever serves lets it observe.

    ``spaces``: by β, one for each that the estimator may tell. Source: slo-aware-neural-networks, §2.3 and §3.2.
    """

    def __init__(self, spaces: Mapping[int, ControlSpace], estimator: CoRunnerEstimator):
        self._policies = {beside: LatencyConstrained(space) for beside, space in spaces.items()}
        if estimator.beside not in self._policies:
            raise InputError(f"no latencies are known beside {estimator.beside} copies")
        self.estimator = estimator
        self.points = tuple(dict.fromkeys(point for policy in self._policies.values() for point in policy.points))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        return self._policies[self.estimator.beside].decide(now_us, queue)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._policies[self.estimator.beside].planned_us(point, examples)

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        if examples == 1:
            self.estimator.observe(point, took_us)
