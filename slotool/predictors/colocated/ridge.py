"""Ridge regression of co-located latency on rates of compute and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import operator_measures
from slotool.predictors.base import COLOCATED, NO_EXAMPLES, Document, Examples, Predictor, Progress, Tensors
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.type_costs import operator_type

# An operator of fewer padded FLOPs takes less time than its division among threads.
SMALL_FLOPS = 2e6
# Logarithms of rates of the network alone, in amounts per second, and of ratios; shares of FLOPs, or of operators.
RESOURCE_FEATURES = (
    "flops_per_s",
    "weight_bytes_per_s",
    "moved_bytes_per_s",
    "operators_per_s",
    "flops_per_operator",
    "flops_per_byte",
    "grouped_flops",
    "pointwise_flops",
    "small_operators",
)
_RATES = 4
PENALTIES = tuple(10.0**power for power in range(-2, 5))


def resource_features(colocations: Sequence[Colocation]) -> np.ndarray:
    """Return ``RESOURCE_FEATURES`` of the subject, then their mean over co-runners, float64 [n, 2 × features]."""
    totals: dict[str, np.ndarray] = {}
    for colocation in colocations:
        for graph in colocation.members:
            if graph.id not in totals:
                totals[graph.id] = _totals(graph)
    rows = np.empty((len(colocations), 2 * len(RESOURCE_FEATURES)))
    for row, colocation in zip(rows, colocations, strict=True):
        members = np.array([totals[graph.id] for graph in colocation.members])
        members[:, :_RATES] -= np.log(colocation.solo_s)[:, None]
        row[: len(RESOURCE_FEATURES)] = members[0]
        row[len(RESOURCE_FEATURES) :] = np.mean(members[1:] if len(members) > 1 else members, axis=0)
    return rows


def fair_s(colocations: Sequence[Colocation]) -> np.ndarray:
    """Return latencies by fair sharing alone, solo latency × oversubscription, float64 seconds [n]."""
    return np.array([colocation.solo_s[0] * colocation.oversubscription for colocation in colocations])


def _totals(graph: OperatorGraph) -> np.ndarray:
    """Return ``RESOURCE_FEATURES`` of a network whose solo latency is one second."""
    flops, padded, weights, read, written = operator_measures(graph)[:, :5].T
    types = [operator_type(operator) for operator in graph.operators]
    grouped = np.array(["groups" in kind or "Depthwise" in kind or "Separable" in kind for kind in types])
    pointwise = np.array(["1×1" in kind for kind in types])
    all_flops, moved = max(flops.sum(), 1.0), max((weights + read + written).sum(), 1.0)
    rates = [all_flops, max(weights.sum(), 1.0), max((read + written).sum(), 1.0), len(flops)]
    ratios = [all_flops / len(flops), all_flops / moved]
    shares = [flops[grouped].sum() / all_flops, flops[pointwise].sum() / all_flops, np.mean(padded < SMALL_FLOPS)]
    return np.concatenate([np.log(rates + ratios), shares])


class RidgePredictor(Predictor[Colocation]):
    """Latency = solo latency × oversubscription × e^(linear in resource features and in log(number of members)).

    The penalty on coefficients of standardised columns is that of least error in leave-one-out validation, which has a
    closed form. Degradation is clipped to the training range; dev set and seed play no part.
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
        fitted = RidgeCV(alphas=PENALTIES).fit(self._scaled(columns), target)
        self._coefficients = np.asarray(fitted.coef_, dtype=np.float64)
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
    """Return resource features and log(number of members), float64 [n, 2 × ``RESOURCE_FEATURES`` + 1]."""
    sizes = np.log([[float(len(colocation))] for colocation in colocations])
    return np.hstack([resource_features(colocations), sizes])
