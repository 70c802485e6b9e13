"""The plain baseline: a sum over operators, each paying for what a roofline says it must move and compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import lane_padding
from slotool.predictors.base import NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors

# Weight bytes are priced in tiers, as they come from ever slower memory: 1 MiB, 32 MiB, beyond.
CACHE_TIERS = (1 << 20, 1 << 25)
TERMS = ("calls", "flops", "padded_flops", "moved_bytes", "tier_0_bytes", "tier_1_bytes", "tier_2_bytes")


class AdditivePredictor(Predictor[OperatorGraph]):
    """Σ over operators of prices per operator type × ``TERMS``, plus a constant; no price is negative.

    Prices minimise the squared relative error over the training set (non-negative least squares), so a network of a
    microsecond counts as much as one of a second. It needs no room for the largest graph, so deep networks are no
    obstacle; an operator type never seen in training costs nothing, which ``TrainedPredictor`` reports.
    """

    name = "additive"

    def fit(
        self,
        train: Examples[OperatorGraph],
        dev: Examples[OperatorGraph] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        from scipy.optimize import nnls

        train.require("training")
        graphs, latency_s = train
        self._types = sorted({operator.op for graph in graphs for operator in graph.operators})
        terms = self._terms(graphs)
        # Columns differ by ten orders of magnitude; the solver wants them alike.
        scale = np.maximum(terms.max(axis=0), 1e-300)
        relative = terms / scale / latency_s[:, None]
        self._prices = nnls(relative, np.ones(len(graphs)))[0] / scale
        self._floor_s = float(np.min(latency_s))
        if progress:
            progress("additive: non-negative least squares")

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        predicted_s: np.ndarray = np.maximum(self._terms(graphs) @ self._prices, self._floor_s / 2)
        return predicted_s

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"prices": self._prices}, {"types": self._types, "terms": list(TERMS), "floor_s": self._floor_s}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["terms"] != list(TERMS):
            raise InputError("the additive predictor was trained with other terms than this slotool has")
        restored = cls()
        restored._types, restored._floor_s = (
            strict_json.convert(document["types"], list[str]),
            float(document["floor_s"]),
        )
        restored._prices = tensors["prices"]
        return restored

    def _terms(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float64 [n, 1 + types × terms]: the constant, then each operator type's terms summed over the graph."""
        column = {op: 1 + i * len(TERMS) for i, op in enumerate(self._types)}
        terms = np.zeros((len(graphs), 1 + len(column) * len(TERMS)))
        terms[:, 0] = 1.0
        for row, graph in zip(terms, graphs, strict=True):
            shapes = {operator.name: operator.shape for operator in graph.operators}
            for operator in graph.operators:
                if operator.op in column:
                    at = column[operator.op]
                    row[at : at + len(TERMS)] += _costs(operator, [shapes[name] for name in operator.inputs])
        return terms


def _costs(operator: Operator, inputs: Sequence[tuple[int, ...]]) -> tuple[float, ...]:
    """One operator's ``TERMS``, for one example."""
    padded = float(operator.flops)
    if operator.weights and inputs:
        padded *= lane_padding(inputs[0][0]) * lane_padding(operator.shape[0])
    moved = 4.0 * sum(math.prod(shape) for shape in inputs) + operator.output_bytes
    return (1.0, float(operator.flops), padded, moved, *_tiers(operator.weight_bytes))


def _tiers(weight_bytes: int) -> tuple[float, float, float]:
    first, second = CACHE_TIERS
    low, middle = min(weight_bytes, first), min(max(weight_bytes - first, 0), second - first)
    return float(low), float(middle), float(weight_bytes - low - middle)
