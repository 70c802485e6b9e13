"""When, and why, requests of a simulated fleet are not answered in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.planning.promise import Part
from slotool.planning.traffic import Traffic
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SHED
from slotool.workloads.traces import BURST_S

# Windows of traffic, or fewer where each would be shorter than so many deadlines.
WINDOWS, MIN_DEADLINES = 60, 2
NAMES = {LATE: "late", EXPIRED: "expired", REJECTED: "rejected", SHED: "shed"}


@dataclass(frozen=True)
class Window:
    """Requests that come from ``start_s`` to ``end_s`` of the traffic: how many, how many per second of the window, and
    which share of them, or of those of long traffic that were simulated, was not in time; None where none was."""

    start_s: float
    end_s: float
    requests: int
    rate_per_s: float
    late_share: float | None


@dataclass(frozen=True)
class Lateness:
    """``not_in_time``: requests by what became of them (``NAMES``); ``windows``: how many of equal length the traffic
    is divided into; ``busiest``: the one of most requests; ``worst``: of most that were not in time, None where all
    were; ``half_within``: the fewest windows that hold half of those. ``longest_queue``: requests that waited at the
    same time, at most.
    """

    not_in_time: dict[str, int]
    windows: int
    busiest: Window
    worst: Window | None
    half_within: int
    longest_queue: int


def lateness(parts: Sequence[Part], traffic: Traffic, whole: Traffic, deadline_us: float) -> Lateness:
    """Of the requests of ``traffic`` that count, as simulated in ``parts``. ``whole``: what it is a sample of."""
    status = np.zeros(len(traffic.arrival_s), dtype=np.int8)
    for part in parts:
        status[part.at] = part.result.status
    late = (status != IN_TIME)[traffic.counted]
    first_s, span_s = float(whole.arrival_s[0]), float(np.ptp(whole.arrival_s))
    count = int(np.clip(span_s / (MIN_DEADLINES * deadline_us / 1e6), 1, WINDOWS))
    length_s = span_s / count or BURST_S

    def windows_of(at_s: np.ndarray) -> np.ndarray:
        # The last request ends the last window, and belongs to it.
        return np.minimum(((at_s - first_s) / length_s).astype(np.int64), count - 1)

    of = windows_of(traffic.recorded_s[traffic.counted])
    simulated, missed = np.bincount(of, minlength=count), np.bincount(of, weights=late, minlength=count)
    came = np.bincount(windows_of(whole.arrival_s), minlength=count)

    def window(at: int) -> Window:
        start_s, requests = first_s + at * length_s, int(came[at])
        share = float(missed[at] / simulated[at]) if simulated[at] else None
        return Window(start_s, start_s + length_s, requests, requests / length_s, share)

    order = np.sort(missed)[::-1].cumsum()
    half = int(np.searchsorted(order, 0.5 * missed.sum()) + 1) if missed.any() else 0
    return Lateness(
        {name: int((status[traffic.counted] == code).sum()) for code, name in NAMES.items()},
        count,
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
