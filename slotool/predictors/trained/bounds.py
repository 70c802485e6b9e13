"""Ranges of what a predictor was trained on, and in what another network or co-location lies outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.graphs import OperatorGraph
from slotool.predictors.colocations import Colocation, members_of

Range = tuple[float, float]


@dataclass(frozen=True)
class Bounds:
    """Ranges, least and most, of the networks a predictor was trained on, and the operator types they had.

    Of co-locations, every member's; ``members``: how many were co-located.
    """

    operators: Range
    weights: Range
    flops: Range
    latency_s: Range
    operator_types: tuple[str, ...]
    members: Range = (1.0, 1.0)

    @classmethod
    def of(cls, asked: Sequence[OperatorGraph | Colocation], latency_s: np.ndarray) -> Self:
        graphs = list({graph.id: graph for each in asked for graph in members_of(each)}.values())
        return cls(
            operators=_range([len(graph.operators) for graph in graphs]),
            weights=_range([graph.weights for graph in graphs]),
            flops=_range([graph.flops for graph in graphs]),
            latency_s=_range(latency_s),
            operator_types=tuple(sorted({operator.op for graph in graphs for operator in graph.operators})),
            members=_range([len(members_of(each)) for each in asked]),
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return strict_json.convert(document, cls)

    def wider(self, other: Bounds) -> Bounds:
        """What either holds."""
        names = ("operators", "weights", "flops", "latency_s", "members")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        ranges = {name: (min(a[0], b[0]), max(a[1], b[1])) for name, (a, b) in pairs.items()}
        return Bounds(operator_types=tuple(sorted({*self.operator_types, *other.operator_types})), **ranges)

    def outside(self, asked: OperatorGraph | Colocation, predicted_s: float) -> str | None:
        """In what a network, a member of a co-location, or the prediction lies outside; None when all lies inside."""
        members = members_of(asked)
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
