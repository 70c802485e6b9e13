"""The compiled loops of this room. Import it inside functions: numba takes a moment that serving must not pay."""

from __future__ import annotations

import numpy as np

from slotool.compilation import njit


@njit(cache=True, nogil=True)
def step_means(bins: np.ndarray, answers: np.ndarray, rows: np.ndarray, steps: int) -> np.ndarray:
    """Means at every threshold of one path, over several samples of its examples: float64 [samples, columns, steps].

    ``bins``: int32 [examples], how many thresholds each example's confidence reaches. ``answers``: float64
    [examples, 2, columns], what early termination and full operation give. ``rows``: int64 [samples, size].
    """
    columns, size = answers.shape[2], rows.shape[1]
    means = np.empty((rows.shape[0], columns, steps))
    sums = np.empty((steps + 1, 2, columns))
    for sample in range(rows.shape[0]):
        sums[:] = 0.0
        for at in range(size):
            row = rows[sample, at]
            own = sums[bins[row]]
            for column in range(columns):
                own[0, column] += answers[row, 0, column]
                own[1, column] += answers[row, 1, column]
        for column in range(columns):
            # At threshold k an example terminates early when it reaches more than k thresholds.
            early = 0.0
            for step in range(steps - 1, -1, -1):
                early += sums[step + 1, 0, column]
                means[sample, column, step] = early
            full = 0.0
            for step in range(steps):
                full += sums[step, 1, column]
                means[sample, column, step] = (means[sample, column, step] + full) / size
    return means


@njit(cache=True, nogil=True)
def greatest_wealth(excess: np.ndarray, alpha: float, second_moment: float, weight: float, max_stake: float) -> float:
    """The greatest wealth of a bet that ``excess`` (float64 [examples]) is negative on average.

    The stake of each example aims at a wealth of 1/``alpha`` at the last one. ``second_moment``: an estimate of the
    mean squared excess, with the weight of ``weight`` examples.
    """
    goal, wealth, greatest = -np.log(alpha), 0.0, 0.0
    squares = second_moment * weight
    for seen in range(len(excess)):
        left = (len(excess) - seen) * squares / (weight + seen)
        # x is the best stake while small; kept below 1, so that one bad example never costs the whole wealth.
        stake = min(np.tanh(np.sqrt(2.0 * (goal - wealth) / left)), max_stake)
        wealth += np.log1p(-stake * excess[seen])
        greatest = max(greatest, wealth)
        if wealth >= goal:
            break
        squares += excess[seen] * excess[seen]
    return float(np.exp(greatest))


@njit(cache=True, nogil=True)
def doubting_wealth(
    excess: np.ndarray, stakes: np.ndarray, restarts: bool, wealth: np.ndarray, seen: int
) -> np.ndarray:
    """Mean wealth after each of ``excess`` (float64 [examples]) of bets that it is positive on average.

    One bet per stake, and with ``restarts`` a new one of each at every example; see ``Evidence``. ``wealth``
    (float64 [stakes], changed in place): of each after the ``seen`` examples before these.
    """
    mean = np.empty(len(excess))
    for at in range(len(excess)):
        joining = 1.0 / ((seen + at + 1.0) * (seen + at + 2.0)) if restarts else 0.0
        mean[at] = 1.0 / (seen + at + 2.0) if restarts else 0.0
        for own in range(len(stakes)):
            wealth[own] = min((wealth[own] + joining) * (1.0 + stakes[own] * excess[at]), 1e300)
            mean[at] += wealth[own] / len(stakes)
    return mean
