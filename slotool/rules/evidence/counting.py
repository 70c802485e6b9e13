"""Exact p-values for losses of 0 or 1, by counting the examples on which two versions differ.

Of N examples n₁₀ are errors of the candidate alone and n₀₁ of the best version alone, with probabilities q₁₀ and q₀₁.
"The tolerance is exceeded" means q₁₀ ≥ g(q₀₁), where g(q) = q + τ (absolute; all examples count), or
g(q) = (q + τ) / (1 + τ) (relative; those count on which either errs). The counts are trinomial, with q₀₁ unknown.

*The statistic* is the signed root of the likelihood ratio: r = −√(2 log(L/L₀)) where n₁₀/N < g(n₀₁/N), else 0. L is the
largest likelihood of the counts, L₀ the largest with q₁₀ = g(q₀₁). It rises with n₁₀ and falls with n₀₁: L₀ is reached
at shares nᵢ / (N + λ·sᵢ), with sᵢ an example's excess over the tolerance (1 − τ, −1 − τ and −τ, say) and λ < 0. So
∂ log(L/L₀) / ∂n₁₀ = log((N + λ·s₁₀) / (N + λ·s)) ≤ 0, where s is the excess of an example on which the two are alike,
and ∂ log(L/L₀) / ∂n₀₁ ≥ 0 by the same.

*The p-value* is p = γ + max P(r ≤ r observed), over all q₀₁ from l(n₀₁) to u(n₁₀), with q₁₀ = g(q₀₁). Here l is the
lower bound of Clopper and Pearson for q₀₁, u their upper bound for q₁₀ taken back by g, each wrong with probability at
most γ/2. No q₀₁ between them: p = γ. After Berger & Boos, JASA 89, 1994, who have both bounds from one count.

*It is monotone*: p rises with n₁₀ and falls with n₀₁. With n₁₀ both r and u rise, so that more outcomes count and more
q₀₁ are looked at; with n₀₁, r falls and l rises.

*It is valid*: P(p ≤ α) ≤ α wherever the tolerance is exceeded. Where q₁₀ = g(q₀₁): unless a bound is wrong, with
probability at most γ, the true q₀₁ is among those looked at, and p − γ is at least the probability of an r as small,
which is ≤ α − γ with probability at most α − γ. Where q₁₀ > g(q₀₁): let examples turn, independently of all else, from
errors of the candidate alone into such on which the two are alike, and from those into errors of the best version
alone, until q₁₀ = g(q₀₁). Either turn makes p smaller. So p ≤ α is at most as likely as there.

*The maximum* is bounded from above, not searched. P(r ≤ r observed) falls with q₁₀ and rises with q₀₁, by the same
turns. So for all q₀₁ of a cell [x, y] it is at most what q₁₀ = g(x), q₀₁ = y give. Cells are ``CELL`` standard errors
wide, which raises p by some per cent of itself.

A bet (``betting``) holds for losses of any kind and at any time, and needs more examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, betainccinv, betaincinv, gammaln, ndtri

from slotool.rules.evidence.losses import Comparison

CELL = 0.01  # standard errors of the mean excess


def paired_p_value(
    error: np.ndarray,
    best_error: np.ndarray,
    tolerance: float,
    kind: Comparison,
    miss: float,
    *,
    never_better: bool = False,
) -> float:
    """Return the p-value against "the tolerance is exceeded"; ``error``, ``best_error``: [examples], 0 or 1.

    ``tolerance``: from 0, absolute ones below 1. ``miss``: γ, fixed before the examples are seen and well below the
    level of the test; no p-value is smaller. ``never_better``: q₀₁ is 0 by definition, and the test a binomial one.
    """
    trials, alone, best_alone = _counts(error, best_error, kind)
    if never_better:
        share = tolerance / (1.0 + tolerance) if kind == "relative" else tolerance
        return float(bdtr(float(alone), trials, share)) if tolerance > 0 else 1.0
    return PairedTest(trials, tolerance, kind, miss).p_value(alone, best_alone)


def kept_p_value(
    error: np.ndarray,
    best_error: np.ndarray,
    tolerance: float,
    kind: Comparison,
    miss: float,
    *,
    never_better: bool = False,
) -> float:
    """Return the p-value against "the tolerance is kept"; arguments as of ``paired_p_value``.

    q₁₀ ≤ g(q₀₁) is q₀₁ ≥ q₁₀ − τ, or ≥ (1 + τ)·q₁₀ − τ: the best version exceeds a negative tolerance.
    """
    trials, alone, best_alone = _counts(error, best_error, kind)
    if never_better:
        share = tolerance / (1.0 + tolerance) if kind == "relative" else min(1.0, tolerance)
        return float(bdtrc(alone - 1.0, trials, share)) if alone else 1.0
    negative = -tolerance / (1.0 + tolerance) if kind == "relative" else -tolerance
    return PairedTest(trials, negative, kind, miss).p_value(best_alone, alone)


@dataclass(frozen=True)
class PairedTest:
    """Test of one tolerance, −1 < ``tolerance`` (and < 1 if absolute), with ``trials`` counted examples."""

    trials: int
    tolerance: float
    kind: Comparison
    miss: float

    def p_value(self, alone: int, best_alone: int) -> float:
        """Return the p-value for ``alone`` errors of the candidate alone and ``best_alone`` of the best version."""
        from slotool.rules.evidence.kernels import greatest_tail

        least, most = self._shares(alone, best_alone)
        if not self.trials or not alone * self._scale < best_alone + self.tolerance * self.trials:
            return 1.0
        if least > most:
            return min(1.0, self.miss)
        tail = greatest_tail(
            alone, best_alone, self.trials, self.tolerance, self._scale, least, most, CELL, _log_factorials(self.trials)
        )
        return min(1.0, float(tail) + self.miss)

    @property
    def _scale(self) -> float:
        """Scale in g(q) = (q + τ) / scale."""
        return 1.0 + self.tolerance if self.kind == "relative" else 1.0

    def _shares(self, alone: int, best_alone: int) -> tuple[float, float]:
        """Return the interval of q₀₁ to search."""
        largest = 1.0 / (2.0 + self.tolerance) if self.kind == "relative" else (1.0 - self.tolerance) / 2.0
        least = betaincinv(best_alone, self.trials - best_alone + 1, self.miss / 2) if best_alone else 0.0
        most = betainccinv(alone + 1, self.trials - alone, self.miss / 2) if alone < self.trials else 1.0
        return max(float(least), -self.tolerance), min(float(most) * self._scale - self.tolerance, largest)


def _counts(error: np.ndarray, best_error: np.ndarray, kind: Comparison) -> tuple[int, int, int]:
    """Count examples, and errors of the candidate alone and of the best version alone."""
    trials = len(error) if kind == "absolute" else int(np.count_nonzero((error > 0) | (best_error > 0)))
    return trials, int(np.count_nonzero(error > best_error)), int(np.count_nonzero(error < best_error))


@lru_cache(maxsize=4)
def _log_factorials(trials: int) -> np.ndarray:
    return np.asarray(gammaln(np.arange(trials + 1) + 1.0))


def examples_to_count(margin: np.ndarray, second_moment: np.ndarray, alpha: float) -> np.ndarray:
    """Estimate the examples that show a mean excess of −``margin`` < 0 at ``alpha`` half of the time.

    ``second_moment``: share of examples on which the two differ. A normal approximation, corrected for rare
    differences; never fewer than show it if the two never differ.
    """
    normal = float(ndtri(alpha)) ** 2 * (second_moment + 2.0 / 3.0 * margin) / margin**2
    return np.asarray(np.maximum(normal, np.log(1.0 / alpha) / margin))
