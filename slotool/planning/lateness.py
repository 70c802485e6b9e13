"""When, and why, requests of a simulated fleet are not answered in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.planning.promise import Part
from slotool.planning.traffic import Traffic
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SHED

# Windows of traffic, or fewer of traffic that is shorter than so many deadlines each.
WINDOWS, MIN_DEADLINES = 60, 2
NAMES = {LATE: "late", EXPIRED: "expired", REJECTED: "rejected", SHED: "shed"}


@dataclass(frozen=True)
class Window:
    """Requests that came from ``start_s`` to ``end_s`` of the traffic: how many, per second, and which share of them
    was not in time."""

    start_s: float
    end_s: float
    requests: int
    rate_per_s: float
    late_share: float


@dataclass(frozen=True)
class Lateness:
    """``not_in_time``: requests by what became of them (``NAMES``); ``windows``: of equal length, those without
    requests left out; ``busiest``: the one of most requests; ``worst``: of most that were not in time, None where all
    were; ``half_within``: the fewest windows that hold half of those. ``longest_queue``: requests that waited at the
    same time, at most.
    """

    not_in_time: dict[str, int]
    windows: int
    busiest: Window
    worst: Window | None
    half_within: int
    longest_queue: int


def lateness(parts: Sequence[Part], traffic: Traffic, deadline_us: float) -> Lateness:
    """Of the requests of ``traffic`` that count, as simulated in ``parts``."""
    status = np.zeros(len(traffic.arrival_s), dtype=np.int8)
    for part in parts:
        status[part.at] = part.result.status
    late = (status != IN_TIME)[traffic.counted]
    at_s = traffic.recorded_s[traffic.counted]
    length_s = max((at_s[-1] - at_s[0]) / WINDOWS, MIN_DEADLINES * deadline_us / 1e6)
    of = np.floor((at_s - at_s[0]) / length_s).astype(np.int64)
    came, missed = np.bincount(of), np.bincount(of, weights=late)

    def window(at: int) -> Window:
        start_s = float(at_s[0] + at * length_s)
        end_s = min(start_s + length_s, float(at_s[-1]))
        # Long traffic is sampled, so that a window may hold a part of its requests.
        own_s = float(np.ptp(at_s[of == at])) or length_s
        return Window(start_s, end_s, int(came[at]), float(came[at]) / own_s, float(missed[at] / came[at]))

    order = np.sort(missed)[::-1].cumsum()
    half = int(np.searchsorted(order, 0.5 * missed.sum()) + 1) if missed.any() else 0
    return Lateness(
        {name: int((status[traffic.counted] == code).sum()) for code, name in NAMES.items()},
        int((came > 0).sum()),
        window(int(came.argmax())),
        window(int(missed.argmax())) if missed.any() else None,
        half,
        max(_longest_queue(part) for part in parts),
    )


def _longest_queue(part: Part) -> int:
    """Of a pool, counting what is never answered until its deadline."""
    if not len(part.at):
        return 0
    result, scenario = part.result, part.result.scenario
    left_us = np.sort(np.where(np.isnan(result.started_us), scenario.deadline_us, result.started_us))
    waiting = np.arange(1, len(left_us) + 1) - np.searchsorted(left_us, scenario.arrival_us, side="right")
    return int(waiting.max())
