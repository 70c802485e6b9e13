"""Encodings: operator graphs as the fixed-width numbers that a learner takes, one by one or many in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import WITHOUT_MEMORY, OperatorGraph
from slotool.graphs.operators import OPERATORS, Operator, Shape, channel_axis

# Vector units compute channels in groups of this many: 17 cost what 32 do.
LANES = 16
# Work and sizes of an operator of any type.
MEASURES = (
    "flops",
    "padded_flops",
    "weight_bytes",
    "input_bytes",
    "output_bytes",
    "channels_in",
    "channels_out",
    "positions",
    "kernel",
    "stride",
    "activated",
)


@dataclass(frozen=True)
class FlatEncoding:
    """The paper's: attribute list (one-hot operator type, number of weights) and adjacency matrix, flattened.

    It is fixed at training; its state is a JSON document.
    A row holds, padded with zeros to ``nodes`` operators in topological order: the one-hot types, node after node,
    ``operator_types`` and one slot for every other type; the weight counts; the adjacency matrix, row = source.
    Source: inference-latency-prediction, 3.1 and 4.1.
    """

    name: ClassVar[str] = "flat"

    operator_types: tuple[str, ...]
    nodes: int

    @classmethod
    def fit(cls, graphs: Sequence[OperatorGraph]) -> Self:
        """Return the encoding that these graphs need. Raises ``GraphError`` when there are none."""
        if not graphs:
            raise GraphError("no graphs to fit an encoding to")
        types = {operator.op for graph in graphs for operator in graph.operators}
        return cls(tuple(sorted(types)), max(len(graph.operators) for graph in graphs))

    @property
    def width(self) -> int:
        return self.nodes * (len(self.operator_types) + 1) + self.nodes + self.nodes**2

    @property
    def weight_columns(self) -> slice:
        """Columns of the weight counts, which have to be scaled for training."""
        start = self.nodes * (len(self.operator_types) + 1)
        return slice(start, start + self.nodes)

    def transform(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """Return float32 [n, width], ignoring operators' names. Raises ``GraphError`` for a graph that does not fit."""
        rows = np.zeros((len(graphs), self.width), dtype=np.float32)
        slots = len(self.operator_types) + 1
        slot = {op: i for i, op in enumerate(self.operator_types)}
        weights_at, edges_at = self.weight_columns.start, self.weight_columns.stop
        for row, graph in zip(rows, graphs, strict=True):
            self._require_room(graph)
            position = {operator.name: i for i, operator in enumerate(graph.operators)}
            for i, operator in enumerate(graph.operators):
                row[i * slots + slot.get(operator.op, slots - 1)] = 1
                row[weights_at + i] = operator.weights
                for source in operator.inputs:
                    row[edges_at + position[source] * self.nodes + i] = 1
        return rows

    def state(self) -> dict[str, Any]:
        return {"name": self.name, "operator_types": list(self.operator_types), "nodes": self.nodes}

    @classmethod
    def from_state(cls, document: Mapping[str, Any]) -> Self:
        return cls(tuple(document["operator_types"]), int(document["nodes"]))

    def _require_room(self, graph: OperatorGraph) -> None:
        if len(graph.operators) > self.nodes:
            raise GraphError(
                f"graph {graph.id} has {len(graph.operators)} operators, "
                f"but the encoding holds {self.nodes}, the most that a training graph had"
            )


def operator_measures(graph: OperatorGraph) -> np.ndarray:
    """Return ``MEASURES`` of all operators per example, float64 [operators, measures], cached and read-only.

    A missing measure counts as 0 bytes or a size of 1. For many graphs at once: ``OperatorArrays``.
    """
    cached: np.ndarray | None = vars(graph).get(_CACHE_KEY)
    if cached is None:
        cached = np.array([measures_of(operator) for operator in graph.operators], dtype=np.float64)
        cached.setflags(write=False)
        # Cached as by functools.cached_property.
        vars(graph)[_CACHE_KEY] = cached
    return cached


_CACHE_KEY = "operator_measures"


def measures_of(operator: Operator) -> tuple[float, ...]:
    """Return ``MEASURES`` of one operator, which keeps them: networks of a kind share most of theirs."""
    if operator.measures is None:
        # The only late attribute; a dictionary per operator would be another million objects to collect.
        object.__setattr__(operator, "measures", _of_operator(operator))
    return operator.measures or ()


def feature_axis(op: str, shape: Shape) -> int:
    """Return the axis of features in an input or output: the last, but the first (channels) of an image.

    A Dense layer's is the last in any case.
    """
    axis = OPERATORS[op].feature_axis if op in OPERATORS else None
    return channel_axis(shape) if axis is None else axis % len(shape)


def _of_operator(operator: Operator) -> tuple[float, ...]:
    inputs = operator.input_shapes
    channels_in = inputs[0][feature_axis(operator.op, inputs[0])] if inputs and inputs[0] else 1
    channels_out = operator.shape[feature_axis(operator.op, operator.shape)] if operator.shape else 1
    padded = float(operator.flops)
    if operator.weights and inputs:
        padded *= lane_padding(channels_in) * lane_padding(channels_out)
    attributes, is_view = operator.attributes, operator.op in WITHOUT_MEMORY
    return (
        float(operator.flops),
        padded,
        float(operator.weight_bytes),
        0.0 if is_view else _read_bytes(operator, inputs),
        0.0 if is_view else float(operator.output_bytes),
        float(channels_in),
        float(channels_out),
        float(math.prod(operator.shape) // channels_out),
        _area(attributes, "kernel"),
        _area(attributes, "stride"),
        float("activation" in attributes),
    )


def _read_bytes(operator: Operator, inputs: Sequence[Shape]) -> float:
    """Return the inputs, and what a recurrent layer reads of its weights again at each step."""
    if operator.op in OPERATORS and OPERATORS[operator.op].reads_weights_again:
        return float(operator.moved_bytes - operator.output_bytes)
    return 4.0 * sum(math.prod(shape) for shape in inputs)


def lane_padding(channels: int) -> float:
    """Return the cost of computing so many channels over their cost without empty vector lanes."""
    return -(-channels // LANES) * LANES / channels


def _area(attributes: Mapping[str, Any], name: str) -> float:
    """Return the area of a window given as 3 or (3, 5); 1 where there is none, or none of numbers."""
    value = attributes.get(name, 1)
    if type(value) is int and value > 0:
        return float(value * value)
    sides = (value, value) if isinstance(value, int) else value
    plain = isinstance(sides, (tuple, list)) and all(isinstance(side, int) and side > 0 for side in sides)
    return float(math.prod(sides)) if plain else 1.0


Computed = TypeVar("Computed")


class Batch(tuple[OperatorGraph, ...]):
    """Graphs for which several predictors share results, each computed once and kept with the batch."""

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> Batch:
        return graphs if isinstance(graphs, Batch) else cls(graphs)

    @cached_property
    def _computed(self) -> dict[Callable[..., Any], Any]:
        return {}


def once(graphs: Sequence[OperatorGraph], compute: Callable[[Sequence[OperatorGraph]], Computed]) -> Computed:
    """Return ``compute(graphs)``, cached for a ``Batch``; nobody changes the result.

    A method is a different one for each object.
    """
    if not isinstance(graphs, Batch):
        return compute(graphs)
    if compute not in graphs._computed:
        graphs._computed[compute] = compute(graphs)
    cached: Computed = graphs._computed[compute]
    return cached


@dataclass(frozen=True)
class OperatorArrays:
    """Arrays over n operators of g graphs, those of a graph adjacent and in order.

    Networks of a kind share most of their operators (``make_operator``), so Python inspects each of these once, and
    arrays do the rest. ``distinct``: each operator once; ``rows`` int64 [n]: index of each operator in it; ``sizes``
    int64 [g]: number of operators of each graph.
    """

    distinct: Sequence[Operator]
    rows: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, graphs: Sequence[OperatorGraph]) -> OperatorArrays:
        """Return the arrays of these graphs; of a ``Batch`` the same ones each time."""
        return once(graphs, cls._of)

    @classmethod
    def _of(cls, graphs: Sequence[OperatorGraph]) -> OperatorArrays:
        operators = list(chain.from_iterable(graph.operators for graph in graphs))
        # Compare by identity: comparing operators takes longer than inspecting one twice.
        ids = list(map(id, operators))
        distinct = dict(zip(ids, operators, strict=True))
        numbers = dict(zip(distinct, range(len(distinct)), strict=True))
        rows = np.fromiter(map(numbers.__getitem__, ids), np.int64, len(ids))
        sizes = np.fromiter((len(graph.operators) for graph in graphs), np.int64, len(graphs))
        return cls(list(distinct.values()), rows, sizes)

    def part(self, first: int, last: int) -> OperatorArrays:
        """Return the arrays of the graphs from ``first`` up to ``last``."""
        if (first, last) == (0, len(self.sizes)):
            return self
        start, stop = (int(self.sizes[:graph].sum()) for graph in (first, last))
        part = OperatorArrays(self.distinct, self.rows[start:stop], self.sizes[first:last])
        (source, target), (types, flat) = self.edges, self.types
        edges = slice(*np.searchsorted(target, (start, stop)).tolist())
        # Cached as by functools.cached_property.
        vars(part)["measures"] = self.measures[start:stop]
        vars(part)["types"] = types, flat[start:stop]
        vars(part)["edges"] = source[edges] - start, target[edges] - start
        return part

    def each(self, numbers: Sequence[int]) -> np.ndarray:
        """Return int64 [n]: numbers of the ``distinct`` operators as those of all."""
        return np.asarray(np.fromiter(numbers, np.int64, len(self.distinct))[self.rows])

    @cached_property
    def types(self) -> tuple[list[str], np.ndarray]:
        """``Operator.op`` of all, each once, and which of these each operator is of, int64 [n]."""
        numbers: dict[str, int] = {}
        flat = self.each([numbers.setdefault(operator.op, len(numbers)) for operator in self.distinct])
        return list(numbers), flat

    @cached_property
    def owners(self) -> np.ndarray:
        """Graph of each operator, int64 [n]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def measures(self) -> np.ndarray:
        """Measures of each operator, float64 [n, ``MEASURES``]: see ``operator_measures``."""
        types = chain.from_iterable(operator.measures or measures_of(operator) for operator in self.distinct)
        cached = np.fromiter(types, np.float64, len(MEASURES) * len(self.distinct))
        return np.asarray(cached.reshape(-1, len(MEASURES))[self.rows])

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Sources and targets, int64 [e], numbered through all graphs, ascending by target, then in input order."""
        numbers: dict[str, int] = {}
        called = self.each([numbers.setdefault(operator.name, len(numbers)) for operator in self.distinct])
        inputs_of = np.array(
            [numbers.setdefault(name, len(numbers)) for operator in self.distinct for name in operator.inputs],
            dtype=np.int64,
        )
        counts = np.array([len(operator.inputs) for operator in self.distinct], dtype=np.int64)
        many = counts[self.rows]
        target = np.repeat(np.arange(len(self.rows)), many)
        # Begin of each operator's inputs, and each input's offset from there.
        begins = (np.cumsum(counts) - counts)[self.rows]
        sources = inputs_of[np.arange(len(target)) + np.repeat(begins - (np.cumsum(many) - many), many)]
        # Most operators read the one before them; others are looked up in their graph.
        source = target - 1
        far = np.flatnonzero((called[source] != sources) | (self.owners[source] != self.owners[target]))
        if not len(far):
            return source, target
        keys = self.owners * len(numbers) + called
        order = np.argsort(keys, kind="stable")
        edge_keys = self.owners[target[far]] * len(numbers) + sources[far]
        source[far] = order[np.searchsorted(keys, edge_keys, sorter=order)]
        return source, target
