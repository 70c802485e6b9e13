"""``slotool generate`` and ``slotool capture`` as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotool.graphs.store import read_graphs

NETS = """
from torch import nn
def tiny():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
class Sorting(nn.Module):
    def forward(self, x):
        return x.sort(dim=1)[0]
"""


@pytest.mark.parametrize("family", ["mlp", "cnn"])
def test_generate_writes_the_same_file_for_the_same_seed(slotool, tmp_path: Path, family: str) -> None:
    first, second, other = (tmp_path / f"{name}.parquet" for name in "abc")
    for path, seed in ((first, 7), (second, 7), (other, 8)):
        finished = slotool("generate", family, "-o", path, "--count", 50, "--seed", seed, "--json")
        assert finished.exit_code == 0, finished.stderr
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
    graphs = list(read_graphs(other))
    assert finished.document["written"] == len({graph.id for graph in graphs}) == 50
    assert finished.document["weights_max"] == max(graph.weights for graph in graphs)
    assert finished.document["flops_min"] == min(graph.flops for graph in graphs)


def test_generate_for_a_person_within_bounds(slotool, tmp_path: Path) -> None:
    out = tmp_path / "small.jsonl"
    options = ["--count", 20, "--depth", "2:3", "--units", "0:6", "--input-shape", 16, "--max-memory-gb", "0.00001"]
    finished = slotool("generate", "mlp", "-o", out, *options)
    assert finished.exit_code == 0, finished.stderr
    assert "skipped, over 1e-05 GB" in finished.stdout
    graphs = list(read_graphs(out))
    assert len(graphs) == 20
    assert all(graph.input_shape == (16,) and graph.memory_bytes() <= 10_000 for graph in graphs)
    assert {len(graph.operators) - 2 for graph in graphs} == {2, 3}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mlp", "--count", 4, "--depth", 1, "--units", "0:2"], "only 3 different ones lie within the bounds"),
        (["mlp", "--depth", "a:b"], "is not least:greatest"),
        (["mlp", "--depth", "5:3"], "no range of at least 1 layer"),
        (["mlp", "--units", "0:77"], "no range within 2^0 to 2^30"),
        (["cnn", "--input-shape", "784"], "is not 3 sizes"),
        (["mlp", "--max-memory-gb", "0.000001"], "the smallest network within these bounds takes"),
        (["mlp", "--count", "0"], "greater than or equal to 1"),
    ],
)
def test_generate_refuses(slotool, tmp_path: Path, arguments: list, sentence: str) -> None:
    finished = slotool("generate", *arguments, "-o", tmp_path / "graphs.parquet")
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_generate_replaces_only_with_force(slotool, tmp_path: Path) -> None:
    out = tmp_path / "graphs.parquet"
    out.write_text("precious")
    finished = slotool("generate", "mlp", "-o", out, "--count", 3)
    assert finished.exit_code == 2
    assert "--force" in finished.stderr
    assert out.read_text() == "precious"
    assert slotool("generate", "mlp", "-o", out, "--count", 3, "--force").exit_code == 0
    assert len(list(read_graphs(out))) == 3
    foreign = slotool("generate", "mlp", "-o", tmp_path / "graphs.csv")
    assert foreign.exit_code == 2
    assert "ends in .parquet or .jsonl" in foreign.stderr


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "command_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_capture_torch_prints_and_writes_the_graph(slotool, nets: Path) -> None:
    arguments = ["capture", "--torch", "command_nets:tiny", "--input-shape", "1,8,8", "-o", "tiny.jsonl"]
    finished = slotool(*arguments)
    assert finished.exit_code == 0, finished.stderr
    assert finished.stderr == ""
    assert "1,370" in finished.stdout
    assert "8×8×8" in finished.stdout
    (graph,) = read_graphs(nets / "tiny.jsonl")
    assert graph.weights == 1370
    assert slotool(*arguments).exit_code == 2
    again = slotool(*arguments, "--force", "--json").document
    assert (again["graph_id"], again["weights"], again["unknown"]) == (graph.id, 1370, [])
    assert again["graph"] == graph.document()


def test_capture_warns_of_what_it_does_not_know(slotool, nets: Path) -> None:
    finished = slotool("capture", "--torch", "command_nets:Sorting", "--input-shape", "8", "--json")
    assert finished.exit_code == 0
    assert "kept by name alone" in finished.stderr
    assert "torch.sort" in finished.stderr
    assert finished.document["unknown"] == ["sort"]


def test_capture_keras_prints_the_totals(slotool, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]).save(tmp_path / "net.keras")
    finished = slotool("capture", "--keras", tmp_path / "net.keras", "-o", tmp_path / "net.parquet", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert (finished.document["weights"], finished.document["flops"]) == (36, 64)
    assert len(list(read_graphs(tmp_path / "net.parquet"))) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give exactly one of --keras, --torch and --onnx"),
        (["--keras", "ResNet50", "--torch", "a:b"], "give exactly one of --keras, --torch and --onnx"),
        (["--torch", "a:b"], "--torch and --input-shape go together"),
        (["--keras", "ResNet50", "--input-shape", "3"], "--torch and --input-shape go together"),
        (["--torch", "a:b", "--input-shape", "1,x"], "is not a list of sizes"),
        (["--torch", "no_such_nets:b", "--input-shape", "8"], "no module no_such_nets"),
        (["--torch", "command_nets:tiny", "--input-shape", "9"], "cannot run on an input of [9]"),
        (["--torch", "command_nets:tiny", "--input-shape", "1,8,8", "-o", "graph.txt"], "ends in .parquet or .jsonl"),
        (["--keras", "none.keras"], "none.keras: no such file"),
    ],
)
def test_capture_refuses(slotool, nets: Path, arguments: list[str], sentence: str) -> None:
    finished = slotool("capture", *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert {path.name for path in nets.iterdir()} <= {"command_nets.py", "__pycache__"}
