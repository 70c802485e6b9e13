"""Compiled loops of this room, to be imported inside functions: servers must not spend time on Numba."""

from __future__ import annotations

import numpy as np

from slotool.compilation import njit


@njit(cache=True, nogil=True)
def step_means(bins: np.ndarray, answers: np.ndarray, rows: np.ndarray, steps: int) -> np.ndarray:
    """Compute means at every threshold of a path over several samples: float64 [samples, columns, steps].

    ``bins``: int32 [examples], thresholds that each confidence reaches. ``answers``: float64 [examples, 2, columns],
    for early termination and full operation. ``rows``: int64 [samples, size].
    """
    columns, size = answers.shape[2], rows.shape[1]
    means = np.empty((rows.shape[0], columns, steps))
    sums = np.empty((steps + 1, 2, columns))
    for sample in range(rows.shape[0]):
        sums[:] = 0.0
        for at in range(size):
            row = rows[sample, at]
            bin_sums = sums[bins[row]]
            for column in range(columns):
                bin_sums[0, column] += answers[row, 0, column]
                bin_sums[1, column] += answers[row, 1, column]
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
    """Return the greatest wealth of a bet that ``excess`` (float64 [examples]) is negative on average.

    Each stake aims at a wealth of 1/``alpha`` at the last example. ``second_moment``: an estimate of the mean squared
    excess, which counts as much as ``weight`` examples.
    """
    goal, wealth, greatest = -np.log(alpha), 0.0, 0.0
    squares = second_moment * weight
    for count in range(len(excess)):
        remaining = (len(excess) - count) * squares / (weight + count)
        # The best stake while small; below 1, so that one bad example never costs the whole wealth.
        stake = min(np.tanh(np.sqrt(2.0 * (goal - wealth) / remaining)), max_stake)
        wealth += np.log1p(-stake * excess[count])
        greatest = max(greatest, wealth)
        if wealth >= goal:
            break
        squares += excess[count] * excess[count]
    return float(np.exp(greatest))


@njit(cache=True, nogil=True)
def doubting_wealth(
    excess: np.ndarray, stakes: np.ndarray, restarts: bool, wealth: np.ndarray, count: int
) -> np.ndarray:
    """Return the mean wealth after each of ``excess`` (float64 [examples]) of bets that it is positive on average.

    One bet per stake, and with ``restarts`` a new one of each at every example; see ``Evidence``. ``wealth`` (float64
    [stakes], changed in place): after ``count`` earlier examples.
    """
    mean = np.empty(len(excess))
    for at in range(len(excess)):
        joining = 1.0 / ((count + at + 1.0) * (count + at + 2.0)) if restarts else 0.0
        mean[at] = 1.0 / (count + at + 2.0) if restarts else 0.0
        for bet in range(len(stakes)):
            wealth[bet] = min((wealth[bet] + joining) * (1.0 + stakes[bet] * excess[at]), 1e300)
            mean[at] += wealth[bet] / len(stakes)
    return mean


# Summed standard deviations of n₀₁ on each side; all beyond is added as if it counted.
DEVIATIONS = 6.5
ROUNDING = 1e-9  # of a statistic: outcomes as extreme as the observed one count with it


@njit(cache=True, nogil=True)
def _term(count: float, likely: float) -> float:
    return count * np.log(count / likely) if count > 0 else 0.0


@njit(cache=True, nogil=True)
def signed_root(alone: int, best_alone: int, trials: int, tolerance: float, scale: float) -> float:
    """Compute the statistic r of ``counting``."""
    if not alone * scale < best_alone + tolerance * trials:
        return 0.0
    # The likeliest q₀₁ at the boundary q₁₀ = (q₀₁ + τ) / scale is the larger root of a quadratic; all examples differ
    # where it is 1/k.
    k = (1.0 + scale) / (scale - tolerance)
    linear = alone + best_alone - k * tolerance * (trials - alone)
    constant = best_alone * tolerance
    root = np.sqrt(max(0.0, linear * linear + 4.0 * k * trials * constant))
    share = (linear + root) / (2.0 * k * trials) if linear >= 0.0 else 2.0 * constant / (root - linear)
    share_alone = max(0.0, (share + tolerance) / scale)
    same = max(0.0, 1.0 - share - share_alone)
    ratio = (
        _term(alone, trials * share_alone)
        + _term(best_alone, trials * share)
        + _term(trials - alone - best_alone, trials * same)
    )
    return float(-np.sqrt(2.0 * max(0.0, ratio)))


@njit(cache=True, nogil=True)
def most_alone(reached: float, trials: int, tolerance: float, scale: float, begin: int, end: int) -> np.ndarray:
    """Return the largest n₁₀ whose statistic is at most ``reached``, −1 for none, for n₀₁ in a range.

    The range is ``begin`` to ``end`` - 1; the result is int64 [end - begin], rising.
    """
    most = np.empty(end - begin, dtype=np.int64)
    low, high = -1, trials - begin
    while low < high:
        middle = (low + high + 1) // 2
        if signed_root(middle, begin, trials, tolerance, scale) <= reached:
            low = middle
        else:
            high = middle - 1
    for best_alone in range(begin, end):
        low = min(low, trials - best_alone)
        while low < trials - best_alone and signed_root(low + 1, best_alone, trials, tolerance, scale) <= reached:
            low += 1
        most[best_alone - begin] = low
    return most


@njit(cache=True, nogil=True)
def _likely(count: int, trials: int, log_share: float, log_rest: float, factorials: np.ndarray) -> float:
    """Compute the probability of ``count`` of ``trials``, from the logarithms of the share and of the rest."""
    ways = factorials[trials] - factorials[count] - factorials[trials - count]
    return float(np.exp(ways + count * log_share + (trials - count) * log_rest))


@njit(cache=True, nogil=True)
def _at_most(count: int, trials: int, log_share: float, log_rest: float, factorials: np.ndarray) -> float:
    """Compute the probability of at most ``count`` of ``trials``, a count below their mean."""
    total = 0.0
    for at in range(count, -1, -1):
        likely = _likely(at, trials, log_share, log_rest, factorials)
        total += likely
        if likely < 1e-16 * total:
            break
    return total


@njit(cache=True, nogil=True)
def window(share: float, trials: int) -> tuple[int, int]:
    """Return the range of counts worth summing over for an event of probability ``share``."""
    reach = DEVIATIONS * np.sqrt(trials * share * (1.0 - share)) + 10.0
    return max(0, int(trials * share - reach)), min(trials, int(trials * share + reach)) + 1


@njit(cache=True, nogil=True)
def tail(share_alone: float, share: float, trials: int, most: np.ndarray, first: int, factorials: np.ndarray) -> float:
    """Compute P(n₁₀ ≤ ``most``[n₀₁ - ``first``]) for trinomial counts, q₁₀ = ``share_alone``, q₀₁ = ``share``."""
    begin, end = window(share, trials)
    log_share, log_rest = np.log(max(share, 1e-300)), np.log(max(1.0 - share, 1e-300))
    # n₁₀ given n₀₁ is binomial, of the other examples, with this share.
    other = min(1.0, share_alone / max(1.0 - share, 1e-300))
    log_other, log_not = np.log(max(other, 1e-300)), np.log(max(1.0 - other, 1e-300))
    total, summed, below, last = 0.0, 0.0, 0.0, -1
    for best_alone in range(begin, end):
        likely = _likely(best_alone, trials, log_share, log_rest, factorials)
        summed += likely
        others, bound = trials - best_alone, most[best_alone - first]
        if bound < 0:
            continue
        if last < 0:
            last, below = bound, _at_most(bound, others, log_other, log_not, factorials)
        else:
            # One example less may be the one too many.
            below += other * _likely(last, others, log_other, log_not, factorials) if last <= others else 0.0
            while last < bound:
                last += 1
                below += _likely(last, others, log_other, log_not, factorials)
        total += likely * min(1.0, below)
    return min(1.0, total + max(0.0, 1.0 - summed))


@njit(cache=True, nogil=True)
def greatest_tail(
    alone: int, best_alone: int, trials: int, tolerance: float, scale: float, least: float, most: float, cell: float,
    factorials: np.ndarray,
) -> float:  # fmt: skip
    """Bound P(r ≤ r of these counts) over q₀₁ from ``least`` to ``most``, with q₁₀ = (q₀₁ + τ) / scale.

    ``cell``: width of the cells in standard errors of the mean excess. ``factorials``: float64 [trials + 1], their
    logarithms.
    """
    reached = signed_root(alone, best_alone, trials, tolerance, scale) + ROUNDING
    begin, end = window(least, trials)[0], window(most, trials)[1]
    bounds = most_alone(reached, trials, tolerance, scale, begin, end)
    # The variance of an excess is about 2 q₀₁ + |τ|: its root grows by a step from cell to cell. The cells do not
    # depend on the counts, which keeps the bound monotone.
    step, smallest = cell / np.sqrt(trials), abs(tolerance) + 1.0 / trials
    at = int((np.sqrt(2.0 * least + smallest) - np.sqrt(smallest)) / step)
    greatest, left = 0.0, least
    while True:
        at += 1
        right = min(most, ((np.sqrt(smallest) + at * step) ** 2 - smallest) / 2.0)
        if right > left or right >= most:
            share_alone = max(0.0, (left + tolerance) / scale)
            greatest = max(greatest, tail(share_alone, max(left, right), trials, bounds, begin, factorials))
            left = max(left, right)
        if right >= most:
            return greatest
