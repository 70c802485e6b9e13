"""The three-term baseline: prices of a FLOP, of an operator and of an output element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import MEASURES, OperatorArrays, once
from slotool.predictors.base import NO_EXAMPLES, Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.network_features import relative_prices

MEASURED = ("flops", "channels_out", "positions")
THREE_TERMS = ("flops", "operators", "activation_elements")
# Predictions are at least this share of the shortest training latency, since prices may be zero.
MIN_SHARE = 1e-3


class ThreeTermPredictor(Predictor[OperatorGraph]):
    """latency = a · FLOPs + b · operators + c · elements of all outputs, with a, b, c ≥ 0 seconds.

    Least squares on relative errors. Three coefficients take ten labels; what more labels or a larger model add
    is measured against it. Dev set and seed play no part.
    """

    name = "three-term"

    def fit(self, train: Labels, dev: Labels = NO_EXAMPLES, *, seed: int = 0, progress: Progress | None = None) -> None:
        train.require("training")
        graphs, latency_s = train
        self._prices_s, self._min_s = fitted_terms(three_terms(graphs), latency_s)
        if progress:
            progress(f"{self.name}: non-negative least squares")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        return np.asarray(np.exp(priced_terms(three_terms(graphs), self._prices_s, self._min_s)))

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"prices_s": self._prices_s}, {"least_s": self._min_s}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        restored = cls()
        restored._prices_s, restored._min_s = tensors["prices_s"], float(document["least_s"])
        return restored


def fitted_terms(terms: np.ndarray, latency_s: np.ndarray) -> tuple[np.ndarray, float]:
    """Return prices of ``THREE_TERMS``, float64 seconds ≥ 0 [3], and the least prediction, in seconds."""
    return relative_prices(terms, latency_s), MIN_SHARE * float(latency_s.min())


def priced_terms(terms: np.ndarray, prices_s: np.ndarray, min_s: float) -> np.ndarray:
    """Return log(seconds) of ``terms``, float64 [n, 3], at these prices, float64 [n]."""
    return np.asarray(np.log(np.maximum(terms @ prices_s, min_s)))


def left_out_terms(terms: np.ndarray, latency_s: np.ndarray) -> np.ndarray:
    """Return log(seconds) of each of n ≥ 2 labels by three terms that are fitted to the others, float64 [n]."""
    fits = [fitted_terms(np.delete(terms, row, 0), np.delete(latency_s, row)) for row in range(len(terms))]
    return np.array([priced_terms(terms[[row]], *fit)[0] for row, fit in enumerate(fits)])


def three_terms(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Return ``THREE_TERMS``, float64 [n, 3]; of a ``Batch`` they are computed once."""
    return once(graphs, _summed_terms)


def _summed_terms(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    operators = OperatorArrays.of(graphs)
    flops, channels, positions = (operators.measures[:, MEASURES.index(name)] for name in MEASURED)
    summed = [np.bincount(operators.owners, amounts, len(graphs)) for amounts in (flops, channels * positions)]
    return np.column_stack([summed[0], operators.sizes, summed[1]]).astype(np.float64)
