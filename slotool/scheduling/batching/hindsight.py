"""Hindsight: the call after which the queue brings the most, by the average of what hindsight would make of it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from slotool.compilation import njit
from slotool.scheduling.batching.baselines import SlackFit, choose_first_fit
from slotool.scheduling.batching.clairvoyant import AGES, GAP_CV2, LOADS, WAITING, hindsight_values
from slotool.scheduling.batching.grid import ControlGrid, remembered
from slotool.scheduling.batching.kernel import (
    BIN,
    REJECT,
    ROUNDING_US,
    WINDOW,
    arrival_rate_per_us,
    between,
    chooser,
    dispersion,
    fits,
    max_call_us,
    nearest,
    working,
)
from slotool.scheduling.batching.rehearsal import GAP_CV2 as REHEARSED_CV2
from slotool.scheduling.batching.rehearsal import LOADS as REHEARSED_LOADS
from slotool.scheduling.batching.rehearsal import WORKERS, Candidate, best_whole, rehearsed
from slotool.scheduling.batching.value_iteration import ValueIteration, choose_by_value

# Rows of a column that are as long within this share of a deadline count as the most accurate of them.
_ALIKE = 1 / 96
_DEADLINE, _WINDOW, _AVERSION, _UNIT, _COLUMN, _CANDIDATES, _TIMES = 0, 1, 2, 3, 4, 5, 6
_HEAD = 7
# Header: length of SlackFit's plan, and the deciding policy by state: hindsight, by value, or SlackFit.
_SLACK_FIT, _DECIDING = 0, 1
_BY_VALUE, _BY_SLACK_FIT = 1, 2
# Number of the last arrivals that are looked at for clumps; two within this share of a deadline are of one instant.
_RECALLED, _INSTANT = 128, 1e-5


@njit(cache=True)
def _corners(
    stay: float, waited: float, load: float, spread: int, times: int, offsets: Any, weights: Any, later: Any
) -> int:
    """Fill in the rows of values, of ``times`` each, around this queue at this load; return their number.

    ``spread``: index into ``GAP_CV2``. ``later``: deadlines by which the worker is idle later there, as the first query
    has as much time left.
    """
    n, (below, share) = 0, between(LOADS, load)
    while n + 2 < len(WAITING) and stay >= WAITING[n + 1]:
        n += 1
    # Beyond the longest queue the values go on in a straight line.
    longer = (stay - WAITING[n]) / (WAITING[n + 1] - WAITING[n])
    age = min(max(waited, 0.0), 1.0) * (len(AGES) - 1)
    a = min(int(age), len(AGES) - 2)
    older, used = age - a, 0
    for corner in range(8):
        weight = share if corner & 1 else 1.0 - share
        weight *= longer if corner & 2 else 1.0 - longer
        weight *= older if corner & 4 else 1.0 - older
        if weight != 0.0:
            row = (spread * len(LOADS) + below + (corner & 1)) * len(WAITING) + n + ((corner >> 1) & 1)
            offsets[used] = (row * len(AGES) + a + (corner >> 2)) * times
            later[used] = (older - (corner >> 2)) / (len(AGES) - 1) if stay > 0 else 0.0
            weights[used] = weight
            used += 1
    return used


@njit(cache=True, inline="always")
def _at(values: Any, until: float, times: int, offsets: Any, weights: Any, later: Any, used: int) -> float:
    """Return the value if the worker is idle ``until`` deadlines from now."""
    value = 0.0
    for corner in range(used):
        place = min(max(until + later[corner], 0.0), 1.0) * (times - 1)
        t = min(int(place), times - 2)
        part, at = place - t, offsets[corner] + t
        value += weights[corner] * (values[at] * (1.0 - part) + values[at + 1] * part)
    return value


@njit(cache=True)
def _tables_end(plan: Any, columns: int) -> int:
    """Return the start of the value-iteration plan, or -1 if tables named in the header are missing."""
    if len(plan) < _HEAD or not (plan[_DEADLINE] > 0 and plan[_WINDOW] > 0 and plan[_UNIT] > 0):
        return -1
    most = len(plan)
    if not (0 <= plan[_COLUMN] < columns and 1 <= plan[_CANDIDATES] < most and 2 <= plan[_TIMES] < most):
        return -1
    rows = len(GAP_CV2) * len(LOADS) * len(WAITING) * len(AGES)
    end = _HEAD + columns * int(plan[_CANDIDATES]) + rows * int(plan[_TIMES])
    return end if end <= most else -1


@chooser
def choose_by_hindsight(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    fit = fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest)
    columns, waiting = latency_us.shape[1], len(deadlines_us)
    end = _tables_end(plan, columns) if fit else -1
    if end < 0:
        return REJECT
    deadline_us, fastest = plan[_DEADLINE], int(plan[_COLUMN])
    load = plan[_UNIT] * arrival_rate_per_us(now_us, arrived_us, plan[_WINDOW], deadline_us)
    best, cell = -np.inf, REJECT
    if working(free_us) == 1:
        candidates, times = int(plan[_CANDIDATES]), int(plan[_TIMES])
        values = plan[_HEAD + columns * candidates : end]
        slack_us = deadlines_us[0] - now_us + ROUNDING_US
        spread = nearest(GAP_CV2, dispersion(now_us, arrived_us, plan[_WINDOW], BIN * deadline_us))
        offsets, weights, later = np.empty(8, np.int64), np.empty(8), np.empty(8)
        for column in range(narrowest, columns):
            if latency_us[lowest, column] > slack_us:
                break
            served = min(sizes[column], waiting)
            rest_us = max_call_us(now_us, deadlines_us, served, latency_us[0, fastest], sizes[fastest], free_us, 1)
            allowed_us = min(slack_us, rest_us + ROUNDING_US)
            waited = 1.0 - (deadlines_us[served] - now_us) / deadline_us if served < waiting else 0.0
            used = _corners(float(waiting - served), waited, load, spread, times, offsets, weights, later)
            for k in range(candidates):
                row = int(plan[_HEAD + column * candidates + k])
                if not lowest <= row < len(accuracy):
                    continue
                if latency_us[row, column] > allowed_us:
                    break
                value = served * (accuracy[row] + plan[_AVERSION])
                value += _at(values, latency_us[row, column] / deadline_us, times, offsets, weights, later, used)
                if value > best:
                    best, cell = value, row * columns + column
            if sizes[column] >= waiting:
                break
    if cell >= 0:
        return cell
    return choose_by_value(
        latency_us, accuracy, sizes, plan[end:], now_us, deadlines_us, lowest, narrowest, arrived_us, free_us
    )


@njit(cache=True)
def _come_together(arrived_us: Any, deadline_us: float) -> bool:
    """True if most of the last arrivals came at the instant of the one before."""
    first, together = max(1, len(arrived_us) - _RECALLED), 0
    for i in range(first, len(arrived_us)):
        together += arrived_us[i] - arrived_us[i - 1] <= _INSTANT * deadline_us
    return 2 * together > len(arrived_us) - first


@chooser
def choose_as_rehearsed(
    latency_us: Any, accuracy: Any, sizes: Any, plan: Any, now_us: float, deadlines_us: Any, lowest: int,
    narrowest: int, arrived_us: Any, free_us: Any,
) -> int:  # fmt: skip
    fit = fits(latency_us.shape, len(accuracy), len(sizes), len(deadlines_us), lowest, narrowest)
    slack_fit = _DECIDING + len(WORKERS) * len(REHEARSED_CV2) * len(REHEARSED_LOADS)
    if not fit or len(plan) <= slack_fit:
        return REJECT
    hindsight = slack_fit + int(plan[_SLACK_FIT])
    if not slack_fit <= hindsight <= len(plan):
        return REJECT
    end = _tables_end(plan[hindsight:], latency_us.shape[1])
    if end < 0:
        return REJECT
    deadline_us, window_us = plan[hindsight + _DEADLINE], plan[hindsight + _WINDOW]
    workers = working(free_us)
    load = plan[hindsight + _UNIT] * arrival_rate_per_us(now_us, arrived_us, window_us, deadline_us) / workers
    spread = nearest(REHEARSED_CV2, dispersion(now_us, arrived_us, window_us, BIN * deadline_us))
    cell = (int(workers > 1) * len(REHEARSED_CV2) + spread) * len(REHEARSED_LOADS) + nearest(REHEARSED_LOADS, load)
    which = _BY_VALUE if _come_together(arrived_us, deadline_us) else plan[_DECIDING + cell]
    choice: int = REJECT
    if which == _BY_VALUE:
        choice = choose_by_value(
            latency_us, accuracy, sizes, plan[hindsight + end :], now_us, deadlines_us, lowest, narrowest, arrived_us,
            free_us,
        )  # fmt: skip
    elif which == _BY_SLACK_FIT:
        choice = choose_first_fit(
            latency_us, accuracy, sizes, plan[slack_fit:hindsight], now_us, deadlines_us, lowest, narrowest, arrived_us,
            free_us,
        )  # fmt: skip
    else:
        choice = choose_by_hindsight(
            latency_us, accuracy, sizes, plan[hindsight:], now_us, deadlines_us, lowest, narrowest, arrived_us, free_us
        )  # fmt: skip
    return choice


class Hindsight(ValueIteration):
    """Policy of the call of greatest value in hindsight among those that make no other query late.

    Value iteration, but with the mean value of a worker that knows all later arrivals for the state after a call
    (``hindsight_values``). With several workers value iteration decides. So does it, or SlackFit, at loads where they
    are clearly better on drawn arrivals, tried when the policy is made (``rehearsal``); and value iteration at all
    loads if the whole is then worse than it, as with calls hundreds of times shorter than a deadline, for which the
    tables are too coarse. Tables and trials are of queries that come one by one: where most come several at an instant,
    as from a batch job, value iteration decides too. Parameters and errors are those of ``ValueIteration``.
    """

    name: ClassVar[str] = "hindsight"
    choose = choose_as_rehearsed

    def prepare(self) -> np.ndarray:
        # A call longer than the usual deadline is still one for a query that has more.
        deadline_us = max(self.usual_deadline_us, self.grid.fastest_us)
        return _plan(self.grid, deadline_us, self.aversion)


@remembered
def _plan(grid: ControlGrid, deadline_us: float, aversion: float) -> np.ndarray:
    """Return the deciding policy by state, SlackFit's plan, and hindsight's, which ends with value iteration's."""
    values = ValueIteration(grid, deadline_us, aversion).plan
    tables = hindsight_values(grid, deadline_us, aversion)
    rows = _candidates(grid, _ALIKE * deadline_us)
    unit_us = float((grid.quickest_us / grid.sizes).min())
    fastest = int((grid.sizes / grid.latency_us[0]).argmax())
    head = [deadline_us, WINDOW * deadline_us, aversion, unit_us, fastest, rows.shape[1], tables.shape[-1]]
    in_hindsight = np.concatenate([head, rows.ravel(), tables.ravel(), values])
    slack_fit = SlackFit(grid).plan
    # Ordered as in ``choose_as_rehearsed``. Beyond its tables' loads hindsight may lose every query.
    candidates = (
        Candidate(choose_by_hindsight, in_hindsight, float(LOADS[-1])),
        Candidate(choose_by_value, values),
        Candidate(choose_first_fit, slack_fit),
    )
    tried = rehearsed(grid, candidates, deadline_us, aversion)
    by_value = np.full_like(tried.by_cell, _BY_VALUE)
    # A trial of a whole takes as long as all cells: equal ones are tried once.
    ways = {deciding.tobytes(): deciding for deciding in (tried.by_cell, tried.stretch, tried.without_first)}
    ways.pop(by_value.tobytes(), None)
    plans = [
        np.concatenate([[len(slack_fit)], deciding.ravel(), slack_fit, in_hindsight])
        for deciding in (*ways.values(), by_value)
    ]
    wholes = [Candidate(choose_as_rehearsed, plan) for plan in plans[:-1]]
    best = best_whole(grid, wholes, candidates[_BY_VALUE], deadline_us, aversion) if wholes else None
    return plans[-1 if best is None else best]


def _candidates(grid: ControlGrid, alike_us: float) -> np.ndarray:
    """Return the most accurate of rows of similar length in each column, longest last: int64 [B, K]; -1 for none."""
    rows_kept = []
    for times_us in grid.latency_us.T:
        rows: list[int] = []
        began_us = -np.inf
        for row in np.argsort(times_us, kind="stable").tolist():
            if rows and row <= rows[-1]:
                continue
            if len(rows) > 1 and times_us[row] - began_us < alike_us:
                rows[-1] = row
            else:
                rows.append(row)
                began_us = float(times_us[row])
        rows_kept.append(rows)
    most = max(map(len, rows_kept))
    return np.array([rows + [-1] * (most - len(rows)) for rows in rows_kept], dtype=np.int64)
