"""Every operator with attributes and inputs that nobody means: refused at once, or a graph that can be counted."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from slotool.errors import GraphError
from slotool.graphs import OPERATORS, OperatorGraph
from slotool.graphs.operators import MAX_OPERATOR_SIZE
from tests.graphs.operator_cases import CASES

HOSTILE: list[Any] = [
    *(0, -1, 10**12, 2**63, -(2**63), 10**400, True, 1.5, float("nan"), float("inf"), "x", "", None, {}, {"a": 1}),
    *([], [0], [-1], [2**62] * 3, [10**12, 1], [1] * 200, [[1]], ["x"], [None], [True], [1.5]),
]
SHAPES = ([], [0], [1], [-1], [2**40, 2**40], [10**12, 10**12], [1] * 40, [True], ["x"], None, [1.5])
# Of one operator; thousands of values are tried.
AT_ONCE_S = 1.0


def counted(operators: list[dict[str, Any]]) -> None:
    """Read as a file would be, and counted, or refused as a graph."""
    began = time.perf_counter()
    try:
        graph = OperatorGraph.from_document({"operators": operators})
    except GraphError:
        pass
    else:
        assert 0 <= graph.flops <= len(operators) * MAX_OPERATOR_SIZE
        assert 0 <= graph.weights <= len(operators) * MAX_OPERATOR_SIZE
        assert graph.memory_bytes(1) >= 0
        assert OperatorGraph.from_document(json.loads(graph.text)).id == graph.id
    assert time.perf_counter() - began < AT_ONCE_S


def documents(op: str) -> list[tuple[dict[str, Any], list[tuple[Any, str]]]]:
    return [(attributes, list(sources)) for name, attributes, sources in CASES if name == op]


def network(op: str, attributes: dict[str, Any], sources: list[tuple[Any, str]]) -> list[dict[str, Any]]:
    inputs = [
        {"name": f"x{i}", "op": "InputLayer", "attributes": {"shape": shape, "dtype": dtype}}
        for i, (shape, dtype) in enumerate(sources)
    ]
    last = {"name": "y", "op": op, "inputs": [each["name"] for each in inputs], "attributes": attributes}
    return [*inputs, last]


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_hostile_attributes_and_shapes_are_refused_at_once(op: str) -> None:
    for attributes, sources in documents(op) or [({}, [((4,), "float32")])]:
        for name in OPERATORS[op].attributes:
            for value in HOSTILE:
                counted(network(op, {**attributes, name: value}, sources))
        for shape in SHAPES:
            for place in range(len(sources)):
                strange = [(shape, dtype) if i == place else (own, dtype) for i, (own, dtype) in enumerate(sources)]
                counted(network(op, attributes, strange))
        counted(network(op, attributes, sources * 3))
        counted(network(op, attributes, []))
