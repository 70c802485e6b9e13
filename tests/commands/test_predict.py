"""``slotool.predict`` takes networks in any form, and says what it cannot take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import slotool
from slotool.errors import ArgumentError, GraphError
from slotool.graphs import OperatorGraph
from slotool.graphs.store import write_graphs
from slotool.predictors.answers.measured_here import MeasuredPredictor
from slotool.profiling.operators import OperatorTime, OperatorTimes
from slotool.progress import Quiet
from slotool.testing.predictors import random_networks

MLPS = random_networks(3, seed=0)


def test_a_torch_module_in_memory_is_predicted_as_torch_runs_it() -> None:
    from torch import nn

    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    found = slotool.predict([module, module], input_shape=(8,))
    assert found.document["setting"]["backend"] == "torch"
    assert [graph.name for graph in found.graphs] == ["Sequential", "Sequential"]
    assert found.latency_s.shape == (2,)
    assert found.interval_s.shape == (2, 2)


def test_what_is_captured_is_said_while_it_is(tmp_path: Path) -> None:
    (tmp_path / "said_nets.py").write_text("from torch import nn\ndef tiny():\n    return nn.Linear(8, 2)\n")
    source, heard = f"{tmp_path}/said_nets.py:tiny", list[tuple[str, int, int | None]]()
    slotool.predict(source, input_shape=(8,), progress=lambda *step: heard.append(step))
    slotool.predict([source, source, MLPS[0]], input_shape=(8,), progress=lambda *step: heard.append(step))
    slotool.predict(MLPS, progress=lambda *step: heard.append(step))
    captures = [(f"capturing {source}", 1, None), ("capturing networks", 1, 2), ("capturing networks", 2, 2)]
    assert [step for step in heard if step[0].startswith("capturing")] == captures
    assert any(re.match(r"measuring operators of \d+ network", step[0]) for step in heard)
    heard.clear()
    slotool.predict(source, input_shape=(8,), sweep="length=4,8", progress=lambda *step: heard.append(step))
    assert heard[:2] == [(f"capturing {source}", 1, 2), (f"capturing {source}", 2, 2)]


def test_a_sweep_over_batches_leaves_out_predictors_of_other_threads() -> None:
    found = slotool.predict(MLPS[0], threads=2, sweep="batch=1:4")
    assert len(found.frame()) == 3
    assert found.document["setting"]["threads"] == 2


def test_networks_by_name_keep_these_names(tmp_path: Path) -> None:
    from torch import nn

    found = slotool.predict({"narrow": nn.Linear(8, 2), "random": MLPS[0]}, input_shape=(8,))
    assert [row["name"] for row in found.document["predictions"]] == ["narrow", "random"]
    write_graphs(tmp_path / "some.jsonl", MLPS)
    with pytest.raises(ArgumentError, match="names its own networks"):
        slotool.predict({"mine": tmp_path / "some.jsonl"})


def test_objects_that_cannot_be_captured_are_left_out_and_named(tmp_path: Path) -> None:
    from torch import nn

    class Unfit(nn.Linear):
        def forward(self, x):
            raise ValueError("unfit for this")

    from slotool.tables import LatencyTable

    fits, unfit = nn.Linear(8, 2), Unfit(8, 2)
    for given, left_out in (([unfit, fits, unfit], ["Unfit", "Unfit (2)"]), ({"odd": unfit, "even": fits}, ["odd"])):
        found = slotool.predict(given, input_shape=(8,))
        assert found.warnings[0].startswith(f"{left_out[0]} is left out: ")
        assert "unfit for this" in found.warnings[0]
        assert [*found.document["failed"]] == left_out
        assert [row["name"] for row in found.document["predictions"]] == [
            "Linear" if isinstance(given, list) else "even"
        ]
    slotool.predict({"odd": unfit, "even": fits}, input_shape=(8,), family="mine", out=tmp_path / "t.parquet")
    assert LatencyTable.load(tmp_path / "t.parquet").rows["point"].str.contains("even").tolist() == [True]
    with pytest.raises(GraphError, match="unfit for this"):
        slotool.predict([unfit, unfit], input_shape=(8,))


def test_graphs_and_files_of_them_keep_their_order_and_a_table_is_written(tmp_path: Path) -> None:
    write_graphs(tmp_path / "some.jsonl", MLPS[1:])
    found = slotool.predict([MLPS[0], tmp_path / "some.jsonl"], out=tmp_path / "latency.parquet", slo_s=1.0)
    assert [graph.id for graph in found.graphs] == [graph.id for graph in MLPS]
    assert found.probability_within_slo is not None
    from slotool.tables import LatencyTable

    assert LatencyTable.load(tmp_path / "latency.parquet").rows["subject"].tolist() == [graph.id for graph in MLPS]
    with pytest.raises(slotool.errors.AlreadyExistsError):
        slotool.predict(MLPS[0], out=tmp_path / "latency.parquet")


@pytest.mark.parametrize(
    ("arguments", "argument", "said"),
    [
        ({"networks": []}, "networks", "at least one"),
        ({"networks": 3}, "networks", "an int is neither a network"),
        ({"networks": "nets:tiny"}, "input_shape", "needs the shape of one example"),
        ({"networks": ["a:b", "c:d"], "input_shape": [(1,), (2,), (3,)]}, "input_shape", "3 shapes for 2"),
        ({"networks": "a:b", "input_shape": (0,)}, "input_shape", "not a list of sizes"),
        ({"networks": "ResNet50", "input_shape": (3,)}, "input_shape", "none is given"),
        ({"networks": "ResNet50", "input_dtype": "int64"}, "input_dtype", "none is given"),
        ({"networks": "ResNet50", "backend": "nothing"}, "backend", "nothing"),
        ({"networks": "ResNet50", "slo_s": -1.0}, "slo_s", "no number above 0"),
        ({"networks": "ResNet50", "slo_s": float("inf")}, "slo_s", "no number above 0"),
        ({"networks": "ResNet50", "threads": 0}, "threads", "at least 1"),
        ({"networks": "ResNet50", "batch_size": -4}, "batch_size", "at least 1"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], argument: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said) as raised:
        slotool.predict(**arguments)
    assert raised.value.argument == argument
    assert str(raised.value).startswith(f"{argument}: ")


def test_the_command_names_the_option_instead(slotool, tmp_path: Path) -> None:
    write_graphs(tmp_path / "some.jsonl", MLPS)
    finished = slotool("predict", "--graph", tmp_path / "some.jsonl", "--backend", "nothing")
    assert finished.exit_code == 2
    assert "Invalid value for --backend: " in finished.stderr


def test_the_length_of_an_onnx_file_with_a_free_axis_is_swept(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    sequence = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "steps", 8])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "steps", 4])
    weight = helper.make_tensor("w", TensorProto.FLOAT, (8, 4), [0.5] * 32)
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [sequence], [answer], [weight])
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "net.onnx")
    path = str(tmp_path / "net.onnx")
    found = slotool.predict(path, input_shape=(1, 8), sweep="length=4:16")
    assert found.document["values"] == [4, 8, 16]
    flops = [graph.flops for graph in found.graphs]
    assert flops == [2 * steps * 8 * 4 for steps in (4, 8, 16)]
    with pytest.raises(ArgumentError, match=r"which axis of .*net\.onnx is its length"):
        slotool.predict(path, sweep="length=4:16")


@pytest.mark.long
def test_the_size_of_a_keras_model_with_free_axes_is_that_of_its_rows_and_columns() -> None:
    keras = pytest.importorskip("keras")
    images = keras.Input((None, None, 3))
    model = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(images)))
    found = slotool.predict(model, input_shape=(1, 1, 3), sweep="size=8,16")
    assert found.document["values"] == [8, 16]
    convolved = [graph.matrix_flops for graph in found.graphs]
    assert convolved == [2 * (size - 2) ** 2 * 27 * 4 for size in (8, 16)]


def test_the_shape_of_a_graph_is_not_chosen() -> None:
    with pytest.raises(ArgumentError, match="of models alone can be chosen, not of graphs"):
        slotool.predict(MLPS[0], sweep="length=4,8")


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    times = OperatorTimes.load(folder, "torch", "cpu", 1)
    graphs = random_networks(3, seed=5)

    def measured(self: OperatorTimes, graph: OperatorGraph, *_: object) -> None:
        if graph is graphs[2]:
            raise KeyboardInterrupt
        self.times[f"of {graph.id}"] = OperatorTime(1e-6, 0.0, False, "Dense", 1, 1, graph.id)

    monkeypatch.setattr(OperatorTimes, "measure", measured)
    with pytest.raises(KeyboardInterrupt):
        MeasuredPredictor.of(times, 1, Quiet(), True).measure(graphs)
    kept = OperatorTimes.load(folder, "torch", "cpu", 1).times
    assert set(kept) == {f"of {graph.id}" for graph in graphs[:2]}


def test_the_share_that_was_estimated_is_a_number_of_each_network(tmp_path: Path) -> None:
    graphs = random_networks(2, seed=6)
    times = OperatorTimes.load(tmp_path, "torch", "cpu", 1)
    calls = MeasuredPredictor.of(times, 1, Quiet(), False).predictor.calls(graphs[0])
    times.times |= {call.key: OperatorTime(1e-6, 0.0, False, call.op, 1, 1, graphs[0].id) for call in calls if call}
    predictions = MeasuredPredictor.of(times, 1, Quiet(), False).predict(graphs)
    assert predictions.estimated[0] == 0
    assert 0 < predictions.estimated[1] <= 1
    assert [reason is None for reason in predictions.outside] == [True, False]


def test_networks_with_disturbed_operators_are_not_called_estimated(
    slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path))
    graphs = random_networks(6, seed=6)
    times = OperatorTimes.load(tmp_path, "torch", "cpu", 1)
    for graph in graphs:
        calls = MeasuredPredictor.of(times, 1, Quiet(), False).predictor.calls(graph)
        times.times |= {call.key: OperatorTime(1e-6, 0.0, True, call.op, 1, 1, graph.id) for call in calls if call}
    times.save()
    write_graphs(tmp_path / "some.jsonl", graphs)
    done = slotool("predict", "--graph", tmp_path / "some.jsonl", "--threads", 1, "--no-measure", "--json")
    assert done.exit_code == 0, done.stderr
    assert {row["estimated_share"] for row in done.document["predictions"]} == {0.0}
    assert ("estimated" in done.stderr, "3 more networks: disturbed" in done.stderr) == (False, True), done.stderr


def test_a_factory_is_predicted_with_its_arguments(slotool, tmp_path: Path) -> None:
    nets = tmp_path / "nets.py"
    nets.write_text("from torch import nn\ndef make(width):\n    return nn.Linear(8, width)\n")
    options = ["--torch", f"{nets}:make", "--input-shape", "8", "--factory-arguments", "width=4"]
    finished = slotool("predict", *options, "--factory-arguments", "width=5", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert [row["weights"] for row in finished.document["predictions"]] == [36, 45]
