"""A one-sided bound on error degradation by betting (Waudby-Smith & Ramdas, arXiv 2010.09686).

A gambler who doubts that a candidate keeps the tolerance τ stakes a share λᵢ of the wealth on each example. With
paired losses eᵢ (candidate) and bᵢ (best version) and what τ allows, aᵢ = τ (absolute) or τ·bᵢ (relative), an
example's excess is sᵢ = eᵢ − bᵢ − aᵢ ≤ 1, and the wealth ∏(1 − λᵢ sᵢ). If the tolerance is exceeded, E[sᵢ] ≥ 0, the
wealth is a non-negative supermartingale as long as λᵢ ∈ [0, 1] depends only on what came before; by Ville's
inequality it ever reaches 1/α with probability at most α. So a wealth of 1/α refutes the doubt at level α.

This needs nothing but independent examples: losses may be 0/1 or anything in [0, 1], errors may be rare, and for a
relative tolerance no separate bound on the best version's error is needed, since e − (1 + τ)·b is tested as it is.
The λᵢ do not depend on τ, so the wealth grows with τ and one search finds the least tolerance that can be claimed.
"""

from __future__ import annotations

import numpy as np

from slotool.rules.base import ToleranceKind

BISECTIONS = 30
# Beyond these nothing is claimed: an error can be no more than 1 point, and 100 times the best version's, worse.
LARGEST = {"absolute": 1.0, "relative": 100.0}


def degradation_bound(
    error: np.ndarray,
    best_error: np.ndarray,
    alpha: float,
    kind: ToleranceKind,
    second_moment: np.ndarray,
    weight: float,
) -> np.ndarray:
    """The least tolerance each candidate is shown to keep at level ``alpha``: float64 [candidates], ≥ 0, or infinity.

    ``error``: float64 [examples, candidates] in [0, 1], ``best_error``: float64 [examples] in [0, 1], the examples
    independent and in an order that does not depend on them. ``second_moment`` [candidates]: a guess of
    E[(e − b)²] made without these examples, worth ``weight`` of them; it steers the stakes, not the validity.
    """
    stakes = _stakes(error - best_error[:, None], alpha, second_moment, weight)
    least, most = np.zeros(error.shape[1]), np.full(error.shape[1], LARGEST[kind])
    hopeless = ~_refuted(most, error, best_error, stakes, alpha, kind)
    at_zero = _refuted(least, error, best_error, stakes, alpha, kind)
    for _ in range(BISECTIONS):
        middle = (least + most) / 2
        shown = _refuted(middle, error, best_error, stakes, alpha, kind)
        least, most = np.where(shown, least, middle), np.where(shown, middle, most)
    return np.where(at_zero, 0.0, np.where(hopeless, np.inf, most))


def examples_to_show(margin: np.ndarray, second_moment: np.ndarray, alpha: float) -> np.ndarray:
    """About how many examples a bound at level ``alpha`` needs to be within ``margin`` > 0 (points) of the mean."""
    return np.log(1.0 / alpha) * (2.0 * second_moment / margin**2 + 2.0 / (3.0 * margin))


def expected_width(second_moment: np.ndarray, alpha: float, examples: int) -> np.ndarray:
    """About how far above the mean a bound from so many examples lies; the inverse of ``examples_to_show``."""
    doubt = np.log(1.0 / alpha) / max(1, examples)
    return doubt / 3.0 + np.sqrt((doubt / 3.0) ** 2 + 2.0 * doubt * second_moment)


def _stakes(difference: np.ndarray, alpha: float, second_moment: np.ndarray, weight: float) -> np.ndarray:
    """λ [examples, candidates]: the stake that would be best if the differences' second moment were as seen so far."""
    examples = len(difference)
    before = np.cumsum(difference**2, axis=0) - difference**2
    seen = (weight * second_moment + before) / (weight + np.arange(examples)[:, None])
    x = np.sqrt(2.0 * np.log(1.0 / alpha) / (examples * seen))
    # x is the best stake while small; kept below 1, so that one bad example never costs the whole wealth.
    return np.minimum(np.tanh(x), 0.99)


def _refuted(
    tolerance: np.ndarray,
    error: np.ndarray,
    best_error: np.ndarray,
    stakes: np.ndarray,
    alpha: float,
    kind: ToleranceKind,
) -> np.ndarray:
    allowed = tolerance if kind == "absolute" else tolerance * best_error[:, None]
    log_wealth = np.cumsum(np.log1p(stakes * (allowed + best_error[:, None] - error)), axis=0)
    return np.asarray(log_wealth.max(axis=0) >= np.log(1.0 / alpha))
