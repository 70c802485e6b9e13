"""Few labels where kinds of networks differ: networks that spend their cost alike err alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.adapted import AdaptedPredictor
from slotool.predictors.base import NO_EXAMPLES, Document, Examples, Predictor, Tensors
from slotool.predictors.from_base import FromBase
from slotool.predictors.registry import from_nested_state, nested_state
from slotool.predictors.three_term import ThreeTermPredictor
from slotool.predictors.typecosts import Column, TypeCosts

# Of the Gaussian process over compositions, in logarithms of seconds but for the length, a Hellinger distance × √2.
DEVIATION, NOISE, LENGTH = 0.3, 0.05, 0.35
PARTS = ("adapted", "three_term")


class CompositionPredictor(FromBase):
    """latency = √(adapted × three-term) × e^r, where r is smooth in what share of its cost a network spends where.

    Two means that err differently: a base corrected by type, and three prices of the labels alone. r is a Gaussian
    process on what both leave of the labels; its kernel falls with the Hellinger distance of ``TypeCosts`` shares, so
    that the label of one EfficientNet corrects the others, and no label a network of another kind.
    """

    name = "composition"
    labels_taken = AdaptedPredictor.labels_taken

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        self._parts: tuple[Predictor[OperatorGraph], ...] = (AdaptedPredictor(self.source), ThreeTermPredictor())
        for part in self._parts:
            part.fit(train, NO_EXAMPLES, seed=0)
        costs = TypeCosts.of(graphs)
        self._columns, self._roots = costs.columns, roots_of(costs)
        known = DEVIATION**2 * alikeness(self._roots, self._roots) + NOISE**2 * np.eye(len(graphs))
        self._alpha = np.linalg.solve(known, np.log(latency_s) - self._mean(graphs))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        roots = roots_in(self._columns, TypeCosts.of(graphs))
        correction = DEVIATION**2 * alikeness(roots, self._roots) @ self._alpha
        return np.asarray(np.exp(self._mean(graphs) + correction))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The base is part of the adapted one, and not stored twice."""
        tensors, document = self._learnt()
        for name, part in zip(PARTS, self._parts, strict=True):
            own, document[name] = nested_state(part, f"{name}.")
            tensors |= own
        return tensors, document

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        adapted, three_term = (from_nested_state(tensors, document[name], f"{name}.") for name in PARTS)
        restored = cls(adapted.source if isinstance(adapted, AdaptedPredictor) else adapted)
        restored._parts = (adapted, three_term)
        restored._restore(tensors, document)
        return restored

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"roots": self._roots, "alpha": self._alpha}, {"columns": [list(column) for column in self._columns]}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._columns = tuple((str(term), str(kind)) for term, kind in document["columns"])
        self._roots, self._alpha = tensors["roots"], tensors["alpha"]

    def _mean(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float64 [n], log of seconds."""
        return np.asarray(np.mean([np.log(part.predict(graphs)) for part in self._parts], axis=0))


def roots_of(costs: TypeCosts) -> np.ndarray:
    """float64 [graphs, columns]: square roots of shares, whose products add up to 1 for networks alike."""
    return np.asarray(np.sqrt(costs.seconds / costs.total_s[:, None]))


def roots_in(columns: Sequence[Column], costs: TypeCosts) -> np.ndarray:
    """``roots_of`` in these columns; what lies in others makes a network unlike all that have these alone."""
    at = {column: i for i, column in enumerate(columns)}
    roots = np.zeros((len(costs.seconds), len(at)))
    for column, own in zip(costs.columns, roots_of(costs).T, strict=True):
        if column in at:
            roots[:, at[column]] = own
    return roots


def alikeness(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlation [first, second] of networks of these roots: squared exponential of √(2 − 2 Σ √(share × share))."""
    return np.asarray(np.exp(-np.maximum(1 - first @ second.T, 0.0) / LENGTH**2))
