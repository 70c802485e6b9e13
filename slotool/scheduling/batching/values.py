"""Value tables of the value-iteration policy: the value of every queue to a service that goes on choosing well.

They are computed once, when the policy is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from slotool.compilation import njit
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.table_cache import remembered

# Loads, of what the fastest batches can serve, dispersions of arrivals (variance ÷ mean), and numbers of workers.
LOADS = np.array([0.004, 0.015, 0.035, 0.07, 0.11, 0.16, 0.23, 0.32, 0.42, 0.53, 0.65, 0.78, 0.92])
DISPERSIONS = np.array([1.0, 3.0, 9.0])
WORKER_COUNTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_LEVELS, _EXACT_QUEUE, _LONG_QUEUES = 36, 25, 16
_ROUNDS, _SWEEPS = 24, 10
# Accuracies a call by which the average may still be wrong.
_SETTLED = 2e-4
# So many equally likely numbers stand for a distribution.
QUANTILES = 16


@dataclass(frozen=True)
class ValueTables:
    """Per worker count, dispersion and load (axes C, F, R) of a service whose queries all have ``deadline_us``.

    ``levels_us``: float64 [J], how long a call may take. ``rows``: int64 [J, B], the most accurate row that does a
    batch of each size in that time, -1 where none does. ``queues``: float64 [C, N], numbers of queries waiting.
    ``gain``: float64 [C, F, R], accuracy of the average query under the best choices. ``after``: float64
    [C, F, R, J, N], value of beginning a call of level j and leaving n queries waiting, in accuracies beyond ``gain``
    per query. ``before``: float64, likewise, of having n queries waiting, the first with time for a call of level j.
    """

    deadline_us: float
    levels_us: np.ndarray
    rows: np.ndarray
    queues: np.ndarray
    gain: np.ndarray
    after: np.ndarray
    before: np.ndarray


@remembered
def value_tables(grid: ControlGrid, deadline_us: float, aversion: float) -> ValueTables:
    """Relative values of a semi-Markov decision process, by value iteration (Puterman 1994, §11.4).

    A state is the number of waiting queries and the time the first has waited. An action is the length of the call and
    its batch size. The reward is the accuracy of each query beyond the average; Newton's rule finds the average at
    which the long-run gain is 0. While a call runs a negative binomial number of queries arrives, and the first of them
    has waited in proportion. With several workers the next worker becomes idle after that part of the call. A query
    that even the fastest batches cannot serve is lost: it costs an average answer and ``aversion`` more.
    """
    latency_us, accuracies, batch_sizes = grid.latency_us, grid.accuracy, grid.sizes
    rising_us = np.maximum.accumulate(latency_us, axis=0)
    min_us = float(latency_us.min())
    longest_us = max(min(float(latency_us.max()), deadline_us), min_us)
    levels_us = np.unique(np.r_[min_us, np.geomspace(min_us, longest_us, _LEVELS)[1:]])
    rows = np.stack(
        [np.searchsorted(column, levels_us * (1 + 1e-9), side="right") - 1 for column in rising_us.T], axis=1
    )
    gains = np.where(rows >= 0, accuracies[np.maximum(rows, 0)], -1.0)
    quickest_us = latency_us.min(axis=0)
    unit_us = float((quickest_us / batch_sizes).min())
    queues = np.stack([_queues(workers * deadline_us / unit_us, int(batch_sizes[-1])) for workers in WORKER_COUNTS])
    shape = len(WORKER_COUNTS), len(DISPERSIONS), len(LOADS)
    gain = np.zeros(shape)
    after = np.zeros((*shape, len(levels_us), queues.shape[1]))
    before = np.zeros_like(after)
    for f, dispersion in enumerate(DISPERSIONS):
        coming = [arrival_counts(load / unit_us * levels_us, dispersion) for load in LOADS]
        for c, workers in enumerate(WORKER_COUNTS):
            values, average = np.zeros((len(levels_us), queues.shape[1])), float(accuracies[-1])
            for r, load in enumerate(LOADS):
                moves = _moves(queues[c], levels_us, coming[r], batch_sizes, workers, deadline_us, unit_us)
                per_call = max(1.0, load / unit_us * float(np.median(levels_us)))
                average = _solve(
                    values, after[c, f, r], queues[c], gains, batch_sizes, levels_us, quickest_us, *moves,
                    average, aversion, per_call,
                )  # fmt: skip
                gain[c, f, r], before[c, f, r] = average, values
    return ValueTables(deadline_us, levels_us, rows, queues, gain, after, before)


def _queues(most: float, largest: int) -> np.ndarray:
    """The queue lengths of the tables: the first few exactly, then geometrically spaced."""
    long = np.geomspace(_EXACT_QUEUE, max(most, 2.0 * largest, 2.0 * _EXACT_QUEUE), _LONG_QUEUES)
    lengths: np.ndarray = np.r_[np.arange(float(_EXACT_QUEUE)), long]
    return lengths


def arrival_counts(mean: np.ndarray, dispersion: float) -> np.ndarray:
    """float64 [J, ``QUANTILES``] of ``mean``, float64 [J], and ``dispersion``, variance ÷ mean: in ascending order, and
    scaled so that their own mean is that of the distribution. Below a dispersion of 1 they are those of 1.

    As ``ppf`` of ``scipy.stats`` has them, which takes a server a second to load."""
    share = (np.arange(QUANTILES) + 0.5) / QUANTILES
    of = mean[:, None]
    drawn = _poisson(share, of) if dispersion <= 1.0 else _negative_binomial(share, of, dispersion)
    found = drawn.mean(axis=1, keepdims=True)
    return np.where(found > 0, drawn * of / np.maximum(found, 1e-12), of)


def _poisson(share: np.ndarray, mean: np.ndarray) -> np.ndarray:
    above: np.ndarray = np.ceil(special.pdtrik(share, mean))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.pdtr(below, mean) >= share, below, above)


def _negative_binomial(share: np.ndarray, mean: np.ndarray, dispersion: float) -> np.ndarray:
    size, chance = mean / (dispersion - 1.0), 1.0 / dispersion
    above: np.ndarray = np.ceil(special.nbdtrik(share, size, chance))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.betainc(size, below + 1.0, chance) >= share, below, above)


@njit(cache=True)
def _moves(
    queues: Any, levels_us: Any, coming: Any, sizes: Any, workers: float, deadline_us: float, unit_us: float
) -> tuple[Any, Any, Any, Any]:
    """Where a call of level j that leaves n leads, per quantile of arrivals: level, place and weight of the state;
    and how many are lost on the way."""
    shape = (len(levels_us), len(queues), coming.shape[1])
    level, place, weight = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    lost = np.zeros(shape[:2])
    last = len(queues) - 1
    for j in range(shape[0]):
        # The next decision is made, by whichever worker, when this part of the call is over.
        until_us = levels_us[j] / workers
        for i in range(shape[1]):
            stay = queues[i]
            gone = max(0.0, stay - max(0.0, (deadline_us - levels_us[j] - until_us) * workers / unit_us))
            lost[j, i] = gone
            for q in range(shape[2]):
                waiting = stay - gone + coming[j, q]
                if waiting > queues[last]:
                    lost[j, i] += (waiting - queues[last]) / shape[2]
                    waiting = queues[last]
                # Queries left in the queue have waited before, about as long as they took to arrive.
                aged = 1.0 + stay / (stay + 0.5 * sizes[-1] + 1.0) if stay > 0 else waiting / (waiting + 1.0)
                left = np.searchsorted(levels_us, deadline_us - until_us * aged, side="right") - 1
                if waiting <= 0:
                    left, waiting = shape[0] - 1, 1.0
                elif left < 0:
                    lost[j, i] += min(waiting, 1.0) / shape[2]
                    left = 0
                waiting = max(waiting, 1.0)
                at = min(np.searchsorted(queues, waiting, side="right") - 1, last - 1)
                level[j, i, q], place[j, i, q] = left, at
                weight[j, i, q] = (waiting - queues[at]) / (queues[at + 1] - queues[at])
    return level, place, weight, lost


@njit(cache=True)
def _solve(
    values: Any, after: Any, queues: Any, gains: Any, sizes: Any, levels_us: Any, quickest_us: Any,
    level: Any, place: Any, weight: Any, lost: Any, average: float, aversion: float, per_call: float,
) -> float:  # fmt: skip
    """Value iteration from ``values`` on, which it changes, as ``after``; the average accuracy of a query."""
    before, drift = average, 0.0
    for turn in range(_ROUNDS):
        found = 0.0
        for _ in range(_SWEEPS):
            _expect(values, after, level, place, weight, lost, average + aversion)
            _choose(values, after, queues, gains, sizes, levels_us, quickest_us, average)
            found = values[-1, 1]
            _lower(values, found)
        if turn > 0 and abs(found) < _SETTLED:
            break
        # What is gained per call falls by one query's accuracy per query in it as the average rises.
        slope = -per_call
        if turn > 0 and abs(average - before) > 1e-7:
            slope = min((found - drift) / (average - before), -1.0)
        before, drift = average, found
        average = min(1.0, max(0.0, average - found / slope))
    return average


@njit(cache=True)
def _lower(values: Any, by: float) -> None:
    for j in range(values.shape[0]):
        for i in range(values.shape[1]):
            values[j, i] -= by


@njit(cache=True)
def _expect(values: Any, after: Any, level: Any, place: Any, weight: Any, lost: Any, price: float) -> None:
    for j in range(after.shape[0]):
        for i in range(after.shape[1]):
            total = 0.0
            for q in range(level.shape[2]):
                of, at, share = values[level[j, i, q]], place[j, i, q], weight[j, i, q]
                total += of[at] * (1.0 - share) + of[at + 1] * share
            after[j, i] = total / level.shape[2] - lost[j, i] * price


@njit(cache=True)
def may_take(quickest_us: Any, sizes: Any, column: int, waiting: float, slack_us: float) -> bool:
    """Whether a batch of this size is admissible: it is in time, and no larger batch is better.

    A batch smaller than the queue is admissible only if the next larger size misses the first deadline, or would not be
    full and takes more worker time per query. Otherwise the queries left over would age and be left over repeatedly.
    """
    if quickest_us[column] > slack_us:
        return False
    if column + 1 == len(sizes) or sizes[column] >= waiting or quickest_us[column + 1] > slack_us:
        return True
    pays: bool = sizes[column + 1] > waiting and quickest_us[column] * waiting < quickest_us[column + 1] * sizes[column]
    return pays


@njit(cache=True)
def _choose(
    values: Any, after: Any, queues: Any, gains: Any, sizes: Any, levels_us: Any, quickest_us: Any, average: float
) -> None:
    last, best = len(queues) - 1, np.empty(len(sizes))
    for i in range(1, len(queues)):
        best[:] = -np.inf
        for j in range(len(gains)):
            values[j, i] = -np.inf
            for column in range(len(sizes)):
                if gains[j, column] < 0:
                    break
                taken = min(queues[i], float(sizes[column]))
                stay = queues[i] - taken
                at = min(np.searchsorted(queues, stay, side="right") - 1, last - 1)
                share = (stay - queues[at]) / (queues[at + 1] - queues[at])
                value = after[j, at] * (1.0 - share) + after[j, at + 1] * share
                best[column] = max(best[column], taken * (gains[j, column] - average) + value)
                if may_take(quickest_us, sizes, column, queues[i], levels_us[j] * (1 + 1e-9)):
                    values[j, i] = max(values[j, i], best[column])
                if sizes[column] >= queues[i]:
                    break
    for j in range(len(values)):
        values[j, 0] = values[j, 1]
