"""Baseline that adds up prices of each operator's work on a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import OperatorArrays
from slotool.predictors.base import NO_EXAMPLES, Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.network_features import relative_prices

# Bytes of weights have tiers of prices, as they come from ever slower memory: up to 1 MiB, up to 32 MiB, beyond.
CACHE_TIERS = (1 << 20, 1 << 25)
ADDITIVE_TERMS = ("calls", "flops", "padded_flops", "moved_bytes", "tier_0_bytes", "tier_1_bytes", "tier_2_bytes")


class AdditivePredictor(Predictor[OperatorGraph]):
    """Sum over operators of prices per operator type × ``ADDITIVE_TERMS``, plus a constant; no price is negative.

    Prices minimise the squared relative error over the training set (non-negative least squares), so a network of a
    microsecond counts as much as one of a second. Networks may be of any depth; an operator type that training did not
    have costs nothing, which ``TrainedPredictor`` reports.
    """

    name = "additive"

    def fit(self, train: Labels, dev: Labels = NO_EXAMPLES, *, seed: int = 0, progress: Progress | None = None) -> None:
        train.require("training")
        graphs, latency_s = train
        self._types = sorted({operator.op for graph in graphs for operator in graph.operators})
        self._prices = relative_prices(self._terms(graphs), latency_s)
        self._floor_s = float(np.min(latency_s))
        if progress:
            progress("additive: non-negative least squares")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        predicted_s: np.ndarray = np.maximum(self._terms(graphs) @ self._prices, self._floor_s / 2)
        return predicted_s

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"prices": self._prices}, {"types": self._types, "terms": list(ADDITIVE_TERMS), "floor_s": self._floor_s}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["terms"] != list(ADDITIVE_TERMS):
            raise InputError("the additive predictor was trained with other terms than this slotool has")
        restored = cls()
        restored._types = strict_json.convert(document["types"], list[str])
        restored._floor_s, restored._prices = float(document["floor_s"]), tensors["prices"]
        return restored

    def _terms(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return the constant, then each type's ``ADDITIVE_TERMS`` summed over the graph, float64 [n, …]."""
        operators = OperatorArrays.of(graphs)
        at = {op: i for i, op in enumerate(self._types)}
        kinds = operators.each([at.get(operator.op, -1) for operator in operators.distinct])
        has_type, width = kinds >= 0, len(self._types)
        flops, padded, weights, read, written = operators.measures[:, :5].T
        tiers = np.diff(np.minimum(weights[:, None], [0, *CACHE_TIERS, np.inf]), axis=1).T
        cells = (operators.owners * width + kinds)[has_type]
        terms = (np.ones(len(flops)), flops, padded, read + written, *tiers)
        sums = [np.bincount(cells, term[has_type], len(graphs) * width) for term in terms]
        return np.column_stack([np.ones(len(graphs)), np.stack(sums, axis=1).reshape(len(graphs), -1)])
