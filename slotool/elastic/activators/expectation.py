"""Model-based estimate of the accuracy of each k: the probability that its best label is right.

Few held-out inputs are answered differently at a smaller k, and whether the full network is right on these few is
mostly chance. The observed loss is therefore off by more than the allowed loss, and the best of many thresholds is the
luckiest. The network's softmax, calibrated on held-out labels, has less variance. It is biased for rare labels, on
which the full network is right more often than its softmax says (tibkat-35k: 0.43 points observed, 0.25 expected; the
test split confirms the former). So the higher of both losses counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.activators.confidence import GridResults


@dataclass(frozen=True)
class Expectation:
    """Two isotonic regressions from the full network's softmax of a label to the probability that it is right:
    ``first`` for the full network's best labels, ``others`` for labels that a smaller k gives in their place."""

    first: Any
    others: Any

    @classmethod
    def learn(cls, results: GridResults, correct: np.ndarray) -> Expectation:
        """Fit to ``results`` and ``correct`` bool [n, shares + 1]. A label that several k give an input counts once."""
        labels, probability = results.labels, results.probability
        new = labels[:, :-1] != labels[:, -1:]
        new[:, 1:] &= labels[:, 1:-1] != labels[:, :-2]
        first = _isotonic(probability[:, -1], correct[:, -1])
        return cls(first, _isotonic(probability[:, :-1][new], correct[:, :-1][new]) if new.any() else first)

    def of(self, results: GridResults) -> np.ndarray:
        """float64 [n, shares + 1]: probability that each label is right. Over the inputs of ``learn`` its mean for the
        full network is the observed accuracy."""
        expected = np.repeat(self.first.predict(results.probability[:, -1])[:, None], results.labels.shape[1], axis=1)
        other = results.labels != results.labels[:, -1:]
        if other.any():
            expected[other] = self.others.predict(results.probability[other])
        return expected


def _isotonic(probability: np.ndarray, correct: np.ndarray) -> Any:
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(probability.astype(np.float64), correct.astype(np.float64))
