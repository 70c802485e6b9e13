"""Whole numbers that a graph looks things up with: below which they must stay, and what to fill them with."""

from __future__ import annotations

import math

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operator_node import Operator

# They pass whole numbers on as they are.
_PASSING = (
    *("Reshape", "Flatten", "Transpose", "Slice", "Expand", "Copy", "Concatenate", "Stack", "Repeat", "Roll", "Flip"),
    *("Cast", "Gather", "GatherElements", "Sort", "TopK", "Where"),
)
# Of an operator that looks things up: which of its inputs are numbers of places.
_LOOK_UP = {"Embedding": 0, "Gather": 1, "GatherElements": 1, "Scatter": 1}
_WHOLE = ("int64", "int32", "int16", "int8", "uint8")
NUMPY_TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bool": np.bool_} | {
    name: np.dtype(name).type for name in _WHOLE
}


class Indices:
    """``limits``: of each InputLayer and Constant whose numbers are looked up, below what they must stay.

    ``unsure`` names the operators whose places are computed, so that nobody knows whether they are there: who runs
    the graph keeps them within bounds.
    """

    def __init__(self, graph: OperatorGraph):
        self._at = {operator.name: operator for operator in graph.operators}
        self.limits: dict[str, int] = {}
        self.unsure: set[str] = set()
        for operator in graph.operators:
            position = _LOOK_UP.get(operator.op)
            if position is None or len(operator.inputs) <= position:
                continue
            if not self._bound(operator.inputs[position], self._places(operator)):
                self.unsure.add(operator.name)

    def bound_of(self, operator: Operator) -> tuple[int, int]:
        """Which input of a lookup says the places, and how many there are."""
        return _LOOK_UP[operator.op], self._places(operator)

    def _places(self, operator: Operator) -> int:
        if operator.op == "Embedding":
            return int(operator.attributes["vocabulary"])
        axis: int = operator.attributes.get("axis", 0)
        return self._at[operator.inputs[0]].shape[axis]

    def _bound(self, source: str, limit: int) -> bool:
        """Lower the limits of all that ``source`` is made of; whether that is enough."""
        enough, seen, waiting = True, set(), [source]
        while waiting:
            operator = self._at[waiting.pop()]
            if operator.name in seen:
                continue
            seen.add(operator.name)
            if operator.op in ("InputLayer", "Constant"):
                self.limits[operator.name] = min(limit, self.limits.get(operator.name, limit))
            elif operator.op in _PASSING and not operator.attributes.get("indices"):
                # What a lookup gives are values of its data.
                waiting += operator.inputs[:1] if operator.op in _LOOK_UP else operator.inputs
            else:
                enough = False
        return enough

    def filled(self, operator: Operator, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Values of an InputLayer or Constant of whole numbers or truths, [batch_size, *shape]: drawn below the limit,
        and where there is none all ones, as a mask that hides nothing."""
        kind = dtype_of(operator)
        shape = (batch_size, *operator.shape)
        limit = self.limits.get(operator.name)
        if limit is None or operator.attributes.get("dtype") == "bool":
            return np.ones(shape, kind)
        return rng.integers(0, min(limit, 127 if np.dtype(kind).itemsize == 1 else limit), shape).astype(kind)


def dtype_of(operator: Operator) -> type[np.generic]:
    """The numpy type of an InputLayer's or Constant's values. Raises ``GraphError`` for one that numpy lacks."""
    name = operator.attributes.get("dtype", "float32")
    if name not in NUMPY_TYPES:
        raise GraphError(f"operator {operator.name!r}: values of {name} cannot be made here")
    return NUMPY_TYPES[name]


def is_whole(operator: Operator) -> bool:
    """Whether an InputLayer or Constant holds whole numbers or truths."""
    return operator.attributes.get("dtype", "float32") in (*_WHOLE, "bool")


def batch_free(graph: OperatorGraph) -> frozenset[str]:
    """The operators that are the same for every example: constants, and what is computed of constants alone."""
    free: set[str] = set()
    for operator in graph.operators:
        if operator.op == "Constant" or (operator.inputs and free.issuperset(operator.inputs)):
            free.add(operator.name)
    return frozenset(free)


def is_trained(operator: Operator) -> bool:
    """Whether a Constant is trained numbers, not derived ones."""
    return operator.weights == math.prod(operator.shape) and operator.attributes.get("dtype", "float32") == "float32"
