"""Operators as calls that are timed alone: which there are, how cold their weights are, and what a file keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.profiling.backends import backend_class
from slotool.profiling.operator_calls import MAX_COPIES, operator_calls
from slotool.profiling.operators import OperatorTime, OperatorTimes


def network(units: int = 512) -> OperatorGraph:
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=(units,))
    for _ in range(2):
        last = builder.add("ReLU", builder.add("Dense", last, units=units))
    builder.add("Dense", last, units=10)
    return builder.graph()


def test_equal_operators_are_one_call_and_inputs_are_none() -> None:
    first, *calls = operator_calls(network(), 1)
    assert first is None
    keys = [call.key for call in calls if call is not None]
    assert len(keys) == 5
    assert len(set(keys)) == 3
    other = [call.key for call in operator_calls(network(), 8) if call is not None]
    assert not set(keys) & set(other)


def test_copies_have_weights_of_their_own_as_cold_as_in_the_network() -> None:
    dense = operator_calls(network(), 1)[1]
    assert dense is not None
    warm, cold = dense.rotated(dense.weight_bytes), dense.rotated(40 << 20)
    assert warm.key == dense.key != cold.key
    assert cold.copies * dense.weight_bytes >= 64 << 20 or cold.copies == MAX_COPIES
    request = cold.request()
    assert request is not None
    graph = OperatorGraph.from_document(json.loads(request["graph"]))
    assert graph.weights == cold.copies * network().operators[1].weights


def test_an_operator_that_slotool_does_not_know_cannot_be_run_alone() -> None:
    document = network().document()
    document["operators"][1] |= {"op": "torch.unheard_of", "attributes": {}, "shape": [512], "flops": 1}
    call = operator_calls(OperatorGraph.from_document(document), 1)[1]
    assert call is not None
    assert call.request() is None


def test_onnx_runtime_runs_fused_operators() -> None:
    pytest.importorskip("onnxruntime")
    builder = GraphBuilder()
    image = builder.add("InputLayer", shape=(3, 16, 16))
    builder.add("ReLU", builder.add("BatchNormalization", builder.add("Conv2D", image, filters=8, kernel=(3, 3))))
    calls = [call for call in backend_class("onnx").operator_calls(builder.graph(), 1) if call is not None]
    assert sum("Conv" in call.op for call in calls) == 1
    assert not [call for call in calls if call.op in ("Relu", "BatchNormalization")]


def test_times_of_several_processes_are_kept_and_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    one, other = (OperatorTimes.here(tmp_path, "torch", "cpu", 1) for _ in range(2))
    one.times["a"], other.times["b"] = (OperatorTime(1e-6, 0.01, False, "ReLU", 1, 1) for _ in range(2))
    one.save()
    other.save()
    assert OperatorTimes.here(tmp_path, "torch", "cpu", 1).times.keys() == {"a", "b"}
    assert not OperatorTimes.here(tmp_path, "torch", "cpu", 2).times
    one.path.write_text("{")
    assert not OperatorTimes.here(tmp_path, "torch", "cpu", 1).times
