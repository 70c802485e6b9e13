"""What it costs that a chosen subnet serves only after a while: SuperServe's Figures 1b and 1c, as a fluid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.reproduction.paper import Found
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.supernets import CV2, TRACE, Service, arrivals_file, lasting, service_of
from benchmarks.reproduction.workspace import Workspace
from slotool.reports.figure import duration, percent
from slotool.workloads import ArrivalTable

# Delays in deadlines. The paper's deadline is 36 ms, and loading a model takes some 100 ms.
DELAYS = (0, 1, 3, 10)
COARSE = 3
BINS_PER_DEADLINE = 4


@dataclass(frozen=True)
class Served:
    """``missed``: share of queries not served before their deadline; ``unused``: share of the capacity that no query
    took; ``accuracy``: mean over those served in time."""

    missed: float
    unused: float
    accuracy: float


def actuation_delay(workspace: Workspace) -> Found:
    """The subnet that the load of the moment wants, in place at once or after some deadlines."""
    service = service_of(workspace)
    rate = service.capacity(len(service.points) - 1)
    lasts = f"--duration {lasting(workspace, rate)}"
    trace = workspace.find(TRACE)
    kind = f"--kind bursty --cv2 {CV2[-1]}" if trace is None else f"--trace {trace}"
    arrivals = arrivals_file(workspace, f"{kind} --rate {rate:.0f} {lasts}")
    times_s = ArrivalTable.load(workspace.path(arrivals)).times_s
    figures = {delay: served_after(service, times_s, delay) for delay in DELAYS}
    at_once, coarse = figures[0], figures[COARSE]
    deadline_s = service.deadline_ms / 1e3
    return Found(
        says=f"subnets in place after {COARSE} deadlines miss {percent(coarse.missed, 2)} of the queries and leave "
        f"{percent(coarse.unused)} of the capacity unused, at once {percent(at_once.missed, 2)} and "
        f"{percent(at_once.unused)}",
        agrees=bool(coarse.missed > at_once.missed and coarse.unused > at_once.unused),
        columns=("subnet in place after", "missed", "capacity unused", "accuracy of those in time"),
        rows=[
            (duration(delay * deadline_s) if delay else "no time", percent(row.missed, 2), percent(row.unused),
             percent(row.accuracy))
            for delay, row in figures.items()
        ],
        data=f"{service.data}; {service.workers} workers as a fluid of their capacity at the largest batch, deadline "
        f"{service.deadline_ms:g} ms; {'bursty arrivals' if trace is None else 'the trace'}",
        plot=curves(
            "Missed by actuation delay",
            "Share of the queries that are not served before their deadline.",
            ("delay, deadlines", "linear"),
            ("missed", "linear"),
            {"missed": (DELAYS, [row.missed for row in figures.values()])},
        ),
    )  # fmt: skip


def served_after(service: Service, times_s: np.ndarray, delay: int) -> Served:
    """The most accurate subnet whose capacity is the load of the last deadline, in place ``delay`` deadlines later.

    Queries wait in one queue, as a fluid; of those that wait as long as the deadline the surplus is missed.
    """
    deadline_s = service.deadline_ms / 1e3
    width_s = deadline_s / BINS_PER_DEADLINE
    arrived = np.histogram(times_s, np.arange(0.0, float(times_s[-1]) + width_s, width_s))[0].astype(float)
    per_bin = np.array([service.capacity(at) * width_s for at in range(len(service.points))])
    recent = np.convolve(arrived, np.full(BINS_PER_DEADLINE, 1 / BINS_PER_DEADLINE))[: len(arrived)]
    wanted = np.array([max(np.flatnonzero(per_bin >= load), default=0) for load in recent])
    late = delay * BINS_PER_DEADLINE
    active = np.concatenate([np.full(late, len(per_bin) - 1), wanted])[: len(wanted)]
    waiting = missed = taken = right = 0.0
    for load, at in zip(arrived, active, strict=True):
        served = min(waiting + load, per_bin[at])
        waiting += load - served
        surplus = max(0.0, waiting - per_bin[at] * BINS_PER_DEADLINE)
        waiting, missed, taken = waiting - surplus, missed + surplus, taken + served
        right += served * service.accuracy[at]
    return Served(missed / len(times_s), 1 - taken / float(per_bin[active].sum()), right / taken)
