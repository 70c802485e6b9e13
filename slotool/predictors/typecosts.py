"""What networks must do by a neutral roofline, apart for each type of operator: what a correction can take hold of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import operator_measures

# Rates of no machine in particular; a machine's own are found as corrections common to all types.
FLOPS_PER_SECOND = 2.5e11
BYTES_PER_SECOND = 1e10
SECONDS_PER_CALL = 5e-6
CALLS, FLOPS, BYTES = "calls", "flops", "bytes"
# Log corrections of a type's term: a part common to the term, one common to the type, one of its own (deviations).
COMMON_TO_TERM, COMMON_TO_TYPE, OWN = 1.0, 1.5, 1.0
Column = tuple[str, str]


@dataclass(frozen=True)
class TypeCosts:
    """``seconds``: float64 [graphs, columns], each column a term (calls, FLOPs or bytes) of a type of operator."""

    columns: tuple[Column, ...]
    seconds: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> TypeCosts:
        """Columns that are zero for all these graphs are left out."""
        rows = [_costs(graph) for graph in graphs]
        columns = sorted({column for row in rows for column in row})
        at = {column: i for i, column in enumerate(columns)}
        seconds = np.zeros((len(rows), len(columns)))
        for line, row in zip(seconds, rows, strict=True):
            for column, value in row.items():
                line[at[column]] = value
        return cls(tuple(columns), seconds)

    @property
    def total_s(self) -> np.ndarray:
        """float64 seconds > 0 [graphs]."""
        return np.asarray(self.seconds.sum(axis=1))

    def by_term(self) -> np.ndarray:
        """float64 seconds [graphs, 3]: calls, FLOPs and bytes of all types."""
        terms = [[column[0] == term for column in self.columns] for term in (CALLS, FLOPS, BYTES)]
        return np.asarray(self.seconds @ np.array(terms, dtype=np.float64).T)

    def take(self, rows: Sequence[int] | np.ndarray) -> TypeCosts:
        """The costs of these graphs."""
        return TypeCosts(self.columns, self.seconds[np.asarray(rows)])

    def shares(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares [graphs, columns] of Σ cost × e^w, and log(Σ cost × e^w ÷ Σ cost) [graphs]."""
        corrected = self.seconds * np.exp(w)
        total = corrected.sum(axis=1)
        return corrected / total[:, None], np.log(total / self.total_s)


def covariance(first: Sequence[Column], second: Sequence[Column]) -> np.ndarray:
    """Prior covariance [first, second] of the log corrections of columns."""
    terms, types = (
        np.equal.outer([column[i] for column in first], [column[i] for column in second]).reshape(
            len(first), len(second)
        )
        for i in (0, 1)
    )
    found = COMMON_TO_TERM**2 * terms + COMMON_TO_TYPE**2 * types + OWN**2 * (terms & types)
    return np.asarray(found, dtype=np.float64)


def operator_type(operator: Operator) -> str:
    """The type whose cost is corrected as one: a convolution of 1×1, of a window, and of groups are three."""
    attributes = operator.attributes
    if operator.op == "Activation":
        return _function(attributes.get("activation", ""))
    if "kernel" not in attributes or "filters" not in attributes:
        return operator.op
    if attributes.get("groups", 1) != 1:
        return f"{operator.op} of groups"
    sides = attributes["kernel"]
    return f"{operator.op} 1×1" if sides in (1, (1, 1), [1, 1]) else operator.op


def _function(name: object) -> str:
    return f"{name or 'linear'}()"


def _costs(graph: OperatorGraph) -> dict[Column, float]:
    costs: dict[Column, float] = {}
    for operator, measures in zip(graph.operators, operator_measures(graph).tolist(), strict=True):
        flops, _, weights, read, written = measures[:5]
        kind, function = operator_type(operator), operator.attributes.get("activation")
        terms = [
            ((CALLS, kind), SECONDS_PER_CALL),
            ((FLOPS, kind), flops / FLOPS_PER_SECOND),
            ((BYTES, kind), (weights + read + written) / BYTES_PER_SECOND),
        ]
        if function and operator.op != "Activation":
            # One that is an attribute of a layer passes over its output once more, or costs what its function does.
            terms.append(((BYTES, _function(function)), written / BYTES_PER_SECOND))
        for column, value in terms:
            if value > 0 and math.isfinite(value):
                costs[column] = costs.get(column, 0.0) + value
    return costs
