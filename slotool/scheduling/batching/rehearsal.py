"""What policies bring on drawn arrivals, tried before any request comes: which of them is to decide at which load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from slotool.compilation import njit
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import CHOOSE, ROUNDING_US
from slotool.scheduling.edf import RECENT

# Loads, of what the fastest batches of all workers can serve, squared coefficients of variation of the gaps between
# arrivals, and numbers of workers.
LOADS = np.array(
    [0.0005, 0.001, 0.002, 0.004, 0.009, 0.018, 0.035, 0.07, 0.11, 0.16, 0.23, 0.32, 0.42, 0.53, 0.65, 0.78, 0.92, 1.1]
)
GAP_CV2 = np.array([1.0, 4.0, 12.0])
WORKERS = np.array([1, 4])
# A trace lasts so many deadlines, within these numbers of queries.
_DEADLINES, _MIN_QUERIES, _MAX_QUERIES = 16.0, 600, 6_000
# What another policy must bring more than the first, in accuracies a query: less may be luck.
_CLEAR = 1e-3
# The whole is tried at every second load between those, with more queries: a queue that has once grown may stay long.
_BETWEEN = np.sqrt(LOADS[1:] * LOADS[:-1])[::2]
_MANY_QUERIES = 20_000
# What the whole may bring less than the safe policy at one such load; on average it brings at least as much.
_TOLERATED = 0.02

_F = types.float64[::1]
_RUN = types.float64(
    types.FunctionType(CHOOSE), types.float64[:, ::1], _F, types.int64[::1], _F, _F, types.float64, types.int64,
    types.float64,
)  # fmt: skip


class Candidate(NamedTuple):
    """A compiled chooser with its plan, and the highest load for which it is made: none of the last."""

    choose: Any
    plan: np.ndarray
    max_load: float = np.inf


def rehearsed(grid: ControlGrid, candidates: Sequence[Candidate], deadline_us: float, aversion: float) -> np.ndarray:
    """int64 [workers, GAP_CV2, LOADS]: which of ``candidates`` is to decide there.

    Each serves the same arrivals with gamma distributed gaps, calls taking as long as planned. Counted are the
    accuracies in time less ``aversion`` for each query lost. The first that is made for the load decides unless another
    is clearly better.
    """
    found = np.zeros((len(WORKERS), len(GAP_CV2), len(LOADS)), dtype=np.int64)
    for w, workers in enumerate(WORKERS.tolist()):
        for f, cv2 in enumerate(GAP_CV2.tolist()):
            brought = _by_load(grid, candidates, deadline_us, aversion, workers, cv2, LOADS, _MAX_QUERIES)
            # A load is measured with an error: what happens at the loads beside it counts too.
            beside = np.pad(brought, ((0, 0), (1, 1)), mode="edge")
            brought = (beside[:, :-2] + 2.0 * brought + beside[:, 2:]) / 4.0
            for r, load in enumerate(LOADS):
                first = next(c for c, each in enumerate(candidates) if load <= each.max_load)
                best = first + int(brought[first:, r].argmax())
                found[w, f, r] = best if brought[best, r] > brought[first, r] + _CLEAR else first
    return found


def stands(grid: ControlGrid, whole: Candidate, safe: Candidate, deadline_us: float, aversion: float) -> bool:
    """Whether one worker under ``whole``, which changes between policies with the measured load, brings at least what
    it does under ``safe``: on average over loads that were not tried before, and about so at each of them.

    Two policies that are good at a load each may be bad in turns, and what is good for a short queue may never make a
    long one short again.
    """
    gains = [
        _by_load(grid, (whole, safe), deadline_us, aversion, 1, cv2, _BETWEEN, _MANY_QUERIES) for cv2 in GAP_CV2.tolist()
    ]
    more = np.array([of_whole - of_safe for of_whole, of_safe in gains])
    return bool(more.mean() >= 0.0 and more.min() >= -_TOLERATED)


def _by_load(
    grid: ControlGrid, candidates: Sequence[Candidate], deadline_us: float, aversion: float, workers: int, cv2: float,
    loads: np.ndarray, max_queries: int,
) -> np.ndarray:  # fmt: skip
    """float64 [candidates, loads], a query. Who is not made for a load leaves it to the next."""
    unit_us, brought = float((grid.quickest_us / grid.sizes).min()), np.empty((len(candidates), len(loads)))
    for r, load in enumerate(loads):
        mean_us = unit_us / load / workers
        queries = int(np.clip(_DEADLINES * deadline_us / mean_us, _MIN_QUERIES, max_queries))
        arrival_us = np.cumsum(np.random.default_rng(r).gamma(1.0 / cv2, cv2, queries)) * mean_us
        for c in range(len(candidates) - 1, -1, -1):
            each = candidates[c]
            if load > each.max_load:
                brought[c, r] = brought[c + 1, r]
                continue
            brought[c, r] = _brought(
                each.choose, grid.latency_us, grid.accuracy, grid.sizes, each.plan, arrival_us, deadline_us, workers,
                aversion,
            ) / queries  # fmt: skip
    return brought


@njit(_RUN, cache=True)
def _brought(
    choose: Any, latency_us: Any, accuracy: Any, sizes: Any, plan: Any, arrival_us: Any, deadline_us: float,
    workers: int, aversion: float,
) -> float:  # fmt: skip
    """Accuracies in time, less ``aversion`` for each query that is not, under one policy."""
    deadlines_us, free_us = arrival_us + deadline_us, np.zeros(workers)
    head, brought, columns = 0, 0.0, len(sizes)
    while head < len(arrival_us):
        worker = np.argmin(free_us)
        now = max(free_us[worker], arrival_us[head])
        if deadlines_us[head] <= now:
            brought -= aversion
            head += 1
            continue
        arrived = int(np.searchsorted(arrival_us, now, side="right"))
        cell = choose(latency_us, accuracy, sizes, plan, now, deadlines_us[head:arrived], 0, 0,
                      arrival_us[max(0, arrived - RECENT) : arrived], free_us)  # fmt: skip
        if cell < 0:
            brought -= aversion
            head += 1
            continue
        row, size = cell // columns, min(sizes[cell % columns], arrived - head)
        free_us[worker] = now + latency_us[row, np.searchsorted(sizes, size)]
        for query in range(head, head + size):
            in_time = free_us[worker] <= deadlines_us[query] + ROUNDING_US
            brought += accuracy[row] if in_time else -aversion
        head += size
    return brought
