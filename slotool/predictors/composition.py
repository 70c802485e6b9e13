"""Few labels where kinds of networks differ: networks that spend their cost alike err alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.adapted import AdaptedPredictor
from slotool.predictors.base import FROM_OTHERS, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.registry import from_nested_state, nested_state
from slotool.predictors.three_term import ThreeTermPredictor
from slotool.predictors.typecosts import TypeCosts

# Of the Gaussian process over compositions, in logarithms of seconds but for the length, a Hellinger distance × √2.
DEVIATION, NOISE, LENGTH = 0.3, 0.05, 0.35
PARTS = ("adapted", "three_term")


class CompositionPredictor(Predictor[OperatorGraph]):
    """latency = √(adapted × three-term) × e^r, where r is smooth in what share of its cost a network spends where.

    Two means that err differently: a base corrected by type, and three prices of the labels alone. r is a Gaussian
    process on what both leave of the labels; its kernel falls with the Hellinger distance of ``TypeCosts`` shares, so
    that the label of one EfficientNet corrects the others, and no label a network of another kind. Dev set and seed
    play no part.
    """

    name = "composition"
    fitted_to = (FROM_OTHERS,)

    def __init__(self, base: Predictor[OperatorGraph] | None = None):
        self.base = base

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """Raises ``InputError`` as ``AdaptedPredictor`` does."""
        train.require("training")
        graphs, latency_s = train
        if self.base is None:
            raise InputError("there is no predictor to adapt")
        adapted, three_term = AdaptedPredictor(self.base), ThreeTermPredictor()
        adapted.fit(train, seed=seed)
        three_term.fit(train, seed=seed)
        self._parts: tuple[Predictor[OperatorGraph], ...] = (adapted, three_term)
        costs = TypeCosts.of(graphs)
        self._columns, self._roots = costs.columns, _roots(costs)
        known = _kernel(self._roots, self._roots) + NOISE**2 * np.eye(len(graphs))
        self._alpha = np.linalg.solve(known, np.log(latency_s) - self._mean(graphs))
        if progress:
            progress(f"{self.name}: {self.base.name} and three terms, to {len(graphs)} labels")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        costs = TypeCosts.of(graphs)
        at = {column: i for i, column in enumerate(self._columns)}
        roots = np.zeros((len(graphs), len(at)))
        # What lies in columns that no label has makes a network unlike all of them.
        for column, own in zip(costs.columns, _roots(costs).T, strict=True):
            if column in at:
                roots[:, at[column]] = own
        correction = _kernel(roots, self._roots) @ self._alpha
        return np.asarray(np.exp(self._mean(graphs) + correction))

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray | None:
        """In the proportions that the base has."""
        found = self._parts[0].operator_seconds(item)
        return None if found is None else found * (self.predict([item])[0] / self._parts[0].predict([item])[0])

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {"roots": self._roots, "alpha": self._alpha}
        document: dict[str, Any] = {"columns": [list(column) for column in self._columns]}
        for name, part in zip(PARTS, self._parts, strict=True):
            own, document[name] = nested_state(part, f"{name}.")
            tensors |= own
        return tensors, document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        restored = cls()
        restored._parts = tuple(from_nested_state(tensors, document[name], f"{name}.") for name in PARTS)
        restored._columns = tuple((str(term), str(kind)) for term, kind in document["columns"])
        restored._roots, restored._alpha = tensors["roots"], tensors["alpha"]
        return restored

    def _mean(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float64 [n], log of seconds."""
        return np.asarray(np.mean([np.log(part.predict(graphs)) for part in self._parts], axis=0))


def _roots(costs: TypeCosts) -> np.ndarray:
    """float64 [graphs, columns]: square roots of shares, whose products add up to 1 for networks alike."""
    return np.asarray(np.sqrt(costs.seconds / costs.total_s[:, None]))


def _kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Covariance [first, second] of log seconds: squared exponential of √(2 − 2 Σ √(share × share))."""
    return np.asarray(DEVIATION**2 * np.exp(-np.maximum(1 - first @ second.T, 0.0) / LENGTH**2))
