"""β estimated at run time: the number of co-runners, from the latencies of our own answers; and LCAO that follows
it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slotool.errors import InputError
from slotool.scheduling.edf import EdfQueue
from slotool.scheduling.latency_constrained import LatencyConstrained
from slotool.scheduling.policy import CannotMeet, Decision, Policy
from slotool.scheduling.space import ControlSpace
from slotool.tables import OperatingPoint

# The operating system hands out slices of some milliseconds, so a share of a core shows over many of them only.
MEMORY_US = 100_000.0


class CoRunnerEstimator:
    """Estimates β by the ratio of recent latencies to those that the latency profile expects.

    It compares sums, not medians: on a shared core most short answers keep their latency, and a few wait for a whole
    time slice. ``mean_us``: mean latency by β and point (``LatencyProfile.mean_us``). ``memory_us``: weights of past
    answers decay by a factor e in this time; until a quarter of it has been observed β is the least that is known.
    Raises ``InputError`` for no β and for a memory that is not positive.
    """

    def __init__(self, mean_us: Mapping[int, Mapping[OperatingPoint, float]], *, memory_us: float = MEMORY_US):
        if not mean_us or not memory_us > 0:
            raise InputError("co-runners cannot be estimated without latencies, or with a memory of 0 µs")
        self._mean_us = {co_runners: dict(by_point) for co_runners, by_point in sorted(mean_us.items())}
        self.co_runners = min(self._mean_us)
        self._memory_us = memory_us
        self._took_us = self._seen_us = 0.0
        self._expected_us = dict.fromkeys(self._mean_us, 0.0)

    def observe(self, point: OperatingPoint, took_us: float) -> int:
        """Record the latency of an answer at ``point``; returns the new estimate of β.

        A point without a mean for every β is ignored.
        """
        means = [by_point.get(point) for by_point in self._mean_us.values()]
        if None in means:
            return self.co_runners
        kept = math.exp(-took_us / self._memory_us)
        self._took_us = kept * self._took_us + took_us
        self._seen_us += took_us
        for co_runners, mean_us in zip(self._mean_us, means, strict=True):
            self._expected_us[co_runners] = kept * self._expected_us[co_runners] + (mean_us or 0.0)
        if self._seen_us >= self._memory_us / 4:
            self.co_runners = min(self._expected_us, key=self._distance)
        return self.co_runners

    def _distance(self, co_runners: int) -> float:
        return abs(math.log(self._took_us / self._expected_us[co_runners]))


class InterferenceAware(Policy):
    """``LatencyConstrained`` with the latencies of the β that ``estimator`` returns; the server feeds it observations.

    ``spaces``: by β, one for each that the estimator may return. Source: slo-aware-neural-networks, §2.3 and §3.2.
    """

    def __init__(self, spaces: Mapping[int, ControlSpace], estimator: CoRunnerEstimator):
        self._policies = {co_runners: LatencyConstrained(space) for co_runners, space in spaces.items()}
        if estimator.co_runners not in self._policies:
            raise InputError(f"no latencies are known with {estimator.co_runners} co-runners")
        self.estimator = estimator
        self.points = tuple(dict.fromkeys(point for policy in self._policies.values() for point in policy.points))

    def decide(self, now_us: float, queue: EdfQueue) -> Decision | CannotMeet | None:
        return self._policies[self.estimator.co_runners].decide(now_us, queue)

    def planned_us(self, point: OperatingPoint, examples: int) -> float:
        return self._policies[self.estimator.co_runners].planned_us(point, examples)

    def observe(self, point: OperatingPoint, examples: int, took_us: float) -> None:
        if examples == 1:
            self.estimator.observe(point, took_us)
