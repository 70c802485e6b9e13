"""Explanation of what a fleet misses of a promise: by how much, when, and what becomes of the late requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slotool.planning.fleet_search import FleetSearch
from slotool.planning.promise import Verdict, attainment_bounds
from slotool.planning.traffic import Traffic
from slotool.simulation import SimulationResult
from slotool.simulation.result import EXPIRED, IN_TIME, LATE, REJECTED, SHED
from slotool.workloads.arrivals.traces import BURST_S

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


@dataclass(frozen=True)
class Shortfall:
    """Requests of one model on too few workers. ``misses``: of its promise; ``bounds``: of its attainment, by name, of
    which the lowest counts."""

    verdict: Verdict
    misses: list[str]
    bounds: dict[str, float]
    lateness: Lateness


def shortfall(search: FleetSearch, result: SimulationResult, traffic: Traffic) -> Shortfall:
    """Return what ``result``, a simulation of ``traffic``, lacks of the promise of ``search``."""
    verdict, in_time = search.judged(result, traffic), result.status == IN_TIME
    return Shortfall(
        verdict,
        verdict.misses(search.promise),
        attainment_bounds(in_time[traffic.counted], search.judge.significance),
        lateness(result, traffic, search.whole, search.promise.deadline_us),
    )


def lateness(result: SimulationResult, traffic: Traffic, whole: Traffic, deadline_us: float) -> Lateness:
    """Return when the requests of ``traffic`` that count are late. ``whole``: traffic that it is a sample of."""
    status = result.status
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
        _longest_queue(result),
    )


def _longest_queue(result: SimulationResult) -> int:
    """Return the most requests that wait at once; what is never answered waits until its deadline."""
    scenario = result.scenario
    left_us = np.sort(np.where(np.isnan(result.started_us), scenario.deadline_us, result.started_us))
    waiting = np.arange(1, len(left_us) + 1) - np.searchsorted(left_us, scenario.arrival_us, side="right")
    return int(waiting.max())
