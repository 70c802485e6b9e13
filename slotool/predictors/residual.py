"""Few labels where a base is good already: what it is wrong by on networks that spend their cost alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Document, Examples, Predictor, Tensors
from slotool.predictors.composition import alikeness, roots_in, roots_of
from slotool.predictors.from_base import FromBase
from slotool.predictors.typecosts import TypeCosts

# Deviations of logarithms: of a shift of all networks, hardly any in the base's own setting and any in another; of what
# networks that spend their cost alike have in common; and of what is each network's own.
SHIFTS, DEVIATIONS, NOISES = (0.05, 2.0), (0.05, 0.1, 0.2), (0.03, 0.08)


class ResidualPredictor(FromBase):
    """latency = base × e^r, where r is a shift of all, and smooth in what share of its cost a network spends where.

    A Gaussian process on log(label ÷ base) that returns to no correction away from the labels: they change a base that
    is right already by little. Averaged over how large shift, likeness and noise are, each weighing as much as it makes
    the labels likely (``SHIFTS`` × ``DEVIATIONS`` × ``NOISES``).
    """

    name = "residual"

    def __init__(self, base: Predictor[OperatorGraph] | None = None):
        super().__init__(base)
        self._shift = 0.0

    def _learn(self, train: Examples[OperatorGraph]) -> None:
        graphs, latency_s = train
        costs = TypeCosts.of(graphs)
        self._columns, self._roots = costs.columns, roots_of(costs)
        residual = np.log(latency_s) - self.log_base(graphs)
        alike, one = alikeness(self._roots, self._roots), np.eye(len(graphs))
        solved, evidence = [], []
        for shift, deviation, noise in product(SHIFTS, DEVIATIONS, NOISES):
            covariance = shift**2 + deviation**2 * alike + noise**2 * one
            weights = np.linalg.solve(covariance, residual)
            evidence.append(-0.5 * residual @ weights - 0.5 * np.linalg.slogdet(covariance)[1])
            solved.append((shift**2 * weights.sum(), deviation**2 * weights))
        share = np.exp(np.array(evidence) - max(evidence))
        share /= share.sum()
        self._shift = float(sum(own * each for own, (each, _) in zip(share, solved, strict=True)))
        self._weights = np.asarray(sum(own * each for own, (_, each) in zip(share, solved, strict=True)))

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        alike = alikeness(roots_in(self._columns, TypeCosts.of(graphs)), self._roots)
        return np.asarray(np.exp(self.log_base(graphs) + self._shift + alike @ self._weights))

    def _learnt(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {"roots": self._roots, "weights": self._weights}
        return tensors, {"columns": [list(column) for column in self._columns], "shift": self._shift}

    def _restore(self, tensors: Tensors, document: Document) -> None:
        self._columns = tuple((str(term), str(kind)) for term, kind in document["columns"])
        self._roots, self._weights, self._shift = tensors["roots"], tensors["weights"], float(document["shift"])
