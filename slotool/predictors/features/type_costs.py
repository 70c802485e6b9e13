"""Cost of networks on a neutral roofline by type of operator, for predictors to correct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import MEASURES, OperatorArrays, once, operator_measures
from slotool.graphs.operators import BYTES_PER_VALUE

# Rates of no machine in particular; those of a machine appear as corrections common to all types.
FLOPS_PER_SECOND = 2.5e11
BYTES_PER_SECOND = 1e10
SECONDS_PER_CALL = 5e-6
CALLS, FLOPS, BYTES = "calls", "flops", "bytes"
COST_TERMS = (CALLS, FLOPS, BYTES)
# Log corrections of a type's term: a part common to the term, one common to the type, one of its own (deviations).
COMMON_TO_TERM, COMMON_TO_TYPE, TYPE_ALONE = 1.0, 1.5, 1.0
Column = tuple[str, str]
# Log of the price of a type's calls, FLOPs and bytes.
Prices = tuple[float, float, float]


@dataclass(frozen=True)
class OperatorRows:
    """Measures of n operators of g graphs, those of a graph side by side.

    ``owners`` int64 [n]: the graph of each. ``types``: of operators, and of functions that are an attribute of one;
    ``kinds`` int64 [n]: the type of each; ``functions`` int64 [n]: the function it applies, -1 for none. ``flops``,
    ``moved`` (bytes of weights, inputs and outputs), ``written`` (bytes), ``weights``, ``values`` (of the output) and
    ``calls`` (kernels one after the other): float64 [n].
    """

    graphs: int
    owners: np.ndarray
    types: tuple[str, ...]
    kinds: np.ndarray
    functions: np.ndarray
    flops: np.ndarray
    moved: np.ndarray
    written: np.ndarray
    weights: np.ndarray
    values: np.ndarray
    calls: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> OperatorRows:
        """Return the rows of ``graphs``; those of a ``Batch`` are computed once."""
        return once(graphs, cls._of)

    @classmethod
    def _of(cls, graphs: Sequence[OperatorGraph]) -> OperatorRows:
        operators = OperatorArrays.of(graphs)
        numbers: dict[str, int] = {}
        kinds, functions = [], []
        for operator in operators.distinct:
            kinds.append(numbers.setdefault(operator_type(operator), len(numbers)))
            name = operator.attributes.get("activation")
            applies = name and operator.op != "Activation"
            functions.append(numbers.setdefault(_function(name), len(numbers)) if applies else -1)
        measures = dict(zip(MEASURES, operators.measures.T, strict=True))
        return cls(
            graphs=len(graphs),
            owners=operators.owners,
            types=tuple(numbers),
            kinds=operators.each(kinds),
            functions=operators.each(functions),
            flops=measures["flops"],
            moved=measures["weight_bytes"] + measures["input_bytes"] + measures["output_bytes"],
            written=measures["output_bytes"],
            weights=measures["weight_bytes"] / BYTES_PER_VALUE,
            values=measures["channels_out"] * measures["positions"],
            calls=operators.each([operator.calls for operator in operators.distinct]).astype(np.float64),
        )

    @cached_property
    def terms_s(self) -> np.ndarray:
        """Seconds of ``COST_TERMS`` on the neutral roofline, without the function, float64 [n, 3]."""
        rates = (SECONDS_PER_CALL * self.calls, self.flops / FLOPS_PER_SECOND, self.moved / BYTES_PER_SECOND)
        return np.column_stack(rates)

    @cached_property
    def cost_s(self) -> np.ndarray:
        """Sum of ``terms_s``, float64 seconds > 0 [n]."""
        return np.asarray(self.terms_s.sum(axis=1))

    def summed(self, numbers: np.ndarray) -> np.ndarray:
        """Return the sum over the operators of each graph, float64 [g]."""
        return np.bincount(self.owners, numbers, self.graphs)

    def by_type(self, seconds: np.ndarray) -> np.ndarray:
        """Return the sum over the operators of each graph and type, float64 [g, types]."""
        return self._by(self.kinds, self.owners, seconds)

    def of_functions(self) -> np.ndarray:
        """Return the cost of functions that are an attribute of a layer, a pass over its output, float64 [g, types]."""
        applied = self.functions >= 0
        return self._by(self.functions[applied], self.owners[applied], self.written[applied] / BYTES_PER_SECOND)

    def _by(self, kinds: np.ndarray, owners: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        width = len(self.types)
        return np.bincount(owners * width + kinds, seconds, self.graphs * width).reshape(self.graphs, width)


@dataclass(frozen=True)
class TypeCosts:
    """Costs of networks: ``seconds``, float64 [graphs, columns], a column for each term and type of operator."""

    columns: tuple[Column, ...]
    seconds: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> TypeCosts:
        """Return the costs of ``graphs``, without columns that are zero for all of them."""
        return once(graphs, cls._of)

    @classmethod
    def _of(cls, graphs: Sequence[OperatorGraph]) -> TypeCosts:
        rows = OperatorRows.of(graphs)
        calls, flops, moved = (rows.by_type(seconds) for seconds in rows.terms_s.T)
        seconds = np.hstack([calls, flops, moved + rows.of_functions()])
        columns = list(product(COST_TERMS, rows.types))
        used = sorted(np.flatnonzero(seconds.any(axis=0)).tolist(), key=columns.__getitem__)
        return cls(tuple(columns[i] for i in used), np.ascontiguousarray(seconds[:, used]))

    @property
    def total_s(self) -> np.ndarray:
        """Cost of each graph, float64 seconds > 0 [graphs]."""
        return np.asarray(self.seconds.sum(axis=1))

    def by_term(self) -> np.ndarray:
        """Return the cost of calls, FLOPs and bytes of all types, float64 seconds [graphs, 3]."""
        terms = [[column[0] == term for column in self.columns] for term in COST_TERMS]
        return np.asarray(self.seconds @ np.array(terms, dtype=np.float64).T)

    def priced_s(self, prices: Mapping[str, Prices]) -> np.ndarray:
        """Return ``seconds`` at log prices by type of operator (``price_of``)."""
        log_price = [price_of(kind, prices)[COST_TERMS.index(term)] for term, kind in self.columns]
        return np.asarray(self.seconds * np.exp(np.array(log_price)))

    def shared_by(self, prices: Mapping[str, Prices]) -> TypeCosts:
        """Return the same total costs, distributed over columns as at these prices; unchanged without prices."""
        if not prices:
            return self
        seconds = self.priced_s(prices)
        return TypeCosts(self.columns, seconds * (self.total_s / seconds.sum(axis=1))[:, None])

    def take(self, rows: Sequence[int] | np.ndarray) -> TypeCosts:
        return TypeCosts(self.columns, self.seconds[np.asarray(rows)])


def price_of(kind: str, prices: Mapping[str, Prices]) -> Prices:
    """Return the log price of a type of operator: that under "" for a type without any, 0 without prices."""
    return prices.get(kind) or prices.get("", (0.0, 0.0, 0.0))


def covariance(first: Sequence[Column], second: Sequence[Column]) -> np.ndarray:
    """Return the prior covariance of log prices of columns, float64 [first, second]."""
    prior = COMMON_TO_TERM**2 * _same(first, second, 0) + COMMON_TO_TYPE**2 * _same(first, second, 1)
    return np.asarray(prior + TYPE_ALONE**2 * same_columns(first, second), dtype=np.float64)


def same_columns(first: Sequence[Column], second: Sequence[Column]) -> np.ndarray:
    """Return which columns are the same, bool [first, second]."""
    return np.asarray(_same(first, second, 0) & _same(first, second, 1))


def _same(first: Sequence[Column], second: Sequence[Column], part: int) -> np.ndarray:
    pairs = ([column[part] for column in columns] for columns in (first, second))
    return np.asarray(np.equal.outer(*pairs), dtype=bool).reshape(len(first), len(second))


def operator_type(operator: Operator) -> str:
    """Return the type that shares a correction: convolutions of 1×1, of a window, and of groups are three."""
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


def batch_cost_s(graph: OperatorGraph, batch_size: int) -> np.ndarray:
    """Return the cost of each operator on the neutral roofline for a batch, float64 seconds > 0 [operators]."""
    measures = operator_measures(graph)
    weights, moved = measures[:, 2], measures[:, 3] + measures[:, 4]
    per_example = measures[:, 0] / FLOPS_PER_SECOND + moved / BYTES_PER_SECOND
    calls = np.array([operator.calls for operator in graph.operators])
    return np.asarray(SECONDS_PER_CALL * calls + weights / BYTES_PER_SECOND + batch_size * per_example)
