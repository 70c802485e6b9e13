"""Limits of training data: ranges of co-locations, and the shortest time per operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.colocations import Colocation
from slotool.predictors.features.domain import inputs_of

Range = tuple[float, float]
# Predictions below this share of the lower limit are raised to it; smaller differences may be ordinary errors.
CLEARLY_BELOW = 0.5


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

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        return strict_json.convert(document, cls)

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


def raised(
    graphs: Sequence[OperatorGraph], latency_s: np.ndarray, min_operator_s: np.ndarray
) -> tuple[np.ndarray, list[str | None]]:
    """Raise latencies clearly below ``min_operator_s`` × operators; return all, and why raised ones have no interval.

    Both arrays are float64 seconds [n].
    """
    min_s = min_operator_s * _counts(graphs)
    below = latency_s < CLEARLY_BELOW * min_s
    return np.where(below, min_s, latency_s), [
        "predicted faster than any network among the labels it rests on, and raised to the least measured, "
        f"{1e6 * seconds:.3g} µs for each operator"
        if is_below
        else None
        for seconds, is_below in zip(min_operator_s.tolist(), below.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class Floor:
    """Lower limit of latency: ``min_operator_s``, the smallest seconds per operator, by kind of input (``inputs_of``).

    Networks of other inputs have none, since operators of image networks take at least twice as long as those of
    networks of vectors.
    """

    min_operator_s: Mapping[str, float]

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> Self:
        """Return the limit from labels, ``latency_s`` float64 seconds [n]."""
        shortest: dict[str, float] = {}
        for graph, seconds in zip(graphs, (latency_s / _counts(graphs)).tolist(), strict=True):
            shortest |= {kind: min(seconds, shortest.get(kind, seconds)) for kind in inputs_of([graph])}
        return cls(shortest)

    def adapted(self, labels: Examples[OperatorGraph]) -> Floor:
        """Return the limit lowered by labels of a new setting, for all kinds of input, since it may be faster."""
        shortest = float(np.min(labels.latency_s / _counts(labels.items)))
        return Floor({kind: min(seconds, shortest) for kind, seconds in self.min_operator_s.items()})

    def of_networks(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return the limit of each network, float64 seconds per operator [n], 0 for none."""
        kinds = map(inputs_of, ([graph] for graph in graphs))
        return np.array([min((self.min_operator_s.get(kind, 0.0) for kind in some), default=0.0) for some in kinds])

    def document(self) -> dict[str, float]:
        return dict(self.min_operator_s)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Restore from ``document``. Raises ``InputError`` for values that are no positive numbers."""
        min_operator_s = strict_json.convert(document, dict[str, float])
        if not all(np.isfinite(seconds) and seconds > 0 for seconds in min_operator_s.values()):
            raise InputError("the least seconds per operator are not numbers greater than 0")
        return cls(min_operator_s)


def _counts(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    return np.array([len(graph.operators) for graph in graphs], dtype=np.float64)
