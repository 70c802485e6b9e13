"""How often a first label is right, estimated from its probability: a model-based estimate of what a smaller k loses.

Of the inputs that a smaller k answers otherwise than the full network, few are held out, and whether the full network
was right on these few is mostly chance: the loss counted is off by more than what is allowed, and the best of many
thresholds is the luckiest. The network's own softmax, made true by held-out labels, says how much is lost on each with
less chance in it. Not alone: where a label is rare the full network is right more often than its softmax says
(tibkat-35k: counted 0.43 points where 0.25 are expected, and test inputs bear out the former). The higher loss counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.elastic.activators.confidence import GridResults


@dataclass(frozen=True)
class Expectation:
    """Two isotonic regressions of being right on the full softmax's probability of the label: of labels that are
    ``first`` there, and of ``others``, which a smaller k put in their place."""

    first: Any
    others: Any

    @classmethod
    def learn(cls, results: GridResults, correct: np.ndarray) -> Expectation:
        """From n inputs and ``correct`` bool [n, shares + 1]; a label that several k give an input counts once."""
        labels, probability = results.labels, results.probability
        new = labels[:, :-1] != labels[:, -1:]
        new[:, 1:] &= labels[:, 1:-1] != labels[:, :-2]
        first = _isotonic(probability[:, -1], correct[:, -1])
        return cls(first, _isotonic(probability[:, :-1][new], correct[:, :-1][new]) if new.any() else first)

    def of(self, results: GridResults) -> np.ndarray:
        """float64 [n, shares + 1]: the chance that each label is right. Its mean over the inputs learnt from is, for
        the full network, the share that was right."""
        expected = np.repeat(self.first.predict(results.probability[:, -1])[:, None], results.labels.shape[1], axis=1)
        other = results.labels != results.labels[:, -1:]
        if other.any():
            expected[other] = self.others.predict(results.probability[other])
        return expected


def _isotonic(probability: np.ndarray, correct: np.ndarray) -> Any:
    from sklearn.isotonic import IsotonicRegression

    return IsotonicRegression(out_of_bounds="clip").fit(probability.astype(np.float64), correct.astype(np.float64))
