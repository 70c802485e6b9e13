"""LCAO for one model that answers query after query, one look-up per query."""

from __future__ import annotations

import math
from bisect import bisect_right

from slotool.errors import InputError
from slotool.scheduling import CannotMeet, LatencyProfile
from slotool.scheduling.edf import DEADLINE_PASSED
from slotool.tables import OperatingPoint


class Lcao:
    """The greatest k with t0 + T(k, β) ≤ τ* (slo-aware-neural-networks, §2.3, Eq. 3).

    The same answer as ``LatencyConstrained`` gives for a query of one example with unknown accuracies;
    all but one bisection is precomputed, because a small network answers in microseconds.
    """

    def __init__(self, profile: LatencyProfile):
        self.profile = profile
        self._breakpoints = {copies: _breakpoints(profile, copies) for copies in profile.planned_us}

    def choose(self, deadline_us: float, t0_us: float = 0.0, co_runners: int = 0) -> OperatingPoint | CannotMeet:
        """The point, or why there is none.

        ``deadline_us``: τ*, from the query's arrival. ``t0_us``: what it spent already (queueing, features).
        ``co_runners``: β, the number of co-located busy copies, given or a ``CoRunnerEstimator``'s. Raises
        ``InputError`` for NaN and for a β that was not profiled.
        """
        left_us = deadline_us - t0_us
        if math.isnan(left_us):
            raise InputError("the deadline or the time already spent is not a number")
        if co_runners not in self._breakpoints:
            known = ", ".join(map(str, sorted(self._breakpoints)))
            raise InputError(f"latencies are known with {known} co-runners, not with {co_runners}")
        limits, points = self._breakpoints[co_runners]
        step = bisect_right(limits, left_us)
        return points[step - 1] if step else self._too_late(left_us, co_runners)

    def _too_late(self, left_us: float, co_runners: int) -> CannotMeet:
        if left_us <= 0:
            return CannotMeet(DEADLINE_PASSED)
        fastest_us = min(self.profile.planned_us[co_runners].values(), default=math.inf)
        given = f" with {co_runners} co-runner{'s' * (co_runners > 1)}" if co_runners else ""
        need = f"{fastest_us:.4g} µs are needed{given}"
        return CannotMeet(f"the deadline cannot be met: {need} and {left_us:.4g} µs are left")


def _breakpoints(profile: LatencyProfile, copies: int) -> tuple[list[float], list[OperatingPoint]]:
    """Times, ascending, and for each the greatest point that takes no longer: where noise puts a greater k before a
    lesser one, the lesser is left out."""
    planned = profile.planned_us[copies]
    limits: list[float] = []
    points: list[OperatingPoint] = []
    rank = {point: at for at, point in enumerate(profile.points)}
    for point, time_us in sorted(planned.items(), key=lambda item: (item[1], -rank[item[0]])):
        if not points or rank[point] > rank[points[-1]]:
            limits.append(time_us)
            points.append(point)
    return limits, points
