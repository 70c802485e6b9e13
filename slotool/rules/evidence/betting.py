"""Evidence that a candidate keeps a tolerance, for losses of any kind: p-values by betting.

Waudby-Smith & Ramdas, arXiv 2010.09686; stakes as in STaR-Bets, arXiv 2505.22422. A bet
that a candidate keeps the tolerance τ stakes a share λᵢ of the wealth on each example. With
paired losses eᵢ (candidate) and bᵢ (best version) and what τ allows, aᵢ = τ (absolute) or τ·bᵢ (relative), an
example's excess is sᵢ = eᵢ − bᵢ − aᵢ ≤ 1, and the wealth ∏(1 − λᵢ sᵢ). If the tolerance is exceeded, E[sᵢ] ≥ 0, the
wealth is a non-negative supermartingale as long as λᵢ ∈ [0, 1] depends only on what came before; by Ville's
inequality it ever reaches w with probability at most 1/w. So one over the greatest wealth is a p-value, whatever the
stakes; stakes that aim at 1/α at the last example make it small where it matters. This needs nothing but independent
examples: losses may be 0/1 or anything in [0, 1], and for a relative tolerance no separate bound on the best
version's error is needed, since e − (1 + τ)·b is tested as it is.

Where losses are 0 or 1 and all examples are there at once, ``counting`` shows more.
"""

from __future__ import annotations

import numpy as np

from slotool.rules.evidence.losses import Comparison, excess_of

MAX_STAKE = 0.99
STAKES = tuple(0.5 / 2**power for power in range(7))  # of bets against a guarantee


def betting_p_value(
    error: np.ndarray,
    best_error: np.ndarray,
    tolerance: float,
    kind: Comparison,
    alpha: float,
    second_moment: float,
    weight: float,
) -> float:
    """Return the p-value against "the tolerance is exceeded", by stakes that aim at ``alpha``.

    ``error``, ``best_error``: float64 [examples] in [0, 1], of independent examples in an order that does not depend on
    them. ``second_moment`` > 0: an estimate of the mean squared excess from other examples, which counts as much as
    ``weight`` of these; it and ``alpha`` set the stakes and leave the test valid.
    """
    from slotool.rules.evidence.kernels import greatest_wealth

    excess = excess_of(error, best_error, tolerance, kind)
    return float(1.0 / greatest_wealth(excess, alpha, second_moment, weight, MAX_STAKE))


class Evidence:
    """Wealth of bets that the mean excess is above 0, updated part by part with constant memory.

    ``largest``: every excess is at least −``largest``. ``restarts``: a new bet starts at every request, for a guarantee
    that held at first; without them the whole wealth is staked from the beginning.
    """

    def __init__(self, largest: float, *, restarts: bool = True):
        self._stakes = np.array(STAKES) / max(1.0, largest)
        self._restarts = restarts
        self._wealth = np.zeros(len(STAKES)) if restarts else np.ones(len(STAKES))
        self.seen = 0

    def after(self, excess: np.ndarray) -> np.ndarray:
        """Return the wealth after each ``excess``: float64 [requests], at most 1, in the order of arrival."""
        from slotool.rules.evidence.kernels import doubting_wealth

        wealth = doubting_wealth(excess, self._stakes, self._restarts, self._wealth, self.seen)
        self.seen += len(excess)
        return np.asarray(wealth)


def evidence_against(excess: np.ndarray, largest: float, *, restarts: bool = True) -> np.ndarray:
    """Return the ``Evidence`` of all requests at once: float64 like ``excess``."""
    return Evidence(largest, restarts=restarts).after(excess)


def examples_to_show(margin: np.ndarray, second_moment: np.ndarray, alpha: float) -> np.ndarray:
    """Estimate the examples that a test at ``alpha`` needs to show a mean excess of −``margin`` < 0 (points)."""
    return np.log(1.0 / alpha) * (2.0 * second_moment / margin**2 + 2.0 / (3.0 * margin))
