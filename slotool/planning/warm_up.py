"""Warm-up of workers: how much longer calls take than a latency table says, by how busy their worker was of late.

A worker that rested computes more slowly than one that does so all the time, as clocks are lower and caches hold what
others left there. How busy it was of late says which it is; a table measured back to back knows the second only. Read
from the calls of probes: their lengths, and what the same worker did before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from slotool.planning.fleet import WorkerType
from slotool.planning.front_end import FrontEnd
from slotool.simulation.service import Overhead, after_call, after_rest, how_rested
from slotool.workloads.requests import RequestLog

# Over how long a worker's past may count, and from which busy share on all calls may be alike: those by which calls of
# the probes are explained best.
MEMORIES_US, SATURATIONS = (1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5), (0.4, 0.6, 0.8, 1.0)
# Steps of the iteration for least absolute deviations, and what it takes for none, of what calls take longer.
STEPS, NONE = 20, 0.02
# Calls of which a probe has less tell nothing.
MIN_CALLS = 50


class ProbeCalls(NamedTuple):
    """Calls of a probe in order, float64 [calls]: begin, duration, the table's latency, worker, and rest before.

    The table's latency is of as many requests at the same point, next to as many busy workers. Workers are int64. The
    rest since the worker's last call is NaN for calls whose requests did not wait for it.
    """

    begun_us: np.ndarray
    took_us: np.ndarray
    table_us: np.ndarray
    worker: np.ndarray
    turned_us: np.ndarray


def with_warm_up(front_end: FrontEnd, worker: WorkerType, workers: int, probes: Sequence[RequestLog]) -> FrontEnd:
    """Return ``front_end``, probed on mostly rested workers, with the part of its calls that busy workers have.

    ``worker``: as placed; ``probes``: requests at low load and at full load.
    """
    logged = [calls_of(log, worker, workers) for log in probes]
    rested = front_end.overhead._replace(turnaround_us=_turnaround_us(logged))
    return replace(front_end, overhead=_warmed(rested, logged))


def _warmed(rested: Overhead, logged: Sequence[ProbeCalls]) -> Overhead:
    """Return the overhead of ``with_warm_up``, from that of calls on workers that rested."""
    beyond_us = np.concatenate([each.took_us - each.table_us for each in logged])
    rested_us = np.concatenate([rested.longer(each.table_us) - each.table_us for each in logged])
    if len(beyond_us) < MIN_CALLS or not (rested_us > 0).all():
        return rested
    fits = [_fitted(logged, beyond_us, rested_us, *how) for how in product(MEMORIES_US, SATURATIONS)]
    best = min(fits, key=lambda fit: fit.off)
    busy = max(0.0, best.busy)
    if busy >= best.rested:
        return rested
    return rested._replace(
        call_us=best.rested * rested.call_us, slower=best.rested * rested.slower, busy_part=busy / best.rested,
        memory_us=best.memory_us, saturation=best.saturation,
    )  # fmt: skip


def calls_of(log: RequestLog, worker: WorkerType, workers: int) -> ProbeCalls:
    """Return the calls that answered the requests of ``log``; the longest rested worker has the next, as in a server.

    Calls of points and batch sizes that the table lacks are left out.
    """
    beside = worker.beside or (worker.profile.samples_us,)
    sizes = worker.profile.grid.sizes
    medians_us = [{(point.key, size): float(np.median(us)) for (point, size), us in each.items()} for each in beside]
    rows: list[tuple[float, ...]] = []
    free_us, calls = np.zeros(workers), _grouped(log)
    number_of = calls["size"].clip(upper=int(sizes[-1])).to_numpy()
    cells = zip(calls["point"], sizes[np.searchsorted(sizes, number_of)].tolist(), strict=True)
    times_us = 1e6 * calls[["begun_s", "took_s", "queue_s"]].to_numpy(dtype=np.float64)
    for cell, (began_us, took_us, queued_us) in zip(cells, times_us.tolist(), strict=True):
        at = int(free_us.argmin())
        free_at_us = float(free_us[at])
        others = int((free_us > began_us).sum()) - int(free_at_us > began_us)
        table_us = medians_us[min(others, len(beside) - 1)].get(cell)
        if table_us is not None:
            turned_us = began_us - free_at_us
            turned_us = turned_us if free_at_us > 0 and queued_us > turned_us else np.nan
            rows.append((max(began_us, free_at_us), took_us, table_us, at, turned_us))
            free_us[at] = rows[-1][0] + took_us
    columns = np.array(rows).reshape(-1, 5).T
    return ProbeCalls(columns[0], columns[1], columns[2], columns[3].astype(np.int64), columns[4])


def _grouped(log: RequestLog) -> pd.DataFrame:
    """Return a row per call, in order of ``begun_s``: ``point``, ``size``, ``took_s`` and the longest ``queue_s``.

    Requests of one call have equal durations in the log, and are answered at the same time.
    """
    rows = log.rows[log.answered & log.rows["compute_s"].notna()].sort_values(["point", "compute_s", "done_s"])
    is_other = (rows["point"] != rows["point"].shift()) | (rows["compute_s"].diff() != 0)
    # A worker's next call of equal length ends one length later.
    number = (is_other | (rows["done_s"].diff() > 0.5 * rows["compute_s"])).cumsum()
    calls = rows.groupby(number.to_numpy()).agg(
        size=("done_s", "size"), done_s=("done_s", "min"), took_s=("compute_s", "first"), point=("point", "first"),
        queue_s=("queue_s", "max"),
    )  # fmt: skip
    return calls.assign(begun_s=calls["done_s"] - calls["took_s"]).sort_values("begun_s")


def _turnaround_us(logged: Sequence[ProbeCalls]) -> float:
    """Between two calls of a worker with requests waiting: the median, as the delays of answers vary."""
    turned_us = np.concatenate([each.turned_us for each in logged])
    turned_us = turned_us[~np.isnan(turned_us)]
    return max(0.0, float(np.median(turned_us))) if len(turned_us) >= MIN_CALLS else 0.0


class _Fit(NamedTuple):
    """Factors of probed times for an always busy and for a rested worker, and the calls' mean distance from them."""

    busy: float
    rested: float
    memory_us: float
    saturation: float
    off: float


def _fitted(
    logged: Sequence[ProbeCalls], beyond_us: np.ndarray, rested_us: np.ndarray, memory_us: float, saturation: float
) -> _Fit:
    """Fit by least absolute deviations: a call that was disturbed says nothing of the others."""
    rested = np.concatenate([_rested(each, memory_us, saturation) for each in logged])
    by = rested_us[:, None] * np.stack([1 - rested, rested], axis=1)
    weights, min_off_us = np.ones(len(beyond_us)), NONE * float(rested_us.mean())
    for _ in range(STEPS):
        factors = np.linalg.lstsq(by * weights[:, None], beyond_us * weights, rcond=None)[0]
        off_us = np.abs(beyond_us - by @ factors)
        weights = 1 / np.sqrt(np.maximum(off_us, min_off_us))
    return _Fit(float(factors[0]), float(factors[1]), memory_us, saturation, float(off_us.mean()))


def _rested(calls: ProbeCalls, memory_us: float, saturation: float) -> np.ndarray:
    """Return how rested the worker of each call was as it began, as the simulation does: float64 [calls]."""
    share, until_us = np.zeros(calls.worker.max(initial=0) + 1), np.zeros(calls.worker.max(initial=0) + 1)
    rested = np.zeros(len(calls.worker))
    for call, (worker, begun_us, took_us) in enumerate(zip(calls.worker, calls.begun_us, calls.took_us, strict=True)):
        before = after_rest(share[worker], begun_us - until_us[worker], memory_us)
        rested[call] = how_rested(before, saturation)
        share[worker], until_us[worker] = after_call(before, took_us, memory_us), begun_us + took_us
    return rested
