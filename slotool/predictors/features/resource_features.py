"""Resource features: how much compute and memory a network uses per second, whichever network it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import operator_measures
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.type_costs import operator_type

# An operator of fewer padded FLOPs takes less time than sharing it out over threads does.
SMALL_FLOPS = 2e6
# Logarithms of rates while alone: FLOPs, weight bytes, other bytes and operators per second; FLOPs per operator and per
# byte; and shares of the FLOPs, or of the operators.
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


def resource_features(colocations: Sequence[Colocation]) -> np.ndarray:
    """float64 [n, 2 × ``RESOURCE_FEATURES``]: those of the subject, then the mean of its co-runners."""
    totals: dict[str, np.ndarray] = {}
    for colocation in colocations:
        for graph in colocation.members:
            if graph.id not in totals:
                totals[graph.id] = _totals(graph)
    rows = np.empty((len(colocations), 2 * len(RESOURCE_FEATURES)))
    for row, colocation in zip(rows, colocations, strict=True):
        members = [
            _per_second(totals[g.id], solo_s) for g, solo_s in zip(colocation.members, colocation.solo_s, strict=True)
        ]
        row[: len(RESOURCE_FEATURES)] = members[0]
        row[len(RESOURCE_FEATURES) :] = np.mean(members[1:] or members[:1], axis=0)
    return rows


def fair_s(colocations: Sequence[Colocation]) -> np.ndarray:
    """Latency of each by fair sharing alone: solo latency × oversubscription, float64 seconds [n]."""
    return np.array([colocation.solo_s[0] * colocation.oversubscription for colocation in colocations])


def _totals(graph: OperatorGraph) -> np.ndarray:
    """``RESOURCE_FEATURES`` of a network whose solo latency is one second."""
    flops, padded, weights, read, written = operator_measures(graph)[:, :5].T
    types = [operator_type(operator) for operator in graph.operators]
    grouped = np.array(["groups" in kind or "Depthwise" in kind or "Separable" in kind for kind in types])
    pointwise = np.array(["1×1" in kind for kind in types])
    all_flops, moved = max(flops.sum(), 1.0), max((weights + read + written).sum(), 1.0)
    rates = [all_flops, max(weights.sum(), 1.0), max((read + written).sum(), 1.0), len(flops)]
    ratios = [all_flops / len(flops), all_flops / moved]
    shares = [flops[grouped].sum() / all_flops, flops[pointwise].sum() / all_flops, np.mean(padded < SMALL_FLOPS)]
    return np.concatenate([np.log(rates + ratios), shares])


def _per_second(totals: np.ndarray, solo_s: float) -> np.ndarray:
    features = totals.copy()
    features[:_RATES] -= np.log(solo_s)
    return features
