"""What a network demands of the machine it shares: numbers that say nothing of which network it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.encodings import operator_measures
from slotool.predictors.companies import Company
from slotool.predictors.typecosts import operator_type

# An operator of fewer padded FLOPs takes less time than sharing it out over threads does.
SMALL_FLOPS = 2e6
# Logarithms of rates while alone: work, weights and other bytes, and operators a second; FLOPs per operator and per
# byte; and shares of the FLOPs, or of the operators.
DEMANDS = (
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


def demand_matrix(companies: Sequence[Company]) -> np.ndarray:
    """float64 [n, 2 × ``DEMANDS``]: those of the network asked about, then the mean of the others'."""
    totals: dict[str, np.ndarray] = {}
    for company in companies:
        for graph in company.members:
            if graph.id not in totals:
                totals[graph.id] = _totals(graph)
    rows = np.empty((len(companies), 2 * len(DEMANDS)))
    for row, company in zip(rows, companies, strict=True):
        members = [_per_second(totals[g.id], solo_s) for g, solo_s in zip(company.members, company.solo_s, strict=True)]
        row[: len(DEMANDS)] = members[0]
        row[len(DEMANDS) :] = np.mean(members[1:] or members[:1], axis=0)
    return rows


def fair_s(companies: Sequence[Company]) -> np.ndarray:
    """What sharing alone would make of each: solo latency × crowding, float64 seconds [n]."""
    return np.array([company.solo_s[0] * company.crowding for company in companies])


def _totals(graph: OperatorGraph) -> np.ndarray:
    """``DEMANDS`` with a second's latency."""
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
    demands = totals.copy()
    demands[:_RATES] -= np.log(solo_s)
    return demands
