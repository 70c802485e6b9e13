"""The baseline of co-located latencies: linear regression of the logarithm on resource features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.predictors.base import COLOCATED, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.resource_features import RESOURCE_FEATURES, fair_s, resource_features

PENALTIES = tuple(10.0**power for power in range(-2, 5))


class RidgePredictor(Predictor[Colocation]):
    """latency = solo latency × oversubscription × e^(linear in resource features and in log(number of members)).

    The penalty on coefficients of standardised columns is that of least error over labels left out one by one, which
    has a closed form. Answers stay within the degradation that training had; dev set and seed play no part.
    """

    name = "ridge"
    fitted_to = (COLOCATED,)

    def fit(
        self,
        train: Examples[Colocation],
        dev: Examples[Colocation] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        from sklearn.linear_model import RidgeCV

        train.require("training")
        graphs, latency_s = train
        columns, target = _columns(graphs), np.log(latency_s / fair_s(graphs))
        deviation = columns.std(axis=0)
        self._mean, self._deviation = columns.mean(axis=0), np.where(deviation > 1e-6, deviation, 1.0)
        self._level, self._range = float(target.mean()), np.array([target.min(), target.max()])
        # Columns have mean 0, so the intercept is the mean of the target.
        found = RidgeCV(alphas=PENALTIES).fit(self._scaled(columns), target)
        self._coefficients = np.asarray(found.coef_, dtype=np.float64)
        if progress:
            progress("ridge: least squares")

    def predict(self, graphs: Sequence[Colocation]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        log_ratio = np.clip(self._level + self._scaled(_columns(graphs)) @ self._coefficients, *self._range)
        alone = np.array([len(colocation) == 1 for colocation in graphs])
        return fair_s(graphs) * np.exp(np.where(alone, 0.0, log_ratio))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        names = ("mean", "deviation", "range", "coefficients")
        return {name: getattr(self, f"_{name}") for name in names}, {
            "names": list(RESOURCE_FEATURES),
            "level": self._level,
        }

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["names"] != list(RESOURCE_FEATURES):
            raise InputError("the ridge predictor was trained with other resource features than this slotool has")
        restored = cls()
        restored._mean, restored._deviation = tensors["mean"], tensors["deviation"]
        restored._range, restored._coefficients = tensors["range"], tensors["coefficients"]
        restored._level = float(document["level"])
        return restored

    def _scaled(self, columns: np.ndarray) -> np.ndarray:
        return np.asarray((columns - self._mean) / self._deviation)


def _columns(colocations: Sequence[Colocation]) -> np.ndarray:
    """float64 [n, 2 × RESOURCE_FEATURES + 1]."""
    sizes = np.log([[float(len(colocation))] for colocation in colocations])
    return np.hstack([resource_features(colocations), sizes])
