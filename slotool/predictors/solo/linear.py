"""The paper's baseline: linear regression on the flattened encoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotool.predictors.base import Asked, Document, Progress, Tensors
from slotool.predictors.features.flat import FlatRegressor, Rows

# Smaller singular values, relative to the largest, count as 0: one-hot columns of a node sum to one, so columns always
# depend on each other.
RANK_TOLERANCE = 1e-6


class LinearPredictor(FlatRegressor[Asked]):
    """Ordinary least squares on plain weight counts: the solution of least norm, as scikit-learn's.

    Predictions are at least the least training label; the seed plays no part.
    Source: inference-latency-prediction, 4.1 and 4.2.
    """

    name = "linear"

    def _learn(self, train: Rows, dev: Rows, seed: int, progress: Progress) -> None:
        x, latency_s = train
        # Every feature has mean 0 in training, so the intercept is the mean label.
        self._intercept_s = float(np.mean(latency_s))
        self._coefficients = np.linalg.lstsq(x, latency_s - self._intercept_s, rcond=RANK_TOLERANCE)[0]
        progress("linear: least squares")

    def _answer(self, x: np.ndarray) -> np.ndarray:
        predicted_s: np.ndarray = x @ self._coefficients + self._intercept_s
        return predicted_s

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"coefficients": self._coefficients}, {"intercept_s": self._intercept_s}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._coefficients, self._intercept_s = tensors["coefficients"], float(document["intercept_s"])
