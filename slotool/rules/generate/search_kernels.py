"""Compiled loops of the search over cascades, to be imported inside functions: servers must not load Numba."""

from __future__ import annotations

import numpy as np

from slotool.compilation import njit


@njit(cache=True, nogil=True)
def _sums(
    error: np.ndarray, latency_s: np.ndarray, cost: np.ndarray, best: int, shares: np.ndarray, order: np.ndarray,
    lasts: np.ndarray, reached: np.ndarray, sizes: np.ndarray, begins: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Sum what each step adds, over examples that reach it with the same ranks among the thresholds before.

    float64 [cells of all steps, 4 + 2 × groups]; those of a step, and of each last version, begin at
    ``begins``. There are no slices of rows: in this loop each costs as much as the work on it.
    """
    steps, groups = len(order), shares.shape[1]
    sums = np.zeros((begins[-1], 4 + 2 * groups))
    for row in range(len(error)):
        cell, best_error = 0, error[row, best]
        error_before = square_before = 0.0  # of the answer so far
        for at in range(steps + 1):
            if at:
                rank = reached[at - 1, row]
                if rank == sizes[at - 1]:
                    break  # every threshold of this step accepts it
                cell = cell * (sizes[at - 1] + 1) + rank
            for which in range(len(lasts) if at == steps else 1):
                version = lasts[which] if at == steps else order[at]
                place, its_error = begins[at + which] + cell, error[row, version]
                square = (its_error - best_error) ** 2
                more, more_square = its_error - error_before, square - square_before
                if at < steps:
                    error_before, square_before = its_error, square
                sums[place, 0] += more
                sums[place, 1] += more_square
                sums[place, 2] += latency_s[row, version]
                sums[place, 3] += cost[row, version]
                for group in range(groups):
                    sums[place, 4 + 2 * group] += more * shares[row, group]
                    sums[place, 5 + 2 * group] += more_square * shares[row, group]
    return sums


@njit(cache=True, nogil=True)
def _accumulate(sums: np.ndarray, begin: int, end: int, sizes: np.ndarray, axes: int) -> None:
    """Sum ``begin`` to ``end`` along every axis of a grid with one cell more than the first ``sizes``, in place."""
    stride = 1
    for axis in range(axes - 1, -1, -1):
        for cell in range(stride, end - begin):
            if (cell // stride) % (sizes[axis] + 1):
                for column in range(sums.shape[1]):
                    sums[begin + cell, column] += sums[begin + cell - stride, column]
        stride *= sizes[axis] + 1


@njit(cache=True, nogil=True)
def cascade_means(
    error: np.ndarray, latency_s: np.ndarray, cost: np.ndarray, best: int, shares: np.ndarray, order: np.ndarray,
    lasts: np.ndarray, reached: np.ndarray, sizes: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return ``Path.means`` by last version: float64 [last versions, combinations, columns].

    The first five arguments as in ``ExampleSet``; ``order``: int64 [steps], versions asked first, ``lasts``: versions
    of which one is asked last. ``reached``: int64 [steps, examples], how many of a step's thresholds each example
    reaches; ``sizes``: int64 [steps], numbers of thresholds.
    """
    steps = len(order)
    begins = np.zeros(steps + len(lasts) + 1, dtype=np.int64)
    cells = combinations = 1
    for at in range(steps + len(lasts)):
        begins[at + 1] = begins[at] + cells
        if at < steps:
            cells *= sizes[at] + 1
            combinations *= sizes[at]
    sums = _sums(error, latency_s, cost, best, shares, order, lasts, reached, sizes, begins)
    # At threshold t an example goes on when it reaches at most t thresholds.
    for at in range(1, steps + len(lasts)):
        _accumulate(sums, begins[at], begins[at + 1], sizes, min(at, steps))
    width = sums.shape[1]
    means, total = np.empty((len(lasts), combinations, width)), np.zeros(width)
    for combination in range(combinations):
        for column in range(width):
            total[column] = 0.0
        rest, cell, span = combination, 0, combinations
        for depth in range(steps):
            for column in range(width):
                total[column] += sums[begins[depth] + cell, column]
            span //= sizes[depth]
            cell = cell * (sizes[depth] + 1) + rest // span
            rest %= span
        for which in range(len(lasts)):
            place = begins[steps + which] + cell
            for column in range(width):
                means[which, combination, column] = (total[column] + sums[place, column]) / len(error)
    return means


@njit(cache=True, nogil=True)
def beyond_fronts(
    means: np.ndarray, parts: np.ndarray, tolerances: np.ndarray, saves: np.ndarray, bases: np.ndarray,
    fronts: np.ndarray, begins: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return policies beyond each goal's front (bool), and their margins (float64): [goals, policies].

    A policy is beyond a front that has none as sure and as cheap; other margins are not set. ``means``: as in
    ``Path.means``. ``parts``: float64 [parts, 5]: column of its error, examples learnt from, examples to test on, the
    best version's error, factor of a tolerance. ``tolerances``, ``saves`` (columns), ``bases`` (upper limits of
    prices): by goal. ``fronts``: float64 [entries, 2], margin and price, both descending within a goal, whose entries
    begin at ``begins`` (int64 [goals + 1]).
    """
    goals, policies = len(tolerances), len(means)
    is_beyond, margins = np.zeros((goals, policies), dtype=np.bool_), np.empty((goals, policies))
    better, unit = np.empty(len(parts)), np.empty(len(parts))  # in standard errors
    for policy in range(policies):
        policy_means = means[policy]
        for part in range(len(parts)):
            column, learnt, tested = int(parts[part, 0]), parts[part, 1], parts[part, 2]
            # One more difference: few examples flatter a policy that differs on none of them.
            doubt = np.sqrt((policy_means[column + 1] * learnt + 1.0) / (learnt + 1.0) / max(1.0, tested))
            better[part], unit[part] = (parts[part, 3] - policy_means[column]) / doubt, parts[part, 4] / doubt
        for goal in range(goals):
            price = policy_means[saves[goal]]
            if not price < bases[goal]:
                continue
            margin = np.inf
            for part in range(len(parts)):
                margin = min(margin, better[part] + tolerances[goal] * unit[part])
            if not margin > 0:
                continue
            low, high = begins[goal], begins[goal + 1]
            while low < high:
                middle = (low + high) // 2
                if fronts[middle, 0] >= margin:
                    low = middle + 1
                else:
                    high = middle
            if low == begins[goal] or fronts[low - 1, 1] > price:
                is_beyond[goal, policy], margins[goal, policy] = True, margin
    return is_beyond, margins
