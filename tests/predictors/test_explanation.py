"""Where the time of a network goes adds up to its prediction; its memory is counted by when outputs are read last."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotool as library
from slotool.artifacts.bundle import shipped_artifact
from slotool.graphs.generators import CNN_SPACE, RandomGraphs
from slotool.graphs.graph import GraphBuilder, peak_activation_bytes
from slotool.graphs.store import write_graphs
from slotool.predictors.base import Examples
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.explanation import CALL, Explanation
from slotool.predictors.transfer.adapted import AdaptedPredictor
from slotool.testing.predictors import random_networks, synthetic_latency_s

CNNS = [*RandomGraphs("cnn", 8, 0, CNN_SPACE, 10**9, 1)]
BASE = ThreeTermPredictor()
BASE.fit(Examples(random_networks(40, seed=5), synthetic_latency_s(random_networks(40, seed=5))))


@pytest.fixture(scope="module")
def shipped():
    return TrainedPredictor.load(str(shipped_artifact("predictor-torch").path)).predictor


def test_the_graph_networks_operators_and_call_add_up(shipped) -> None:
    for graph in CNNS[:3]:
        found = Explanation.of(shipped, graph)
        assert found.learnt
        assert found.seconds.shape == (len(graph.operators),)
        assert found.seconds.sum() + found.call_s == pytest.approx(shipped.predict([graph])[0], rel=1e-4)
        by_type = found.by_type()
        assert sum(count for name, (count, _) in by_type.items() if name != CALL) == len(graph.operators)
        assert max(by_type, key=lambda name: by_type[name][1]) == "Conv2D"


def test_what_is_adapted_adds_up_too(shipped) -> None:
    predictor = AdaptedPredictor(shipped)
    predictor.fit(Examples(CNNS[:6], 2 * shipped.predict(CNNS[:6])))
    found = Explanation.of(predictor, CNNS[7])
    assert found.learnt
    assert found.seconds.sum() + found.call_s == pytest.approx(predictor.predict([CNNS[7]])[0], rel=1e-4)


def test_a_predictor_that_adds_up_nothing_is_shared_out_by_a_roofline() -> None:
    found = Explanation.of(BASE, CNNS[0])
    assert not found.learnt
    assert found.seconds.sum() == pytest.approx(BASE.predict([CNNS[0]])[0])


def test_predict_explains_as_table_and_document(slotool, tmp_path: Path) -> None:
    write_graphs(tmp_path / "cnns.jsonl", CNNS[:2])
    asked = ("predict", "--graph", tmp_path / "cnns.jsonl", "--explain")
    shown = slotool(*asked)
    assert shown.exit_code == 0, shown.stderr
    assert f"Where the time of {CNNS[0].id} goes" in shown.stdout
    assert "MB of outputs at one time" in shown.stdout
    for row, graph in zip(slotool(*asked, "--json").document["predictions"], CNNS, strict=False):
        found = row["explanation"]
        total = sum(each["latency_s"] for each in found["operators"]) + found["call_s"]
        assert total == pytest.approx(row["latency_s"], rel=1e-4)
        assert row["weight_bytes"] == graph.weight_bytes
        assert row["peak_activation_bytes"] == peak_activation_bytes(graph)


def test_where_a_library_fuses_operators_the_times_are_those_of_its_calls() -> None:
    pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")
    prediction = library.predict(CNNS[0], backend="onnx", threads=1, explain=True)
    (row,) = prediction.document["predictions"]
    explanation = row["explanation"]
    assert explanation["learnt"]
    total = sum(each["latency_s"] for each in explanation["operators"]) + explanation["call_s"]
    assert total == pytest.approx(row["latency_s"], rel=1e-4)
    # By the names of ONNX, not of the graph.
    assert "Conv" in explanation["by_type"]
    assert "Conv2D" not in explanation["by_type"]
    assert "by a roofline" not in str(prediction)


def test_explaining_what_is_colocated_is_refused() -> None:
    with pytest.raises(library.errors.ArgumentError, match="networks alone"):
        library.predict(CNNS[0], co_runners=[CNNS[1]], explain=True)


def test_outputs_are_freed_after_their_last_reader() -> None:
    builder = GraphBuilder("own")
    first = builder.add("InputLayer", shape=[100])
    wide = builder.add("Dense", first, units=1000)
    same = builder.add("Activation", wide, activation="relu")
    builder.add("Dense", same, units=10)
    graph = builder.graph()
    # The widest moment is that of the activation: its input and its output; the caller holds the network's input.
    assert peak_activation_bytes(graph) == 4 * 2100
    assert peak_activation_bytes(graph, 8) == 8 * 4 * 2100
    kept = GraphBuilder("own")
    first = kept.add("InputLayer", shape=[1000])
    narrow = kept.add("Dense", first, units=10)
    wide = kept.add("Dense", narrow, units=1000)
    kept.add("Add", [first, wide])
    # A residual connection keeps its input: input, the wide output, and their sum.
    assert peak_activation_bytes(kept.graph()) == 4 * 3000


def test_an_activation_within_a_layer_needs_what_the_layer_found() -> None:
    builder = GraphBuilder("own")
    first = builder.add("InputLayer", shape=[100])
    wide = builder.add("Dense", first, units=1000, activation="gelu")
    builder.add("Dense", wide, units=10)
    assert peak_activation_bytes(builder.graph()) == 4 * 2100


def test_a_view_takes_no_memory_of_its_own() -> None:
    builder = GraphBuilder("own")
    first = builder.add("InputLayer", shape=[4, 25])
    flat = builder.add("Flatten", first)
    builder.add("Dense", flat, units=5)
    assert peak_activation_bytes(builder.graph()) == 4 * 105
