"""P-values by counting the examples on which two versions differ, for losses of 0 or 1.

Of some number of examples n₁₀ are errors of the candidate alone and n₀₁ of the best version alone, with shares q₁₀ and
q₀₁. "The tolerance is exceeded" says q₁₀ ≥ q₀₁ + τ (absolute; all examples count), or q₁₀ ≥ (q₀₁ + τ) / (1 + τ)
(relative; those count on which either errs). The test compares the excess, divided by its standard error, with its
exact distribution where that holds with equality: with a larger q₁₀ a small excess is rarer still. What is not known
there, q₀₁, takes the value within a confidence interval that speaks most for the hypothesis, and the p-value is raised
by what the interval may miss (Berger & Boos, JASA 89, 1994).

A bet (``betting``) holds for losses of any kind and is nearly as sharp where it guesses the variance well; at a
tolerance of 0, and on few examples, it is not.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, betainccinv, betaincinv, betaln, xlog1py, xlogy

from slotool.rules.losses import Comparison

# Values of q₀₁ tried within its interval, and standard deviations of n₀₁ that are summed over to each side.
SHARES_TRIED, DEVIATIONS = 9, 7.0


def paired_p_value(error: np.ndarray, best_error: np.ndarray, tolerance: float, kind: Comparison, miss: float) -> float:
    """P-value against "the tolerance is exceeded"; ``error``, ``best_error``: [examples], each 0 or 1.

    ``tolerance`` at most 0.5. ``miss``: the probability that the interval of q₀₁ misses it, fixed before the examples
    are seen and well below the level of the test.
    """
    alone = int(np.count_nonzero((error > 0) & (best_error == 0)))
    best_alone = int(np.count_nonzero((error == 0) & (best_error > 0)))
    trials = len(error) if kind == "absolute" else int(np.count_nonzero((error > 0) | (best_error > 0)))
    statistic = _Statistic(trials, tolerance, kind)
    reached = float(statistic.of(np.array(alone), np.array(best_alone)))
    if not reached < 0:
        return 1.0
    least = float(betaincinv(best_alone, trials - best_alone + 1, miss / 2)) if best_alone else 0.0
    most = float(betainccinv(best_alone + 1, trials - best_alone, miss / 2)) if best_alone < trials else 1.0
    tails = [_tail(statistic, reached, share) for share in np.linspace(least, most, SHARES_TRIED)]
    return min(1.0, max(tails) + miss)


class _Statistic:
    """The excess over the tolerance, in standard errors: the more below 0, the more speaks for the candidate."""

    def __init__(self, trials: int, tolerance: float, kind: Comparison):
        self.trials, self.tolerance, self.kind = trials, tolerance, kind
        self._alone = 1.0 - tolerance if kind == "absolute" else 1.0

    def of(self, alone: np.ndarray, best_alone: np.ndarray) -> np.ndarray:
        """float64 like ``alone``, rising with it where below 0."""
        same = self.trials - alone - best_alone
        excess = self._alone * alone - (1.0 + self.tolerance) * best_alone - self.tolerance * same
        squares = self._alone**2 * alone + (1.0 + self.tolerance) ** 2 * best_alone + self.tolerance**2 * same
        return np.asarray(excess / np.sqrt(squares + 1.0))

    def share_alone(self, share_best_alone: float) -> float:
        """q₁₀ at the boundary, where the best version alone errs at this share."""
        share = share_best_alone + self.tolerance
        return min(share / (1.0 + self.tolerance) if self.kind == "relative" else share, 1.0 - share_best_alone)

    def most_alone(self, best_alone: np.ndarray, reached: float) -> np.ndarray:
        """The largest n₁₀ whose statistic is at most ``reached``, −1 where none is: int64 like ``best_alone``."""
        low, high = np.full(len(best_alone), -1), self.trials - best_alone
        while (low < high).any():
            middle = (low + high + 1) // 2
            enough = self.of(np.maximum(middle, 0), best_alone) <= reached + 1e-12
            low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
        return low


def _tail(statistic: _Statistic, reached: float, share: float) -> float:
    """P(statistic ≤ ``reached``) at the boundary, where the best version alone errs at this share."""
    trials = statistic.trials
    reach = DEVIATIONS * np.sqrt(trials * share * (1.0 - share)) + 10.0
    best_alone = np.arange(max(0, int(trials * share - reach)), min(trials, int(trials * share + reach)) + 1)
    likely = _binomial(best_alone, trials, share)
    most = statistic.most_alone(best_alone, reached)
    rest = min(1.0, statistic.share_alone(share) / (1.0 - share)) if share < 1.0 else 0.0
    below = np.where(most < 0, 0.0, bdtr(most.astype(float), trials - best_alone, rest))
    return float(likely @ below + max(0.0, 1.0 - likely.sum()))


def _binomial(count: np.ndarray, trials: int, share: float) -> np.ndarray:
    """float64 like ``count``: how likely each is among so many trials."""
    ways = -betaln(trials - count + 1, count + 1) - np.log(trials + 1)
    return np.asarray(np.exp(ways + xlogy(count, share) + xlog1py(trials - count, -share)))
