"""Operators timed in networks: which calls there are, how long each takes, and what a file keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.profiling.backends import backend_class
from slotool.profiling.bench import Bench
from slotool.profiling.operator_calls import network_call, operator_calls
from slotool.profiling.operators import RULE, NetworkTimer, OperatorTime, OperatorTimes
from slotool.profiling.subjects import graph_subject


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


def test_weights_that_leave_the_caches_make_another_call() -> None:
    small, large = network(1024), network(2048)
    assert not any("cold" in call.key for call in operator_calls(network(64), 1) if call is not None)
    keys = [[call.key for call in operator_calls(each, 1) if call is not None] for each in (small, large)]
    assert all("cold" in own[0] for own in keys)
    assert not any("cold" in own[1] for own in keys)


def test_operators_of_a_network_that_stays_in_near_caches_are_other_calls() -> None:
    def alone(units: int) -> OperatorGraph:
        builder = GraphBuilder()
        shared = builder.add("Dense", builder.add("InputLayer", shape=(64,)), units=64)
        builder.add("Dense", shared, units=units)
        return builder.graph()

    small, large = (operator_calls(alone(units), 1)[1] for units in (10, 8192))
    assert small is not None
    assert large is not None
    assert small.key != large.key
    assert network_call(alone(10), 1).key != network_call(alone(8192), 1).key


@pytest.mark.parametrize("backend", ["torch", "onnx", "keras"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_operators_and_the_rest_are_the_whole_inference(backend: str, batch_size: int) -> None:
    chosen = backend_class(backend)
    if chosen.missing():
        pytest.skip(f"{backend} is not installed")
    graph = network(256)
    calls = chosen.operator_calls(graph, batch_size)
    with NetworkTimer.opened(backend, "cpu", 1) as timer:
        answer = timer.operators(graph, batch_size)
    assert answer["status"] == "ok"
    assert len(answer["calls_s"]) == len(answer["spreads"]) == 1 + len(calls)
    assert sum(answer["calls_s"]) > 0
    # A fused operator may take no time of its own.
    assert all(seconds >= 0 for seconds in answer["calls_s"])
    assert not any(seconds for seconds, call in zip(answer["calls_s"][1:], calls, strict=True) if call is None)


def test_an_operator_that_slotool_does_not_know_leaves_the_others_known(tmp_path: Path) -> None:
    document = network().document()
    document["operators"][2] |= {"op": "torch.unheard_of", "attributes": {}, "shape": [512], "flops": 1}
    graph = OperatorGraph.from_document(document)
    calls = operator_calls(graph, 1)
    times = OperatorTimes.load(tmp_path, "torch", "cpu", 1)
    with NetworkTimer.opened("torch", "cpu", 1) as timer:
        times.measure(graph, calls, 1, timer)
    assert [call is not None and call.key in times.times for call in calls] == [False, True, False, True, True, True]


def test_a_disturbed_time_replaces_no_undisturbed_one(tmp_path: Path) -> None:
    class Timer:
        interrupted = False

        def operators(self, graph: OperatorGraph, batch_size: int) -> dict[str, Any]:
            seconds = [2e-6 if self.interrupted else 1e-6] * (1 + len(graph.operators))
            return {"status": "ok", "calls_s": seconds, "spreads": seconds, "interrupted": self.interrupted}

    timer, times, calls = Timer(), OperatorTimes.load(tmp_path, "torch", "cpu", 1), operator_calls(network(), 1)
    for interrupted in (False, True):
        timer.interrupted = interrupted
        times.measure(network(), calls, 1, timer)
        assert {time.seconds for time in times.times.values()} == {1e-6}


def test_onnx_runtime_runs_fused_operators() -> None:
    pytest.importorskip("onnxruntime")
    builder = GraphBuilder()
    image = builder.add("InputLayer", shape=(3, 16, 16))
    builder.add("ReLU", builder.add("BatchNormalization", builder.add("Conv2D", image, filters=8, kernel=(3, 3))))
    calls = [call for call in backend_class("onnx").operator_calls(builder.graph(), 1) if call is not None]
    assert sum("Conv" in call.op for call in calls) == 1
    assert not [call for call in calls if call.op in ("Relu", "BatchNormalization")]


def test_onnx_runtime_times_nodes_that_it_gave_no_name() -> None:
    pytest.importorskip("onnxruntime")
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=(64,))
    for _ in range(2):
        last = builder.add("Activation", builder.add("Dense", last, units=64), activation="hard_silu")
    graph = builder.graph()
    calls = backend_class("onnx").operator_calls(graph, 1)
    assert any(call is not None and not call.name for call in calls)
    with NetworkTimer.opened("onnx", "cpu", 1) as timer:
        answer = timer.operators(graph, 1)
    assert answer["status"] == "ok"
    assert len(answer["calls_s"]) == 1 + len(calls)


def test_times_of_several_processes_are_kept_and_a_damaged_file_is_measured_anew(tmp_path: Path) -> None:
    one, other = (OperatorTimes.load(tmp_path, "torch", "cpu", 1) for _ in range(2))
    one.times["a"], other.times["b"] = (OperatorTime(1e-6, 0.01, False, "ReLU", 1, 1, "") for _ in range(2))
    one.save()
    other.save()
    assert OperatorTimes.load(tmp_path, "torch", "cpu", 1).times.keys() == {"a", "b"}
    assert not OperatorTimes.load(tmp_path, "torch", "cpu", 2).times
    one.path.write_text("{")
    assert not OperatorTimes.load(tmp_path, "torch", "cpu", 1).times


@pytest.mark.parametrize("delayed", ["each inference", "one in each piece"])
def test_time_that_other_processes_took_is_no_time_of_operators(delayed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        """Others have the core for half of each piece."""

        def __init__(self, *_: object, **__: object) -> None:
            self.lost_s = 0.0

        def look_again(self) -> None: ...

        idle_s = look_again

        def __call__(self) -> float:
            lost_s, self.lost_s = self.lost_s, 0.0
            return lost_s

    busy, now_s = Busy(), 0.0
    monkeypatch.setattr("slotool.profiling.bench.Interference", lambda *_, **__: busy)
    monkeypatch.setattr("slotool.profiling.bench.time", SimpleNamespace(perf_counter=lambda: now_s))
    backend = backend_class("torch")("cpu", 1, 0, None)

    def walk(count: int) -> np.ndarray:
        nonlocal now_s
        seconds = np.tile([0.5e-3, 1e-3], (count, 1))
        seconds[:1] *= count + 1 if delayed == "one in each piece" else 2
        seconds[1:] *= 1 if delayed == "one in each piece" else 2
        # A walk also runs the network without its operators.
        took_s = 2.0 * float(seconds.sum())
        now_s += took_s
        busy.lost_s += 0.5 * took_s
        return seconds

    monkeypatch.setattr(backend, "walk", lambda *_: walk)
    subject = {"subject": dict(graph_subject(network()).request), "batch_size": 1}
    answer = Bench(backend, [0], RULE).answer({"do": "operators", **subject})
    assert answer["interrupted"]
    assert answer["calls_s"] == pytest.approx([0.5e-3, 1e-3])
