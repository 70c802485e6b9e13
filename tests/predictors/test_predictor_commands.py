"""``train-predictor`` and ``predict`` as a person runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slotool.artifacts import open_artifact
from slotool.graphs.store import write_graphs
from slotool.machine import machine_id
from slotool.predictors.base import SOLO
from slotool.predictors.registry import names_of
from slotool.predictors.scoring import PredictionsTable
from slotool.tables import LatencyTable
from slotool.testing.predictors import random_networks, strange_network, synthetic_latency_s
from tests.docs.preloaded import launchers

MLPS, CNNS = random_networks(200, seed=0), random_networks(60, seed=0, kind="cnn")
TORCH_FACTORY = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A folder with graph files and a made-up latency table of them."""
    folder = tmp_path_factory.mktemp("measured")
    write_graphs(folder / "mlps.parquet", MLPS)
    write_graphs(folder / "cnns.jsonl", CNNS)
    both = MLPS + CNNS
    samples = synthetic_latency_s(both)[:, None] * np.random.default_rng(0).lognormal(0, 0.05, (len(both), 5))
    rows = [
        {"subject": graph.id, "samples_s": seconds, "backend": "torch", "machine": machine_id()}
        for graph, seconds in zip(both, samples, strict=True)
    ]
    LatencyTable.of(rows).save(folder / "latency.parquet")
    return folder


@pytest.fixture(scope="module")
def predictor(measured: Path, tmp_path_factory) -> Path:
    """A trained predictor, by the command itself."""
    import subprocess

    out = tmp_path_factory.mktemp("predictor") / "p"
    inputs = [measured / "latency.parquet", "--graphs", measured / "mlps.parquet", "--graphs", measured / "cnns.jsonl"]
    command = [launchers() / "slotool", "train-predictor", *inputs, "--model", "linear", "--out", out]
    subprocess.run(command, check=True, capture_output=True)
    return out


def test_all_predictors_are_scored_on_one_held_out_set(
    slotool, measured: Path, predictor: Path, tmp_path, monkeypatch
) -> None:
    # How well they learn plays no part.
    monkeypatch.setattr("slotool.predictors.solo.dnn.MAX_EPOCHS", 5)
    monkeypatch.setattr("slotool.predictors.solo.graph_network.MAX_STEPS", 40)
    inputs = ["--graphs", measured / "mlps.parquet", "--graphs", measured / "cnns.jsonl", "--depths", "2"]
    finished = slotool("train-predictor", measured / "latency.parquet", *inputs, "-o", tmp_path / "p", "--json")
    assert finished.exit_code == 0, finished.stderr
    document = finished.document
    assert document["schema"] == "slotool/train-predictor"
    scores = document["predictors"]
    assert list(scores) == names_of(SOLO)
    assert {each["n"] for each in scores.values()} == {document["rows"]["test"]} == {20}
    assert {name: kind["n"] for name, kind in scores["dnn"]["by_kind"].items()} == {"cnn": 10, "mlp": 10}
    assert document["chosen"] == min(scores, key=lambda name: scores[name]["dev_mae_s"])
    table = PredictionsTable.load(open_artifact(tmp_path / "p").file("predictions.parquet"))
    assert table.scores()["mae_s"] == scores[document["chosen"]]["mae_s"]
    # Intervals of the others are not calibrated.
    assert [name for name, score in scores.items() if score["interval_given"]] == [document["chosen"]]
    # The same data and seed gave the same in another process.
    again = open_artifact(predictor).json("scores.json")["predictors"]
    assert set(again) == {"linear", "three-term"}, "what was asked for, and the simple rivals"
    assert {name: each["mae_s"] for name, each in again.items()} == {name: scores[name]["mae_s"] for name in again}


def test_several_tables_are_one_and_only_the_listed_predictors_are_trained(slotool, measured: Path, tmp_path) -> None:
    whole = LatencyTable.load(measured / "latency.parquet").rows
    for name, rows in (("a", whole.iloc[:150]), ("b", whole.iloc[150:])):
        LatencyTable(rows.reset_index(drop=True)).save(tmp_path / f"{name}.parquet")
    graphs = ["--graphs", measured / "mlps.parquet", "--graphs", measured / "cnns.jsonl"]
    tables = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    chosen = ["--model", "linear,additive", "-o", tmp_path / "p", "--json"]
    finished = slotool("train-predictor", *tables, *graphs, *chosen)
    assert finished.exit_code == 0, finished.stderr
    assert list(finished.document["predictors"]) == ["linear", "three-term", "additive"]
    assert finished.document["chosen"] == "additive"
    assert sum(finished.document["rows"].values()) == len(whole)


def test_a_person_reads_tables_and_what_was_left_out(slotool, measured: Path, tmp_path: Path) -> None:
    some = MLPS[:190] + random_networks(5, seed=77)
    write_graphs(tmp_path / "some.jsonl", some)
    arguments = ["--graphs", tmp_path / "some.jsonl", "--model", "linear", "-o", tmp_path / "p"]
    finished = slotool("train-predictor", measured / "latency.parquet", *arguments)
    assert finished.exit_code == 0, finished.stderr
    texts = ("MAE s", "label mean s", "MAPE", "inside it", "linear", "three-term", "chosen: linear, as requested")
    for text in texts:
        assert text in finished.stdout
    assert "dnn" not in finished.stdout
    assert max(len(line) for line in finished.stdout.splitlines() if "│" in line) <= 100
    assert "5 graphs have no label" in finished.stderr
    assert "70 measured subjects are none of the graphs" in finished.stderr
    again = slotool("train-predictor", measured / "latency.parquet", *arguments)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def _bad_table(folder: Path, text: str) -> Path:
    (folder / "bad.csv").write_text(text)
    return folder / "bad.csv"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("subject,samples_s\n", "no rows"),
        ("", "not a CSV table"),
        (f"subject,samples_s\n{MLPS[0].id},0.001;0.002\n", "too few labelled graphs to split (1 mlp)"),
        (f"subject,samples_s\n{MLPS[0].id},-1\n", "row 1, column samples_s"),
        (f"subject,samples_s\n{MLPS[0].id},0\n", "must be greater than 0"),
        (f"subject,samples_s\n{MLPS[0].id},nan\n", "row 1, column samples_s"),
        ("subject,samples_s\nsomething,1\n", "none of the 200 graphs has a label"),
    ],
)
def test_tables_that_cannot_be_learnt_from(slotool, measured: Path, tmp_path: Path, text: str, sentence: str) -> None:
    table = _bad_table(tmp_path, text)
    finished = slotool("train-predictor", table, "--graphs", measured / "mlps.parquet", "-o", tmp_path / "p")
    assert finished.exit_code == 2
    assert sentence in finished.stderr
    assert list(tmp_path.iterdir()) == [table]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "oracle"], "none of auto, linear, three-term, dnn"),
        (["--model", "additive", "--depths", "2"], "which trains no DNN"),
        (["--depths", "0"], "--depths: 0 is too few, at least 1"),
        (["--depths", "1.5"], "whole numbers are expected"),
        (["--depths", "many"], "--depths"),
        (["--threads", "64"], "no measured row"),
        (["--graphs", "absent.jsonl"], "absent.jsonl: no such"),
    ],
)
def test_options_that_cannot_be(slotool, measured: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    inputs = [measured / "latency.parquet", "--graphs", measured / "mlps.parquet"]
    finished = slotool("train-predictor", *inputs, *arguments, "-o", tmp_path / "p")
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_predict_many_and_write_them_as_a_latency_table(slotool, measured: Path, predictor: Path, tmp_path) -> None:
    out = tmp_path / "predicted.parquet"
    finished = slotool("predict", predictor, "--graph", measured / "mlps.parquet", "--out", out, "--json")
    assert finished.exit_code == 0, finished.stderr
    predictions = finished.document["predictions"]
    assert [row["graph_id"] for row in predictions] == [graph.id for graph in MLPS]
    assert all(row["low_s"] < row["latency_s"] < row["high_s"] for row in predictions)
    table = LatencyTable.load(out)
    assert table.rows["predicted"].all()
    statistics = table.statistics()
    assert statistics["median_s"].tolist() == [row["latency_s"] for row in predictions]
    assert statistics["high_s"].tolist() == [row["high_s"] for row in predictions]
    again = slotool("predict", predictor, "--graph", measured / "mlps.parquet", "--out", out)
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_predict_says_first_for_which_machine_and_what_it_does_not_know(slotool, predictor: Path, tmp_path) -> None:
    write_graphs(tmp_path / "strange.jsonl", [strange_network()])
    finished = slotool("predict", predictor, "--graph", tmp_path / "strange.jsonl")
    assert finished.exit_code == 0, finished.stderr
    assert finished.stdout.startswith("for unknown, torch, 1 thread")
    assert f"machine {machine_id()}" in finished.stdout.splitlines()[0]
    assert "ANOTHER" not in finished.stdout
    assert "like training" in finished.stdout
    assert "no interval: 1 of 3 operators," in finished.stdout
    assert "of types never measured (NeverSeen)" in finished.stdout
    assert "are of types never measured (NeverSeen)" in finished.stderr


def test_predict_a_torch_module(slotool, predictor: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "tiny_nets.py").write_text(TORCH_FACTORY)
    monkeypatch.chdir(tmp_path)
    finished = slotool("predict", predictor, "--torch", "tiny_nets:tiny", "--input-shape", "8", "--json")
    assert finished.exit_code == 0, finished.stderr
    (row,) = finished.document["predictions"]
    assert row["weights"] == 8 * 16 + 16 + 16 * 4 + 4
    assert row["latency_s"] > 0


def test_predict_a_keras_model(slotool, predictor: Path, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow")
    layers = [keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(4)]
    keras.Sequential(layers).save(tmp_path / "tiny.keras")
    finished = slotool("predict", predictor, "--keras", tmp_path / "tiny.keras", "--json")
    assert finished.exit_code == 0, finished.stderr
    (row,) = finished.document["predictions"]
    assert row["weights"] == 8 * 16 + 16 + 16 * 4 + 4


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("mine.onnx", "--onnx mine.onnx"),
        ("mine.py", "--torch mine.py:FACTORY --input-shape 3,32,32"),
        ("mine.py:make", "--torch mine.py:make --input-shape 3,32,32"),
        ("my nets/mine.onnx", "--onnx 'my nets/mine.onnx'"),
        ("my nets/mine.py:make", "--torch 'my nets/mine.py:make' --input-shape 3,32,32"),
    ],
)
def test_a_network_in_place_of_a_predictor_names_its_option(slotool, path: str, command: str) -> None:
    finished = slotool("predict", path)
    assert finished.exit_code == 2
    sentence = f"{path} is no predictor; a network goes behind its option: slotool predict {command}"
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())


def test_a_table_in_place_of_a_predictor_names_the_command_that_learns_from_it(slotool) -> None:
    finished = slotool("predict", "ok.csv", "--networks", "resnet50")
    assert finished.exit_code == 2
    assert "slotool train-predictor ok.csv" in " ".join(finished.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give exactly one of"),
        (["--graph", "networks.jsonl", "--input-shape", "8"], "it has no effect with --graph"),
        (["--graph", "a.jsonl", "--keras", "ResNet50"], "give exactly one of"),
        (["--torch", "a:b"], "--torch needs the shape of one example"),
        (["--torch", "a:b", "--input-shape", "1,x"], "is not a list of sizes"),
        (["--torch", "a:b", "--input-shape", "3,96,128;20"], "image=3,32,32;meta=20"),
        (["--graph", "absent.jsonl"], "absent.jsonl: no such"),
    ],
)
def test_predict_needs_one_network(slotool, predictor: Path, arguments: list[str], sentence: str) -> None:
    finished = slotool("predict", predictor, *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())


def test_a_network_too_large_and_an_altered_or_wrong_artifact_are_sentences(
    slotool, predictor: Path, measured: Path, tmp_path: Path
) -> None:
    import shutil

    from slotool.artifacts import create_artifact
    from slotool.graphs import GraphBuilder

    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[4])
    for _ in range(30):
        last = builder.add("Dense", last, units=4)
    write_graphs(tmp_path / "deep.jsonl", [builder.graph()])
    out = tmp_path / "out.parquet"
    finished = slotool("predict", predictor, "--graph", tmp_path / "deep.jsonl", "--out", out)
    assert finished.exit_code == 2
    assert "has 31 operators, but the encoding holds 6" in finished.stderr
    assert not out.exists()

    altered = shutil.copytree(predictor, tmp_path / "altered")
    (altered / "predictor.json").write_text("{}")
    with create_artifact(tmp_path / "family", "family", config={}) as writer:
        writer.write_json("a.json", {})
    for path, sentence in (
        (altered, "predictor.json is not what was written"),
        (tmp_path / "family", "this is a family artifact, expected predictor"),
        (tmp_path / "nowhere", "no such artifact folder"),
    ):
        finished = slotool("predict", path, "--graph", measured / "mlps.parquet")
        assert finished.exit_code == 2
        assert sentence in finished.stderr
