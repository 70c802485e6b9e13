"""Whole numbers that a graph looks things up with: below which they must stay, and what to fill them with."""

from __future__ import annotations

import math

import numpy as np

from slotool.errors import GraphError
from slotool.graphs.graph import OperatorGraph
from slotool.graphs.operators import OPERATORS, Operator

_WHOLE = ("int64", "int32", "int16", "int8", "uint8")
NUMPY_TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bool": np.bool_} | {
    name: np.dtype(name).type for name in _WHOLE
}


class Indices:
    """Bounds of indices: ``limits`` of each InputLayer and Constant that is an index, which must stay below them.

    ``unsure``: names of operators whose indices are computed. They may be out of bounds: the code that runs the graph
    keeps them within.
    """

    def __init__(self, graph: OperatorGraph):
        self._at = {operator.name: operator for operator in graph.operators}
        self.limits: dict[str, int] = {}
        self.unsure: set[str] = set()
        for operator in graph.operators:
            kind = OPERATORS.get(operator.op)
            if kind is None or kind.places is None or len(operator.inputs) <= kind.places:
                continue
            if not self._bound(operator.inputs[kind.places], kind.place_count(operator)):
                self.unsure.add(operator.name)

    def bound_of(self, operator: Operator) -> tuple[int, int]:
        """Return the input of a lookup that holds the places, and how many places there are."""
        kind = OPERATORS[operator.op]
        assert kind.places is not None
        return kind.places, kind.place_count(operator)

    def _bound(self, source: str, limit: int) -> bool:
        """Lower the limits of all that ``source`` is made of; whether that is enough."""
        enough, visited, waiting = True, set(), [source]
        while waiting:
            operator = self._at[waiting.pop()]
            if operator.name in visited:
                continue
            visited.add(operator.name)
            if operator.op in ("InputLayer", "Constant"):
                self.limits[operator.name] = min(limit, self.limits.get(operator.name, limit))
                continue
            kind = OPERATORS.get(operator.op)
            if kind is not None and kind.passes_numbers and not operator.attributes.get("indices"):
                # A lookup returns values of its data.
                waiting += operator.inputs if kind.places is None else operator.inputs[:1]
            else:
                enough = False
        return enough

    def filled(self, operator: Operator, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Return values of an integer or bool InputLayer or Constant, [batch_size, *shape], drawn below its limit.

        Without a limit all are ones, as a mask that hides nothing.
        """
        kind = dtype_of(operator)
        shape = (batch_size, *operator.shape)
        limit = self.limits.get(operator.name)
        if limit is None or operator.attributes.get("dtype") == "bool":
            return np.ones(shape, kind)
        return rng.integers(0, min(limit, 127 if np.dtype(kind).itemsize == 1 else limit), shape).astype(kind)


def dtype_of(operator: Operator) -> type[np.generic]:
    """Return the numpy type of an InputLayer's or Constant's values. Raises ``GraphError`` for one that numpy lacks."""
    name = operator.attributes.get("dtype", "float32")
    if name not in NUMPY_TYPES:
        raise GraphError(f"operator {operator.name!r}: values of {name} cannot be made here")
    return NUMPY_TYPES[name]


def is_whole(operator: Operator) -> bool:
    """True if an InputLayer or Constant holds whole numbers or truths."""
    return operator.attributes.get("dtype", "float32") in (*_WHOLE, "bool")


def batch_free(graph: OperatorGraph) -> frozenset[str]:
    """Return the operators that are the same for every example: constants, and what is computed of constants alone."""
    free: set[str] = set()
    for operator in graph.operators:
        if operator.op == "Constant" or (operator.inputs and free.issuperset(operator.inputs)):
            free.add(operator.name)
    return frozenset(free)


def is_trained(operator: Operator) -> bool:
    """True if a Constant is trained numbers, not derived ones."""
    return operator.weights == math.prod(operator.shape) and operator.attributes.get("dtype", "float32") == "float32"
