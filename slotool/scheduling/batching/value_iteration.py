"""ValueIteration: the call of the greatest value, by value tables of a Markov decision process.

The tables hold the value of every queue to a service that goes on choosing well; they are computed once, when the
policy is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from slotool.compilation import count_until, njit
from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid, remembered
from slotool.scheduling.batching.kernel import (
    BIN,
    REJECT,
    ROUNDING_US,
    WINDOW,
    arrival_rate_per_us,
    between,
    chooser,
    deadline_infeasible,
    dispersion,
    fits,
    max_call_us,
    nearest,
    widest,
    working,
)
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.space import ControlSpace

# Loads, of what the fastest batches can serve, dispersions of arrivals (variance ÷ mean), and numbers of workers.
LOADS = np.array([0.004, 0.015, 0.035, 0.07, 0.11, 0.16, 0.23, 0.32, 0.42, 0.53, 0.65, 0.78, 0.92])
DISPERSIONS = np.array([1.0, 3.0, 9.0])
WORKER_COUNTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_CALL_LEVELS, _EXACT_QUEUE, _LONG_QUEUES = 36, 25, 16
_ROUNDS, _SWEEPS = 24, 10
# Accuracies a call by which the average may still be wrong.
_SETTLED = 2e-4
# Number of equally likely values that stand for a distribution.
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
    levels_us = np.unique(np.r_[min_us, np.geomspace(min_us, longest_us, _CALL_LEVELS)[1:]])
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
    for f, spread in enumerate(DISPERSIONS):
        coming = [arrival_counts(load / unit_us * levels_us, spread) for load in LOADS]
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
    """Return the queue lengths of the tables: the first few exactly, then geometrically spaced."""
    long = np.geomspace(_EXACT_QUEUE, max(most, 2.0 * largest, 2.0 * _EXACT_QUEUE), _LONG_QUEUES)
    return np.r_[np.arange(float(_EXACT_QUEUE)), long]


def arrival_counts(mean: np.ndarray, dispersion: float) -> np.ndarray:
    """Return ascending arrival quantiles, float64 [J, ``QUANTILES``], for a ``mean`` [J] and variance ÷ mean.

    They are scaled to the distribution's mean. A dispersion below 1 counts as 1. Equal to ``ppf`` of ``scipy.stats``,
    which takes a server a second to load.
    """
    share = (np.arange(QUANTILES) + 0.5) / QUANTILES
    of = mean[:, None]
    drawn = _poisson(share, of) if dispersion <= 1.0 else _negative_binomial(share, of, dispersion)
    result = drawn.mean(axis=1, keepdims=True)
    return np.where(result > 0, drawn * of / np.maximum(result, 1e-12), of)


def _poisson(share: np.ndarray, mean: np.ndarray) -> np.ndarray:
    above: np.ndarray = np.ceil(special.pdtrik(share, mean))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.pdtr(below, mean) >= share, below, above)


def _negative_binomial(share: np.ndarray, mean: np.ndarray, dispersion: float) -> np.ndarray:
    size, chance = mean / (dispersion - 1.0), 1.0 / dispersion
    above: np.ndarray = np.ceil(special.nbdtrik(share, size, chance))
    below = np.maximum(above - 1.0, 0.0)
    return np.where(special.betainc(size, below + 1.0, chance) >= share, below, above)


@njit(cache=True, nogil=True)
def _moves(
    queues: Any, levels_us: Any, coming: Any, sizes: Any, workers: float, deadline_us: float, unit_us: float
) -> tuple[Any, Any, Any, Any]:
    """Return level, place and weight of the state after a call of level j that leaves n, and the lost, by arrivals."""
    shape = (len(levels_us), len(queues), coming.shape[1])
    level, place, weight = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    lost = np.zeros(shape[:2])
    last = len(queues) - 1
    for j in range(shape[0]):
        # The next decision is made, by whichever worker, when this part of the call is over.
        until_us = levels_us[j] / workers
        for i in range(shape[1]):
            stay = queues[i]
            expired = max(0.0, stay - max(0.0, (deadline_us - levels_us[j] - until_us) * workers / unit_us))
            lost[j, i] = expired
            for q in range(shape[2]):
                waiting = stay - expired + coming[j, q]
                if waiting > queues[last]:
                    lost[j, i] += (waiting - queues[last]) / shape[2]
                    waiting = queues[last]
                # Queries left in the queue have waited before, about as long as they took to arrive.
                aged = 1.0 + stay / (stay + 0.5 * sizes[-1] + 1.0) if stay > 0 else waiting / (waiting + 1.0)
                remaining = count_until(levels_us, deadline_us - until_us * aged) - 1
                if waiting <= 0:
                    remaining, waiting = shape[0] - 1, 1.0
                elif remaining < 0:
                    lost[j, i] += min(waiting, 1.0) / shape[2]
                    remaining = 0
                waiting = max(waiting, 1.0)
                at = min(count_until(queues, waiting) - 1, last - 1)
                level[j, i, q], place[j, i, q] = remaining, at
                weight[j, i, q] = (waiting - queues[at]) / (queues[at + 1] - queues[at])
    return level, place, weight, lost


@njit(cache=True, nogil=True)
def _solve(
    values: Any, after: Any, queues: Any, gains: Any, sizes: Any, levels_us: Any, quickest_us: Any,
    level: Any, place: Any, weight: Any, lost: Any, average: float, aversion: float, per_call: float,
) -> float:  # fmt: skip
    """Iterate ``values`` and ``after`` in place; return the average accuracy of a query."""
    before, drift = average, 0.0
    for turn in range(_ROUNDS):
        change = 0.0
        for _ in range(_SWEEPS):
            _expect(values, after, level, place, weight, lost, average + aversion)
            _choose(values, after, queues, gains, sizes, levels_us, quickest_us, average)
            change = values[-1, 1]
            _lower(values, change)
        if turn > 0 and abs(change) < _SETTLED:
            break
        # The gain per call falls by one accuracy per query in it as the average rises.
        slope = -per_call
        if turn > 0 and abs(average - before) > 1e-7:
            slope = min((change - drift) / (average - before), -1.0)
        before, drift = average, change
        average = min(1.0, max(0.0, average - change / slope))
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
    """True if a batch of this size is admissible: it is in time, and no larger batch is better.

    A batch smaller than the queue is admissible only if the next larger size misses the first deadline, or would not be
    full and takes more worker time per query. Otherwise the queries left over would age and be left over repeatedly.
    """
    if quickest_us[column] > slack_us:
        return False
    if column + 1 == len(sizes) or sizes[column] >= waiting or quickest_us[column + 1] > slack_us:
        return True
    return sizes[column + 1] > waiting and quickest_us[column] * waiting < quickest_us[column + 1] * sizes[column]


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
                served = min(queues[i], float(sizes[column]))
                stay = queues[i] - served
                at = min(count_until(queues, stay) - 1, last - 1)
                share = (stay - queues[at]) / (queues[at + 1] - queues[at])
                value = after[j, at] * (1.0 - share) + after[j, at + 1] * share
                best[column] = max(best[column], served * (gains[j, column] - average) + value)
                if may_take(quickest_us, sizes, column, queues[i], levels_us[j] * (1 + 1e-9)):
                    values[j, i] = max(values[j, i], best[column])
                if sizes[column] >= queues[i]:
                    break
    for j in range(len(values)):
        values[j, 0] = values[j, 1]


AVERSION = 1.0
# The usual deadline where none is given: so many of the slowest calls for one query.
_CALLS_PER_DEADLINE = 3.0
# From this share of what the fastest batches can serve, or with more waiting than a batch holds, smaller batches than
# necessary would leave queries to age.
BUSY = 0.5
_DEADLINE, _WINDOW, _AVERSION, _UNIT, _COLUMN, _LEVELS, _QUEUES = 0, 1, 2, 3, 4, 5, 6
_HEAD = 7
# Limit of queue lengths in a plan; our own plans have steps of at least 1.
_MIN_STEP = 1e-9


@njit(cache=True)
def _tables_of(plan: Any, rows: int, load: float, dispersion: float, workers: int) -> Any:
    """Return offsets of the worker count's queues and of the tables for loads below and above, and the latter's share.

    ``rows``: numbers in the table of rows. A table: the gain, then ``after``, then ``before``.
    """
    levels, count = int(plan[_LEVELS]), int(plan[_QUEUES])
    row = 0
    while row + 1 < len(WORKER_COUNTS) and workers >= WORKER_COUNTS[row + 1]:
        row += 1
    spread, (below, share) = nearest(DISPERSIONS, dispersion), between(LOADS, load)
    queues = _HEAD + levels + rows
    size = 1 + 2 * levels * count
    table = queues + len(WORKER_COUNTS) * count + ((row * len(DISPERSIONS) + spread) * len(LOADS) + below) * size
    return queues + row * count, table, table + size, share


@njit(cache=True, inline="always")
def _between(plan: Any, at: int, part: float) -> float:
    return plan[at] * (1.0 - part) + plan[at + 1] * part


@njit(cache=True)
def _aging_loss(
    plan: Any, levels_us: Any, sizes: Any, queues: Any, table: int, stay: float, left_us: float, until_us: float,
    coming: float,
) -> float:  # fmt: skip
    """Return the value lost if queries left in the queue are older than the tables assume; ``left_us``: their slack."""
    supposed_us = plan[_DEADLINE] - until_us * (1.0 + stay / (stay + 0.5 * sizes[-1] + 1.0))
    level = count_until(levels_us, left_us) - 1
    supposed = max(count_until(levels_us, supposed_us) - 1, 0)
    late = plan[table] + plan[_AVERSION] if level < 0 else 0.0
    level = max(level, 0)
    if level >= supposed:
        return late
    at = min(count_until(queues, stay + coming) - 1, len(queues) - 2)
    before = table + 1 + len(levels_us) * len(queues) + at
    return late + plan[before + supposed * len(queues)] - plan[before + level * len(queues)]


@njit(cache=True)
def _plan_is_complete(plan: Any, sizes: Any) -> bool:
    """True if the plan has exactly the tables its header announces, and batch sizes ascend."""
    if len(plan) < _HEAD or not (plan[_DEADLINE] > 0 and plan[_WINDOW] > 0):
        return False
    columns, most = len(sizes), len(plan)
    if not (0 <= plan[_COLUMN] < columns and 1 <= plan[_LEVELS] < most and 2 <= plan[_QUEUES] < most):
        return False
    for column in range(columns):
        if sizes[column] < 1 or (column and sizes[column] <= sizes[column - 1]):
            return False
    levels, count = int(plan[_LEVELS]), int(plan[_QUEUES])
    tables = len(WORKER_COUNTS) * len(DISPERSIONS) * len(LOADS)
    return len(plan) == _HEAD + levels * (1 + columns) + len(WORKER_COUNTS) * count + tables * (1 + 2 * levels * count)


@chooser
def choose_by_value(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    fit = fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest)
    if not fit or not _plan_is_complete(plan, sizes):
        return REJECT
    columns, waiting = latency_us.shape[1], len(deadlines_us)
    slack_us = deadlines_us[0] - now_us + ROUNDING_US
    workers = working(free_us)
    fastest, levels, count = int(plan[_COLUMN]), int(plan[_LEVELS]), int(plan[_QUEUES])
    levels_us = plan[_HEAD : _HEAD + levels]
    rate = arrival_rate_per_us(now_us, arrived_us, plan[_WINDOW], plan[_DEADLINE]) / workers
    spread = dispersion(now_us, arrived_us, plan[_WINDOW], BIN * plan[_DEADLINE])
    at, low, high, share = _tables_of(plan, levels * columns, rate * plan[_UNIT], spread, workers)
    queues = plan[at : at + count]
    average = plan[low] * (1.0 - share) + plan[high] * share
    # Otherwise a batch smaller than the queue, at a more accurate point, leaves a rest that the next call can serve.
    crowded = waiting > sizes[-1] or rate * plan[_UNIT] > BUSY
    best, cell = -np.inf, REJECT
    for column in range(narrowest, columns):
        if latency_us[lowest, column] > slack_us:
            break
        if crowded and not may_take(latency_us[lowest], sizes, column, float(waiting), slack_us):
            continue
        served = min(sizes[column], waiting)
        rest_us = max_call_us(now_us, deadlines_us, served, latency_us[0, fastest], sizes[fastest], free_us, workers)
        allowed_us = min(slack_us, rest_us + ROUNDING_US)
        stay = min(float(waiting - served), queues[-1])
        place = min(count_until(queues, stay) - 1, count - 2)
        part = (stay - queues[place]) / max(queues[place + 1] - queues[place], _MIN_STEP)
        for level in range(levels):
            row = int(plan[_HEAD + levels + level * columns + column])
            if not lowest <= row < len(accuracy):
                continue
            if latency_us[row, column] > allowed_us:
                break
            after = 1 + level * count + place
            value = _between(plan, low + after, part) * (1.0 - share) + _between(plan, high + after, part) * share
            if served < waiting:
                until_us = levels_us[level] / workers
                left_us = deadlines_us[served] - now_us - until_us
                value -= _aging_loss(plan, levels_us, sizes, queues, low if share < 0.5 else high, stay, left_us,
                                    until_us, rate * levels_us[level])  # fmt: skip
            value += served * (accuracy[row] - average)
            if value > best:
                best, cell = value, row * columns + column
        if sizes[column] >= waiting:
            break
    if cell >= 0:
        return cell
    # One query is lost in any case: drop the most urgent, so that the batches behind it stay full.
    # Else serve as many as possible of the first.
    if deadline_infeasible(latency_us, sizes, fastest, now_us, deadlines_us, workers):
        return REJECT
    column = widest(latency_us, lowest, narrowest, slack_us)
    return lowest * columns + column if column >= 0 else REJECT


class ValueIteration(BatchingPolicy):
    """Policy of the call of greatest value among those that make no other query late.

    A call must end by the most urgent deadline and leave time for the rest of the queue in the fastest batches. The
    value of such a call is the accuracy of its batch plus the value of the state it leads to (``ValueTables``): queries
    left in the queue, expected arrivals and their slack. The arrival rate is that of the last ``WINDOW`` deadlines, or
    of the last deadline where that is clearly higher; dispersion is measured over the same window. When no such call
    exists and even the fastest batches lose a query, the policy rejects the most urgent query: small batches for
    queries that are almost expired would lose more.

    ``deadline_us``: the usual deadline, by default three times the slowest call for one query; each query's own
    deadline holds in any case. ``aversion``: cost of a lost query, in accuracies beyond its own answer. Raises
    ``InputError`` when the deadline is not positive or the aversion negative.
    """

    name: ClassVar[str] = "value-iteration"
    choose = choose_by_value

    def __init__(
        self,
        space: ControlSpace | ControlGrid,
        deadline_us: float | None = None,
        aversion: float = AVERSION,
    ):
        if deadline_us is not None and not 0 < deadline_us < np.inf:
            raise InputError(f"a usual deadline of {deadline_us:g} µs is not a positive, finite time")
        if not aversion >= 0:
            raise InputError(f"an aversion of {aversion:g} is negative")
        self._deadline_us, self.aversion = deadline_us, aversion
        super().__init__(space)

    @property
    def usual_deadline_us(self) -> float:
        """Usual deadline, as given, or by the slowest call."""
        return self._deadline_us or _CALLS_PER_DEADLINE * float(self.grid.latency_us[:, 0].max())

    def prepare(self) -> np.ndarray:
        grid = self.grid
        deadline_us = self.usual_deadline_us
        tables = value_tables(grid, deadline_us, self.aversion)
        fastest = int((grid.sizes / grid.latency_us[0]).argmax())
        unit_us = float((grid.quickest_us / grid.sizes).min())
        levels, queues = len(tables.levels_us), tables.queues.shape[1]
        head = np.array([deadline_us, WINDOW * deadline_us, self.aversion, unit_us, fastest, levels, queues])
        parts = [head, tables.levels_us, tables.rows.ravel(), tables.queues.ravel(), _flattened(tables)]
        return np.concatenate(parts)


def _flattened(tables: ValueTables) -> np.ndarray:
    """Gain, ``after`` and ``before`` of every worker count, dispersion and load, concatenated."""
    shape = (*tables.gain.shape, -1)
    parts = [tables.gain[..., None], tables.after.reshape(shape), tables.before.reshape(shape)]
    return np.concatenate(parts, axis=-1).ravel()
