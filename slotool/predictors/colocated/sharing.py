"""Co-location as fair sharing of processors, corrected by a Gaussian process over resource features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

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
# More rows hardly help, and a fit takes the cube of them.
MAX_ROWS = 1500
# Prior deviations, in log: of the level, of its change with the number of members beyond fair sharing, of the linear
# part, and of the part that networks share whose features differ by ``REACH`` deviations or less.
LEVEL, GROWTH, LINEAR, NEAR, REACH = 1.0, 0.3, 0.05, 0.06, 0.15
MIN_NOISE = 0.005
_LINEAR = np.array([LINEAR / len(RESOURCE_FEATURES) ** 0.5] * 2 * len(RESOURCE_FEATURES) + [GROWTH])
_STATE = ("features", "sizes", "log_ratio", "noise")


class SharingPredictor(Predictor[Colocation]):
    """Latency = solo latency × oversubscription × e^g.

    All members' threads share the same cores, so each member gets 1 ÷ ``oversubscription`` of them; e^g, mostly below
    1, corrects for networks that do not keep their cores busy when alone. g is a Gaussian process: a level, a change
    with the number of members, a linear part by the resource features of the subject and the mean of its co-runners',
    and a part that subjects of nearly equal features share. Co-runners are pooled, so there may be any number in any
    order. Without co-runners the prediction is the solo latency.

    The spread is the deviation of log latency, a label's noise included, which leave-one-out errors give by the number
    of members. Dev set and seed play no part, except that the seed draws the rows where there are more than 1,500.
    """

    name = "sharing"
    fitted_to = (COLOCATED,)

    def fit(
        self,
        train: Examples[Colocation],
        dev: Examples[Colocation] = NO_EXAMPLES,
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        train.require("training")
        graphs, latency_s = train
        rows = np.arange(len(graphs))
        if len(rows) > MAX_ROWS:
            rows = np.sort(np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False))
        colocations = [graphs[int(i)] for i in rows]
        features, sizes = resource_features(colocations), _sizes(colocations)
        self._learn(features, sizes, np.log(latency_s[rows] / fair_s(colocations)))
        if progress:
            progress("sharing: Gaussian process")

    def _learn(
        self, features: np.ndarray, sizes: np.ndarray, log_ratio: np.ndarray, noise: np.ndarray | None = None
    ) -> None:
        """Learn from features [n, 18], numbers of members [n], and log(latency ÷ latency by fair sharing) [n].

        ``noise``: deviation of a label by the number of members, ascending; None to estimate it.
        """
        self._features, self._sizes, self._log_ratio = features, sizes, log_ratio
        self._known_sizes, deviation = np.unique(sizes), features.std(axis=0)
        self._mean, self._deviation = features.mean(axis=0), np.where(deviation > 1e-6, deviation, 1.0)
        self._middle = float(log_ratio.mean())
        self._columns = self._scaled(features, sizes)
        kernel, off = self._kernel(self._columns), log_ratio - self._middle

        def inverse(noise: np.ndarray) -> np.ndarray:
            return np.linalg.inv(kernel + np.diag(self._noise_of(sizes, noise) ** 2))

        def by_size(errors: np.ndarray) -> np.ndarray:
            return np.array([max(np.sqrt(np.mean(errors[sizes == n] ** 2)), MIN_NOISE) for n in self._known_sizes])

        # Small matrices gain nothing from more threads and lose much on a busy machine.
        with threadpool_limits(1):
            if noise is None:
                before = inverse(by_size(off / 2))
                noise = by_size(before @ off / np.diag(before))
            self._noise, self._inverse = noise, inverse(noise)
        self._weights = self._inverse @ off

    def predict(self, graphs: Sequence[Colocation]) -> np.ndarray:
        return self.predict_and_spread(graphs)[0]

    def predict_and_spread(self, graphs: Sequence[Colocation]) -> tuple[np.ndarray, np.ndarray]:
        if not graphs:
            return np.empty(0), np.empty(0)
        sizes = _sizes(graphs)
        columns = self._scaled(resource_features(graphs), sizes)
        across = self._kernel(columns)
        before = LEVEL**2 + NEAR**2 + np.sum((columns * _LINEAR) ** 2, axis=1)
        variance = np.maximum(before - np.sum(across @ self._inverse * across, axis=1), 0.0)
        log_ratio = np.where(sizes > 1, self._middle + across @ self._weights, 0.0)
        return fair_s(graphs) * np.exp(log_ratio), np.sqrt(variance + self._noise_of(sizes, self._noise) ** 2)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {name: getattr(self, f"_{name}") for name in _STATE}, {"names": list(RESOURCE_FEATURES)}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["names"] != list(RESOURCE_FEATURES):
            raise InputError("the sharing predictor was trained with other resource features than this slotool has")
        features, sizes, log_ratio, noise = learnt = [tensors.get(name, np.empty(0)) for name in _STATE]
        n = len(sizes)
        shapes = [(n, 2 * len(RESOURCE_FEATURES)), (n,), (n,), np.unique(sizes).shape]
        if not n or [each.shape for each in learnt] != shapes or not (noise > 0).all():
            raise InputError("the sharing predictor's arrays do not fit each other: train it again")
        restored = cls()
        restored._learn(features, sizes, log_ratio, noise)
        return restored

    def _scaled(self, features: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return scaled features, and the log of the number of members, 0 for pairs and 1 for trios, [n, 19]."""
        return np.column_stack([(features - self._mean) / self._deviation, np.log(sizes / 2) / np.log(1.5)])

    def _kernel(self, columns: np.ndarray) -> np.ndarray:
        """Return covariances of co-locations with those learnt, float64 [n, m]."""
        near = [*range(len(RESOURCE_FEATURES)), -1]
        apart = cdist(columns[:, near], self._columns[:, near], "sqeuclidean") / len(RESOURCE_FEATURES)
        linear = LEVEL**2 + (columns * _LINEAR) @ (self._columns * _LINEAR).T
        return np.asarray(linear + NEAR**2 * np.exp(-apart / (2 * REACH**2)))

    def _noise_of(self, sizes: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the deviation of a label by number of members; of an unknown number, that of the next smaller one."""
        return noise[np.clip(np.searchsorted(self._known_sizes, sizes, side="right") - 1, 0, len(noise) - 1)]


def _sizes(colocations: Sequence[Colocation]) -> np.ndarray:
    return np.array([len(colocation) for colocation in colocations])


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
