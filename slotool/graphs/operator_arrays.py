"""The operators of several graphs as arrays: what each must do, and the edges between them, in one pass over all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from slotool.graphs.encodings import MEASURES, measures_of
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import Operator

Computed = TypeVar("Computed")


class Batch(tuple[OperatorGraph, ...]):
    """Graphs of one question, of which several predictors compute the same things: each once, and kept as long as the
    batch."""

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> Batch:
        return graphs if isinstance(graphs, Batch) else cls(graphs)

    @cached_property
    def _computed(self) -> dict[Callable[..., Any], Any]:
        return {}


def once(graphs: Sequence[OperatorGraph], compute: Callable[[Sequence[OperatorGraph]], Computed]) -> Computed:
    """``compute(graphs)``: of a ``Batch`` computed when it is first asked for. A method is another one for each object
    that it is of; nobody changes what it returns."""
    if not isinstance(graphs, Batch):
        return compute(graphs)
    if compute not in graphs._computed:
        graphs._computed[compute] = compute(graphs)
    found: Computed = graphs._computed[compute]
    return found


@dataclass(frozen=True)
class OperatorArrays:
    """n operators of g graphs, those of a graph side by side in its order.

    Networks of a kind share most of their operators (``make_operator``), so Python looks at each of these once, and
    arrays do the rest. ``distinct``: each operator once; ``rows`` int64 [n]: which of them each is; ``sizes`` int64
    [g]: how many operators each graph has.
    """

    distinct: Sequence[Operator]
    rows: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> OperatorArrays:
        """Of a ``Batch`` the same ones each time."""
        return once(graphs, cls._of)

    @classmethod
    def _of(cls, graphs: Sequence[OperatorGraph]) -> OperatorArrays:
        operators = list(chain.from_iterable(graph.operators for graph in graphs))
        # By identity: comparing operators takes longer than looking at one twice.
        ids = list(map(id, operators))
        distinct = dict(zip(ids, operators, strict=True))
        numbers = dict(zip(distinct, range(len(distinct)), strict=True))
        rows = np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids))
        sizes = np.fromiter((len(graph.operators) for graph in graphs), np.int64, len(graphs))
        return cls(list(distinct.values()), rows, sizes)

    def part(self, first: int, last: int) -> OperatorArrays:
        """Those of the graphs from ``first`` up to ``last``."""
        if (first, last) == (0, len(self.sizes)):
            return self
        start, stop = (int(self.sizes[:graph].sum()) for graph in (first, last))
        part = OperatorArrays(self.distinct, self.rows[start:stop], self.sizes[first:last])
        (source, target), (types, own) = self.edges, self.types
        edges = slice(*np.searchsorted(target, (start, stop)).tolist())
        # As functools.cached_property keeps its value.
        vars(part)["measures"] = self.measures[start:stop]
        vars(part)["types"] = types, own[start:stop]
        vars(part)["edges"] = source[edges] - start, target[edges] - start
        return part

    def each(self, numbers: Sequence[int]) -> np.ndarray:
        """int64 [n]: numbers of the ``distinct`` operators as those of all."""
        return np.asarray(np.fromiter(numbers, np.int64, len(self.distinct))[self.rows])

    @cached_property
    def types(self) -> tuple[list[str], np.ndarray]:
        """``Operator.op`` of all, each once, and which of these each operator is of, int64 [n]."""
        numbers: dict[str, int] = {}
        own = self.each([numbers.setdefault(operator.op, len(numbers)) for operator in self.distinct])
        return list(numbers), own

    @cached_property
    def owners(self) -> np.ndarray:
        """int64 [n]: the graph of each."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def measures(self) -> np.ndarray:
        """float64 [n, ``MEASURES``]: see ``operator_measures``."""
        own = chain.from_iterable(operator.measures or measures_of(operator) for operator in self.distinct)
        found = np.fromiter(own, np.float64, len(MEASURES) * len(self.distinct))
        return np.asarray(found.reshape(-1, len(MEASURES))[self.rows])

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets, int64 [e], numbered through all graphs; targets ascend, and the sources of one stand in
        the order in which it takes them."""
        numbers: dict[str, int] = {}
        called = self.each([numbers.setdefault(operator.name, len(numbers)) for operator in self.distinct])
        taken = np.array(
            [numbers.setdefault(name, len(numbers)) for operator in self.distinct for name in operator.inputs],
            dtype=np.int64,
        )
        counts = np.array([len(operator.inputs) for operator in self.distinct], dtype=np.int64)
        many = counts[self.rows]
        target = np.repeat(np.arange(len(self.rows)), many)
        # Where the inputs of an operator begin among those taken, and how far each is from there.
        begins = (np.cumsum(counts) - counts)[self.rows]
        wanted = taken[np.arange(len(target)) + np.repeat(begins - (np.cumsum(many) - many), many)]
        # Most operators take what stands before them; the others are looked up among those of their graph.
        source = target - 1
        far = np.flatnonzero((called[source] != wanted) | (self.owners[source] != self.owners[target]))
        if not len(far):
            return source, target
        keys = self.owners * len(numbers) + called
        order = np.argsort(keys, kind="stable")
        asked = self.owners[target[far]] * len(numbers) + wanted[far]
        source[far] = order[np.searchsorted(keys, asked, sorter=order)]
        return source, target
