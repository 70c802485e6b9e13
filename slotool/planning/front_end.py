"""The front end of a server, which the simulation of a fleet leaves out: as probed, and as a queue of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil

from slotool.errors import InputError
from slotool.planning.fleet import Pool
from slotool.scheduling.batching import Profile
from slotool.serving.routing.model_queue import MAX_SHARE, QUANTILE
from slotool.simulation.service import Overhead
from slotool.tables import OperatingPoint
from slotool.workloads.requests import RequestLog

# A server that has just started is asked for so long, at this share of what its most accurate point answers one by one
# and at most at this rate: no request waits for another.
PROBE_S, PROBE_SHARE, MAX_PROBE_RATE_PER_S = 4.0, 0.2, 50.0
# Ratio of the most accurate point's latency to the fastest's beyond which a server of the latter is probed too.
APART_US = 2e3
# Before that it gets bursts at one instant of so many requests, small and large ones in turn: that many of each, or as
# many as fit into the time.
BURST, LARGE_BURST, BURSTS, BURSTS_S = 24, 96, 20, 6.0
# Between two bursts, besides a deadline.
PAUSE_S = 0.1
# Seconds of busy workers: as many requests as they answer one by one, and at most so many a second.
BUSY_S, MAX_BUSY_RATE_PER_S = 2.0, 400.0


@dataclass(frozen=True)
class FrontEnd:
    """Front end of a server, as probed: what the simulation of a fleet leaves out.

    ``outside_us``: float64 [n], of each probe at low load, from the instant it was due to its answer at the client,
    without queue and call. ``overhead``: of its calls, which take longer than the latency table's medians mostly by the
    way to a worker and back and by caches that cooled down; ``reserve_us`` is by how much the server brings deadlines
    forward (``LatencyHeadroom``), however far these are. ``each_us``: that a request keeps those behind it from being
    read, in a burst, and ``first_us`` how much longer the first does. ``cpu_us``: CPU time that the server's own
    process spends on a request, without its workers', and ``client_us`` the client on the same machine.
    """

    outside_us: np.ndarray
    overhead: Overhead
    each_us: float = 0.0
    first_us: float = 0.0
    cpu_us: float = 0.0
    client_us: float = 0.0

    @classmethod
    def of_probe(cls, log: RequestLog, profile: Profile, fastest: RequestLog | None = None) -> FrontEnd:
        """Read a front end off requests none of which waited for another; ``each_us`` is then 0.

        ``fastest``: of the same at the fastest point, so that what calls take longer is a line through two points; of
        one point it is the same for all calls. Raises ``InputError`` where none was answered.
        """
        outside_us, late_us, longest = _probed(log, profile)
        call_us, slower = longest.excess_us, 0.0
        if fastest is not None:
            shortest = _probed(fastest, profile)[2]
            between_us = max(longest.table_us - shortest.table_us, 1e-9)
            slower = max(0.0, (longest.excess_us - shortest.excess_us) / between_us)
            call_us = max(0.0, shortest.excess_us - slower * shortest.table_us)
        headroom_us = max(0.0, float(np.quantile(late_us, QUANTILE)))
        return cls(np.maximum(outside_us, 0.0), Overhead(headroom_us, call_us, slower))

    def overhead_within(self, deadline_us: float, all_busy: float = 1.0) -> Overhead:
        """Return ``overhead`` of requests with such a deadline, ``all_busy`` times as long with all workers busy.

        A server keeps a share of the deadline for calls, however slow its probe was.
        """
        reserve_us = min(self.overhead.reserve_us, MAX_SHARE * deadline_us)
        return self.overhead._replace(reserve_us=reserve_us, all_busy=all_busy)

    def __str__(self) -> str:
        outside_ms, of_call = np.quantile(self.outside_us, (0.5, 0.99)) / 1e3, self.overhead
        slower = f", and {1 + of_call.slower:.3g} times what the table says" if of_call.slower >= 0.005 else ""
        call = f"{of_call.call_us / 1e3:.2g} ms more than the latency table says{slower}"
        if of_call.memory_us:
            call += (
                f", where its worker has rested; {of_call.busy_part:.0%} of that where it computed all the time for "
                f"some {3e-3 * of_call.memory_us:.0f} ms"
            )
        before = f"{self.each_us / 1e3:.2g} ms for each one before it"
        if self.first_us:
            before += f" and {self.first_us / 1e3:.2g} more for the first of several"
        return (
            f"{outside_ms[0]:.2g} ms a request (p99 {outside_ms[1]:.2g}), {before}; a call takes {call}, as probed at "
            "the server's start"
        )


def read_in_turn(arrival_us: np.ndarray, each_us: np.ndarray, first_us: np.ndarray) -> np.ndarray:
    """Return the instants at which requests have been read one by one, float64 [n], after Lindley's recursion.

    A request keeps the loop for its ``each_us``, and one that finds it idle for ``first_us`` more; all are float64 [n],
    arrivals ascending.
    """
    read_us, free_us = [], -math.inf
    for arrived_us, own_us, more_us in zip(arrival_us.tolist(), each_us.tolist(), first_us.tolist(), strict=True):
        begins_us = max(arrived_us, free_us)
        free_us = begins_us + own_us + (more_us if begins_us == arrived_us else 0.0)
        read_us.append(begins_us)
    return np.array(read_us, dtype=np.float64)


class CpuTime:
    """CPU time from now on of a server's own process, without its workers', and of this one, which sends requests."""

    def __init__(self, process_id: int):
        self._processes = psutil.Process(process_id), psutil.Process()
        self._before = self._spent_us()

    def each_us(self, requests: int) -> tuple[float, float]:
        """Spent on each of so many requests since this was made, by the server and by this process."""
        server, client = ((now - before) / requests for now, before in zip(self._spent_us(), self._before, strict=True))
        return server, client

    def _spent_us(self) -> list[float]:
        spent = [each.cpu_times() for each in self._processes]
        return [1e6 * (each.user + each.system) for each in spent]


class _Excess(NamedTuple):
    """Medians of calls at one point: what the latency table says, and by how much longer they took, 0 at least."""

    table_us: float
    excess_us: float


def _probed(log: RequestLog, profile: Profile) -> tuple[np.ndarray, np.ndarray, _Excess]:
    """Return by request, float64 [n], the time outside queue and call, the delay against plan, and that of calls."""
    rows = log.rows[log.answered & log.rows["queue_s"].notna() & log.rows["compute_s"].notna()]
    if rows.empty:
        raise InputError("the server answered none of the requests that were to say how long its front end takes")
    took_us = 1e6 * rows["compute_s"].to_numpy()
    outside_us = 1e6 * (rows["done_s"] - rows["intended_s"] - rows["queue_s"]).to_numpy() - took_us
    grid = profile.grid.whole
    places = {point.key: row for row, point in enumerate(grid.points)}
    at = np.array([places[key] for key in rows["point"]])
    medians_us = np.array([np.median(profile.samples_us[point, int(grid.sizes[0])]) for point in grid.points])[at]
    late_us = outside_us + took_us - grid.latency_us[at, 0]
    excess_us = max(0.0, float(np.median(took_us - medians_us)))
    return outside_us, late_us, _Excess(float(np.median(medians_us)), excess_us)


def fastest_apart(profile: Profile) -> OperatingPoint | None:
    """Return the fastest point, where it is to be probed too, as the most accurate takes ``APART_US`` longer."""
    grid = profile.grid
    row = int(grid.latency_us[:, 0].argmin())
    return grid.points[row] if grid.latency_us[-1, 0] - grid.latency_us[row, 0] > APART_US else None


def probe_rate_per_s(pool: Pool) -> float:
    """Return the requests per second at which none waits for another."""
    slowest_us = float(pool.worker.profile.grid.whole.latency_us[:, 0].max())
    return min(MAX_PROBE_RATE_PER_S, PROBE_SHARE * pool.replicas * 1e6 / slowest_us)


def burst_times_s(deadline_s: float) -> np.ndarray:
    """Return the instants of the bursts' requests, float64, ascending from 0.

    A burst begins when the one before it is over, and every second one is large.
    """
    apart_s = deadline_s + PAUSE_S
    count = 2 * min(BURSTS, max(3, int(BURSTS_S / apart_s / 2)))
    return np.repeat(apart_s * np.arange(count), np.tile([BURST, LARGE_BURST], count // 2))


def busy_times_s(pool: Pool) -> np.ndarray:
    """Return the instants of requests that keep all workers busy, float64, ascending from 0."""
    slowest_us = float(pool.worker.profile.grid.whole.latency_us[:, 0].max())
    rate_per_s = min(MAX_BUSY_RATE_PER_S, pool.replicas * 1e6 / slowest_us)
    return np.arange(max(2.0, BUSY_S * rate_per_s)) / rate_per_s
