"""Operators that are captured by what their types list in ``captured``."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch

from slotool.graphs import OperatorGraph
from slotool.graphs.operators import OPERATORS, Effect, OperatorType
from slotool.graphs.operators.base import CAPTURED
from tests.graphs.golden_networks import written
from tests.graphs.operator_cases import CASES, graph_of

# ONNX's own has its channels in another order; Keras has no view of repetitions.
OTHERWISE = {("PixelUnshuffle", "onnx"), ("Expand", "keras")}
CALLS = {
    (op, library)
    for op, library in {(op, call.partition(".")[0]) for call, (op, _) in CAPTURED.items()} - OTHERWISE
    if getattr(type(OPERATORS[op]), library) is not getattr(OperatorType, library)
}


def captured_ops(graph: OperatorGraph, library: str) -> list[str]:
    return [operator.op for operator in written(graph, library).operators]


@pytest.mark.parametrize(("op", "library"), sorted(CALLS))
def test_every_case_of_a_type_is_captured_from_the_libraries_that_it_lists(op: str, library: str) -> None:
    pytest.importorskip("tensorflow" if library == "keras" else library)
    for case in CASES:
        if case[0] == op:
            assert op in captured_ops(graph_of(*case), library), case


class Determinant(OperatorType, abstract=True):
    """Determinant of each matrix: two axes fewer, and in torch the first of three outputs."""

    captured: ClassVar = {"torch._linalg_det": lambda _: {}, "onnx.Det": lambda _: {}}

    def infer(self, attributes: Any, inputs: Any) -> Effect:
        *left, rows, _ = inputs[0]
        return Effect(tuple(left), 0, math.prod(left) * 2 * rows**3 // 3)

    def torch(self, operator: Any, device: str) -> Any:
        return torch.linalg.det

    def onnx(self, writer: Any, operator: Any, values: Any) -> str:
        return writer.node("Det", values[0])


@pytest.fixture
def determinant(monkeypatch: pytest.MonkeyPatch) -> OperatorGraph:
    monkeypatch.setitem(OPERATORS, "Determinant", Determinant())
    for call, read in Determinant.captured.items():
        monkeypatch.setitem(CAPTURED, call, ("Determinant", read))
    return graph_of("Determinant", {}, [((3, 5, 5), "float32")])


@pytest.mark.parametrize("library", ["torch", "onnx"])
def test_a_call_of_fewer_axes_and_several_outputs_is_captured(determinant: OperatorGraph, library: str) -> None:
    pytest.importorskip(library)
    assert captured_ops(determinant, library) == ["InputLayer", "Determinant"]
