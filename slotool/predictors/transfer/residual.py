"""Few labels where a base is good already: what it is wrong by on networks that spend their cost alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Examples, Tensors
from slotool.predictors.transfer.from_base import FromBase
from slotool.predictors.transfer.similarity import Correction, Priors

# A shift of all networks is hardly any in the base's own setting, and any in another.
PRIORS = Priors(shifts=(0.05, 2.0), deviations=(0.05, 0.1, 0.2), slopes=(0.0,), noises=(0.03, 0.08))


class ResidualPredictor(FromBase):
    """latency = base × e^r, where r is a shift of all, and smooth in what share of its cost a network spends where.

    The ``Correction`` by log(label ÷ base) returns to none away from the labels: they change a base that is right
    already by little.
    """

    name = "residual"

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        self._correction = Correction.of(graphs, self.costs(graphs), np.log(latency_s) - self.log_base(graphs), PRIORS)

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        return np.asarray(np.exp(self.log_base(graphs) + self._correction(graphs, self.costs(graphs))))

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return self._correction.state()

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._correction = Correction.from_state(tensors, document)
