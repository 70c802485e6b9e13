"""ValueIteration: the call of the greatest value, by value tables of a Markov decision process (``values``)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from slotool.compilation import njit
from slotool.errors import InputError
from slotool.scheduling.batching.grid import ControlGrid
from slotool.scheduling.batching.kernel import REJECT, ROUNDING_US, chooser, fits, widest
from slotool.scheduling.batching.observed import (
    BIN,
    WINDOW,
    arrival_rate_per_us,
    between,
    deadline_infeasible,
    dispersion,
    max_call_us,
    nearest,
    working,
)
from slotool.scheduling.batching.policy import BatchingPolicy
from slotool.scheduling.batching.values import DISPERSIONS, LOADS, WORKER_COUNTS, ValueTables, may_take, value_tables
from slotool.scheduling.space import ControlSpace

AVERSION = 1.0
# The usual deadline where none is given: so many of the slowest calls for one query.
_CALLS_PER_DEADLINE = 3.0
# From this share of what the fastest batches can serve, or with more waiting than a batch holds, smaller batches than
# necessary would leave queries to age.
BUSY = 0.5
_DEADLINE, _WINDOW, _AVERSION, _UNIT, _COLUMN, _LEVELS, _QUEUES = 0, 1, 2, 3, 4, 5, 6
_HEAD = 7
# Of queue lengths in a plan; in one of our own a step is 1 at least.
_MIN_STEP = 1e-9


@njit(cache=True)
def _tables_of(plan: Any, rows: int, load: float, dispersion: float, workers: int) -> Any:
    """Offsets in the plan of the worker count's queues and of the tables of the loads next below and above; share of
    the table above.

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
    value: float = plan[at] * (1.0 - part) + plan[at + 1] * part
    return value


@njit(cache=True)
def _aging_loss(
    plan: Any, levels_us: Any, sizes: Any, queues: Any, table: int, stay: float, left_us: float, until_us: float,
    coming: float,
) -> float:  # fmt: skip
    """Value lost if the queries left in the queue have waited longer than the tables assume; ``left_us``: their slack
    then."""
    supposed_us = plan[_DEADLINE] - until_us * (1.0 + stay / (stay + 0.5 * sizes[-1] + 1.0))
    level = int(np.searchsorted(levels_us, left_us, side="right")) - 1
    supposed = max(int(np.searchsorted(levels_us, supposed_us, side="right")) - 1, 0)
    late = plan[table] + plan[_AVERSION] if level < 0 else 0.0
    level = max(level, 0)
    if level >= supposed:
        return late
    at = min(int(np.searchsorted(queues, stay + coming, side="right")) - 1, len(queues) - 2)
    before = table + 1 + len(levels_us) * len(queues) + at
    loss: float = late + plan[before + supposed * len(queues)] - plan[before + level * len(queues)]
    return loss


@njit(cache=True)
def _plan_is_complete(plan: Any, sizes: Any) -> bool:
    """Whether the plan has exactly the tables its header announces, and batch sizes ascend."""
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
        taken = min(sizes[column], waiting)
        rest_us = max_call_us(now_us, deadlines_us, taken, latency_us[0, fastest], sizes[fastest], free_us, workers)
        allowed_us = min(slack_us, rest_us + ROUNDING_US)
        stay = min(float(waiting - taken), queues[-1])
        place = min(np.searchsorted(queues, stay, side="right") - 1, count - 2)
        part = (stay - queues[place]) / max(queues[place + 1] - queues[place], _MIN_STEP)
        for level in range(levels):
            row = int(plan[_HEAD + levels + level * columns + column])
            if not lowest <= row < len(accuracy):
                continue
            if latency_us[row, column] > allowed_us:
                break
            after = 1 + level * count + place
            value = _between(plan, low + after, part) * (1.0 - share) + _between(plan, high + after, part) * share
            if taken < waiting:
                until_us = levels_us[level] / workers
                left_us = deadlines_us[taken] - now_us - until_us
                value -= _aging_loss(plan, levels_us, sizes, queues, low if share < 0.5 else high, stay, left_us,
                                    until_us, rate * levels_us[level])  # fmt: skip
            value += taken * (accuracy[row] - average)
            if value > best:
                best, cell = value, row * columns + column
        if sizes[column] >= waiting:
            break
    if cell >= 0:
        return cell
    # Not every query can be in time. If one is lost in any case, drop the most urgent: the batches behind it stay full.
    # Else serve as many as possible of the first.
    if deadline_infeasible(latency_us, sizes, fastest, now_us, deadlines_us, workers):
        return REJECT
    column = widest(latency_us, lowest, narrowest, slack_us)
    return lowest * columns + column if column >= 0 else REJECT


class ValueIteration(BatchingPolicy):
    """Of the calls that make no other query late, the call of the greatest value.

    A call must end by the most urgent deadline and leave time for the rest of the queue in the fastest batches. The
    value of such a call is the accuracy of its batch plus the value of the state it leads to (``values``): queries left
    in the queue, expected arrivals and their slack. The arrival rate is that of the last ``WINDOW`` deadlines, or of
    the last deadline where that is clearly higher; dispersion is measured over the same window. When no such call
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
        """As given, or by the slowest call."""
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
