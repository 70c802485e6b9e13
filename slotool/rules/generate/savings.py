"""What a policy saves at least: a lower bound on the share, from examples that chose nothing.

The bounds are empirical Bernstein bounds (Maurer & Pontil, arXiv 0907.3740). They need a range that no value leaves:
here, that no version's answer takes less or more than the least and the most it took in the table.
"""

from __future__ import annotations

import numpy as np

from slotool.rules.policies.routing import RoutingPolicy
from slotool.tables import OutcomeTable


class Savings:
    """Lower bounds on shares of what the best version takes, of one column of the table: latency_s or cost.

    ``rows``: the examples that test. ``alpha``: with at most this probability one bound fails; half of it is for the
    best version's mean, which all bounds share, so ``share`` may be asked ``count`` times.
    """

    def __init__(self, outcomes: OutcomeTable, column: str, best: int, rows: np.ndarray, alpha: float, count: int):
        values = outcomes.matrix(column)
        self._names, self._rows = outcomes.versions, rows
        self._least, self._most = values.min(axis=0), values.max(axis=0)
        self._best, self._of_best = best, values[rows, best]
        self._alpha = 0.5 * alpha / max(1, count)
        width = bernstein_width(self._of_best, float(self._most[best] - self._least[best]), 0.5 * alpha)
        self._greatest_best = float(self._of_best.mean()) + width

    def share(self, policy: RoutingPolicy, taken: np.ndarray) -> float:
        """The least share saved by ``policy``; ``taken``: what it takes, float64 [examples], of all the table."""
        at = [self._names.index(version) for version in policy.versions]
        saved = self._of_best - taken[self._rows]
        span = self._most[self._best] - self._least[self._best] + self._most[at].sum() - self._least[at[0]]
        least = float(saved.mean()) - bernstein_width(saved, float(span), self._alpha)
        return max(0.0, least / self._greatest_best) if self._greatest_best > 0 else 0.0


def bernstein_width(values: np.ndarray, span: float, alpha: float) -> float:
    """How far, with probability ≥ 1 − ``alpha``, the expectation lies at most to one side of the mean of ``values``
    (float64 [examples], independent, within ``span`` of each other)."""
    count = len(values)
    if count < 2:
        return span
    doubt = np.log(2.0 / alpha)
    return float(np.sqrt(2.0 * values.var(ddof=1) * doubt / count) + 7.0 * span * doubt / (3.0 * (count - 1)))
