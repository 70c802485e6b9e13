"""Limits of training data of co-locations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool.predictors.colocations import Colocation

Range = tuple[float, float]


@dataclass(frozen=True)
class Bounds:
    """Ranges (least, most) of all members of co-locations, their operator types, and the number of ``members``."""

    operators: Range
    weights: Range
    flops: Range
    latency_s: Range
    operator_types: tuple[str, ...]
    members: Range = (1.0, 1.0)

    @classmethod
    def of(cls, items: Sequence[Colocation], latency_s: np.ndarray) -> Self:
        graphs = list({graph.id: graph for item in items for graph in item.members}.values())
        return cls(
            operators=_range([len(graph.operators) for graph in graphs]),
            weights=_range([graph.weights for graph in graphs]),
            flops=_range([graph.flops for graph in graphs]),
            latency_s=_range(latency_s),
            operator_types=tuple(sorted({operator.op for graph in graphs for operator in graph.operators})),
            members=_range([len(item) for item in items]),
        )

    def outside(self, item: Colocation, predicted_s: float) -> str | None:
        """Describe values of members or of the prediction outside the bounds; None if all are inside."""
        members = item.members
        types = {operator.op for graph in members for operator in graph.operators}
        unknown = sorted(types - set(self.operator_types))
        reasons = [f"operator type {', '.join(unknown)} was never seen"] if unknown else []
        for name, values, (low, high) in (
            ("operators", [len(graph.operators) for graph in members], self.operators),
            ("weights", [graph.weights for graph in members], self.weights),
            ("FLOPs", [graph.flops for graph in members], self.flops),
            ("co-located networks", [len(members)], self.members),
            ("predicted seconds", [predicted_s], self.latency_s),
        ):
            beyond = [value for value in values if not low <= value <= high]
            reasons += [f"{value:.4g} {name}, training had {low:.4g} to {high:.4g}" for value in beyond[:1]]
        return "; ".join(reasons) or None


def _range(values: Any) -> Range:
    return float(np.min(values)), float(np.max(values))
