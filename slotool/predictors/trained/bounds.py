"""Limits of what a predictor was trained on: ranges of its networks, and the least that operators take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from slotool import strict_json
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples
from slotool.predictors.colocations import Colocation, members_of
from slotool.predictors.features.domain import inputs_of

Range = tuple[float, float]
# An answer below this share of what the operators take at least is raised to that; what is less clearly below may be an
# error like any other.
CLEARLY_BELOW = 0.5


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


def min_operator_seconds(operators: np.ndarray, latency_s: np.ndarray) -> float:
    """Seconds per operator as in no label less; both float64 [n]."""
    return float(np.min(latency_s / operators))


def raised(
    latency_s: np.ndarray, operators: np.ndarray, min_operator_s: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """``latency_s``, those clearly below ``min_operator_s`` times their operators as that; and which, bool [n]."""
    min_s = min_operator_s * operators
    below = latency_s < CLEARLY_BELOW * min_s
    return np.where(below, min_s, latency_s), below


def raised_in_words(where: str, min_operator_s: float) -> str:
    """Why there is no interval. ``where``: nothing less was measured, such as "on this device"."""
    return (
        f"predicted faster than any network measured {where}, and raised to the least measured, "
        f"{1e6 * min_operator_s:.3g} µs for each operator"
    )


@dataclass(frozen=True)
class Floor:
    """``min_operator_s``: by what networks take (``inputs_of``), seconds per operator as in no label less.

    Networks that take anything else have no floor: operators of image networks take twice as long, at the least, as
    those of networks of vectors on the same machine."""

    min_operator_s: Mapping[str, float]

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> Self:
        """What labels say, ``latency_s`` float64 [n]."""
        found: dict[str, float] = {}
        for graph, seconds in zip(graphs, (latency_s / _counts(graphs)).tolist(), strict=True):
            found |= {taken: min(seconds, found.get(taken, seconds)) for taken in inputs_of([graph])}
        return cls(found)

    def adapted(self, labels: Examples[OperatorGraph]) -> Floor:
        """With labels of a new setting. The least of all counts for whatever networks take, since the setting may be
        faster; alone they show too few networks of the smallest operators."""
        own = min_operator_seconds(_counts(labels.items), labels.latency_s)
        return Floor({taken: min(seconds, own) for taken, seconds in self.min_operator_s.items()})

    def raised(self, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> tuple[np.ndarray, list[str | None]]:
        """``latency_s``, those clearly below what their operators take as that; and why there is no interval, in words,
        None of all others."""
        own = np.array([min((self._of(taken) for taken in inputs_of([graph])), default=0.0) for graph in graphs])
        raised_s, below = raised(latency_s, _counts(graphs), own)
        where = "among the labels it rests on"
        pairs = zip(own.tolist(), below.tolist(), strict=True)
        return raised_s, [raised_in_words(where, seconds) if is_below else None for seconds, is_below in pairs]

    def _of(self, taken: str) -> float:
        return self.min_operator_s.get(taken, 0.0)

    def document(self) -> dict[str, float]:
        return dict(self.min_operator_s)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Raises ``InputError`` for what is no time."""
        found = strict_json.convert(document, dict[str, float])
        if not all(np.isfinite(seconds) and seconds > 0 for seconds in found.values()):
            raise InputError("the least seconds per operator are not numbers greater than 0")
        return cls(found)


def _counts(graphs: Sequence[OperatorGraph]) -> np.ndarray:
    """Operators of each network, float64 [n]."""
    return np.array([len(graph.operators) for graph in graphs], dtype=np.float64)
