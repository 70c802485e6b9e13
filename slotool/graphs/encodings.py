"""Encodings: operator graphs as the fixed-width numbers that a learner takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import WITHOUT_MEMORY, OperatorGraph
from slotool.graphs.operators import OPERATORS, Operator, Shape, channel_axis

# Vector units compute channels in groups of this many: 17 cost what 32 do.
LANES = 16
# What an operator must do and how large it is, whatever its type.
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
        """The encoding that these graphs need. Raises ``GraphError`` when there are none."""
        if not graphs:
            raise GraphError("no graphs to fit an encoding to")
        types = {operator.op for graph in graphs for operator in graph.operators}
        return cls(tuple(sorted(types)), max(len(graph.operators) for graph in graphs))

    @property
    def width(self) -> int:
        return self.nodes * (len(self.operator_types) + 1) + self.nodes + self.nodes**2

    @property
    def weight_columns(self) -> slice:
        """Where the weight counts lie in a row: what a learner wants to scale."""
        start = self.nodes * (len(self.operator_types) + 1)
        return slice(start, start + self.nodes)

    def transform(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        """float32 [n, width]. Names of operators play no part. Raises ``GraphError`` for a graph it cannot hold."""
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
    """float64 [operators, ``MEASURES``], per example; what an operator lacks counts 0 bytes or a size of 1. Nobody
    changes it: several features of a network ask for it, so a graph keeps its own. Of many graphs at once:
    ``OperatorArrays``."""
    kept: np.ndarray | None = vars(graph).get(_KEPT)
    if kept is None:
        kept = np.array([measures_of(operator) for operator in graph.operators], dtype=np.float64)
        kept.setflags(write=False)
        # As functools.cached_property keeps its value.
        vars(graph)[_KEPT] = kept
    return kept


_KEPT = "operator_measures"


def measures_of(operator: Operator) -> tuple[float, ...]:
    """``MEASURES`` of one operator, which keeps them: networks of a kind share most of theirs."""
    if operator.measures is None:
        # Its only attribute that is set late; a dictionary per operator would be another million objects to collect.
        object.__setattr__(operator, "measures", _of_operator(operator))
    return operator.measures or ()


def feature_axis(op: str, shape: Shape) -> int:
    """Which axis of its input or output an operator of this type takes for features: the last of a Dense layer's, and
    of anything but an image, whose channels stand first."""
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
    """Inputs, and what a recurrent layer reads of its weights again at each step."""
    if operator.op in OPERATORS and OPERATORS[operator.op].reads_weights_again:
        return float(operator.moved_bytes - operator.output_bytes)
    return 4.0 * sum(math.prod(shape) for shape in inputs)


def lane_padding(channels: int) -> float:
    """What computing so many channels costs, over what it would cost without empty vector lanes."""
    return -(-channels // LANES) * LANES / channels


def _area(attributes: Mapping[str, Any], name: str) -> float:
    """Of a window given as 3 or (3, 5); 1 where there is none, or none of numbers."""
    value = attributes.get(name, 1)
    if type(value) is int and value > 0:
        return float(value * value)
    sides = (value, value) if isinstance(value, int) else value
    plain = isinstance(sides, (tuple, list)) and all(isinstance(side, int) and side > 0 for side in sides)
    return float(math.prod(sides)) if plain else 1.0
