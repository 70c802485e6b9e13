"""Trial of policies on drawn arrivals before any request, to choose the deciding one by load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types

from slotool.compilation import count_until, njit
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import CHOOSE, ROUNDING_US, first_free
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
# Least gain of another policy over the first, in accuracies a query: less may be luck.
_CLEAR = 1e-3
# The whole is tried at every second load between those, with more queries: a queue that has once grown may stay long.
_BETWEEN = np.sqrt(LOADS[1:] * LOADS[:-1])[::2]
_MANY_QUERIES = 12_000
# Largest loss of the whole against the safe policy at one such load; on average there is none.
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


class Rehearsed(NamedTuple):
    """Three answers, each int64 [WORKERS, GAP_CV2, LOADS] of candidates by number.

    ``by_cell``: the first that is made for the load, unless another is clearly better there; ``without_first``: the
    same of all but the first candidate. ``stretch``: the first over one stretch of loads, where it gains most in all,
    and the second elsewhere.
    """

    by_cell: np.ndarray
    stretch: np.ndarray
    without_first: np.ndarray


def rehearsed(grid: ControlGrid, candidates: Sequence[Candidate], deadline_us: float, aversion: float) -> Rehearsed:
    """Choose the deciding one of ``candidates`` by load.

    Each serves the same arrivals with gamma distributed gaps, and calls of planned length. The score is accuracies in
    time less ``aversion`` for each lost query.
    """
    by_cell = np.zeros((len(WORKERS), len(GAP_CV2), len(LOADS)), dtype=np.int64)
    without_first = by_cell.copy()
    first_gains = np.zeros((len(WORKERS), len(LOADS)))
    for w, workers in enumerate(WORKERS.tolist()):
        for f, cv2 in enumerate(GAP_CV2.tolist()):
            scores = _by_load(grid, candidates, deadline_us, aversion, workers, cv2, LOADS, _MAX_QUERIES)
            # A load is measured with an error: what happens at the loads beside it counts too.
            beside = np.pad(scores, ((0, 0), (1, 1)), mode="edge")
            scores = (beside[:, :-2] + 2.0 * scores + beside[:, 2:]) / 4.0
            first_gains[w] += scores[0] - scores[1]
            for cells, begin in ((by_cell, 0), (without_first, 1)):
                cells[w, f] = [
                    begin + _clearly_best(scores[begin:, r], candidates[begin:], load) for r, load in enumerate(LOADS)
                ]
    stretch = np.ones_like(by_cell)
    for w, gains in enumerate(first_gains):
        began, ends = _best_stretch(gains)
        stretch[w, :, began:ends] = 0
    return Rehearsed(by_cell, stretch, without_first)


def _clearly_best(scores: np.ndarray, candidates: Sequence[Candidate], load: float) -> int:
    """Return the first of ``candidates`` that is made for the load, or a later one that brings clearly more."""
    first = next(c for c, each in enumerate(candidates) if load <= each.max_load)
    best = first + int(scores[first:].argmax())
    return best if scores[best] > scores[first] + _CLEAR else first


def _best_stretch(gains: np.ndarray) -> tuple[int, int]:
    """Return first and one beyond last of the neighbours with the largest sum; none if no sum is positive."""
    sums = np.concatenate([[0.0], np.cumsum(gains)])
    more = sums[None, :] - sums[:, None]
    began, ends = np.unravel_index(int(np.triu(more).argmax()), more.shape)
    return (int(began), int(ends)) if more[began, ends] > 0 else (0, 0)


def best_whole(
    grid: ControlGrid, wholes: Sequence[Candidate], safe: Candidate, deadline_us: float, aversion: float
) -> int | None:
    """Return the best of ``wholes``, which switch policies with the load, on one worker at loads not tried before.

    None if each is worse than ``safe`` on average, or by more than a little at one of these loads. Two policies that
    are good at a load each may be bad in turns, and one that is good for a short queue may never shorten a long one.
    """
    scores = np.stack(
        [_by_load(grid, (*wholes, safe), deadline_us, aversion, 1, cv2, _BETWEEN, _MANY_QUERIES) for cv2 in GAP_CV2], 1
    )
    gains = (scores[:-1] - scores[-1]).reshape(len(wholes), -1)
    means = np.where(gains.min(axis=1) >= -_TOLERATED, gains.mean(axis=1), -np.inf)
    best = int(means.argmax())
    return best if means[best] >= 0.0 else None


def _by_load(
    grid: ControlGrid, candidates: Sequence[Candidate], deadline_us: float, aversion: float, workers: int, cv2: float,
    loads: np.ndarray, max_queries: int,
) -> np.ndarray:  # fmt: skip
    """Return the score per query, float64 [candidates, loads]; a candidate leaves other loads to the next."""
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


@njit(_RUN, cache=True, nogil=True)
def _brought(
    choose: Any, latency_us: Any, accuracy: Any, sizes: Any, plan: Any, arrival_us: Any, deadline_us: float,
    workers: int, aversion: float,
) -> float:  # fmt: skip
    """Return the accuracies in time, less ``aversion`` for each query that is not, under one policy."""
    deadlines_us, free_us = arrival_us + deadline_us, np.zeros(workers)
    head, brought, columns = 0, 0.0, len(sizes)
    while head < len(arrival_us):
        worker = first_free(free_us)
        now = max(free_us[worker], arrival_us[head])
        if deadlines_us[head] <= now:
            brought -= aversion
            head += 1
            continue
        arrived = count_until(arrival_us, now)
        cell = choose(latency_us, accuracy, sizes, plan, now, deadlines_us[head:arrived], 0, 0,
                      arrival_us[max(0, arrived - RECENT) : arrived], free_us)  # fmt: skip
        if cell < 0:
            brought -= aversion
            head += 1
            continue
        row, size = cell // columns, min(sizes[cell % columns], arrived - head)
        free_us[worker] = now + latency_us[row, count_until(sizes, size - 1)]
        for query in range(head, head + size):
            in_time = free_us[worker] <= deadlines_us[query] + ROUNDING_US
            brought += accuracy[row] if in_time else -aversion
        head += size
    return brought
