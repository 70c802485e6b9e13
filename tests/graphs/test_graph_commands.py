"""``slotool generate`` and ``slotool capture`` as a user runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slotool.errors import RunError, SlotoolError
from slotool.graphs import OperatorGraph
from slotool.graphs.capture import capture_keras
from slotool.graphs.capture.sources import Source
from slotool.graphs.store import read_graphs
from slotool.machine import FACTS_VARIABLE

NETS = """
from torch import nn, special
def tiny():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
class Sorting(nn.Module):
    def forward(self, x):
        return special.bessel_j0(x)
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
    def forward(self, tokens, mask):
        return self.words(tokens) * mask[:, :, None]
"""


MIXED = ["cnn", "--blocks", "plain,residual,depthwise", "--downsample", "none,pool,stride", "--resolutions", "8,16"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("family", [["mlp"], ["cnn"], MIXED], ids=["mlp", "cnn", "mixed"])
def test_generate_writes_the_same_file_for_the_same_seed(slotool, tmp_path: Path, family: list, suffix: str) -> None:
    first, second, other = (tmp_path / f"{name}{suffix}" for name in "abc")
    for path, seed in ((first, 7), (second, 7), (other, 8)):
        finished = slotool("generate", *family, "-o", path, "--count", 50, "--seed", seed, "--json")
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


def test_generate_writes_the_same_bytes_whatever_memory_is_free(
    slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FACTS_VARIABLE, raising=False)  # else this machine is one whose memory is always free
    paths, held = [tmp_path / f"{name}.parquet" for name in "ab"], []
    for path in paths:
        assert slotool("generate", "mlp", "-o", path, "--count", 20).exit_code == 0
        held.append(np.ones(2**25))
    first, second = (path.read_bytes() for path in paths)
    assert first == second


def test_generate_draws_what_its_options_name_and_what_fits_at_the_batch(slotool, tmp_path: Path) -> None:
    out = tmp_path / "mixed.jsonl"
    arguments = ["-o", out, "--count", 60, "--max-memory-gb", "0.01", "--seed", 1, "--json"]
    alone = slotool("generate", *MIXED, *arguments).document
    finished = slotool("generate", *MIXED, *arguments, "--batch-size", 16, "--force")
    assert finished.exit_code == 0, finished.stderr
    assert finished.document["skipped"] > alone["skipped"]
    assert finished.document["blocks"] == ["plain", "residual", "depthwise"]
    graphs = list(read_graphs(out))
    assert all(graph.memory_bytes(16) <= 10**7 for graph in graphs)
    assert {graph.input_shape for graph in graphs} == {(3, 8, 8), (3, 16, 16)}
    operators = [operator for graph in graphs for operator in graph.operators]
    assert {"Conv2D", "DepthwiseConv2D", "Add", "MaxPooling2D"} <= {operator.op for operator in operators}
    assert any(operator.attributes.get("stride") == 2 for operator in operators if operator.op == "Conv2D")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cnn", "--blocks", "plain,dens"], "choose each once, from plain, residual, depthwise"),
        (["cnn", "--downsample", "pool,pool"], "choose each once, from none, pool, stride"),
        (["cnn", "--resolutions", "0"], "has a size below 1"),
        (["cnn", "--resolutions", "x"], "is neither a number"),
        (["cnn", "--resolutions", "32.5"], "'32.5': whole numbers are expected"),
        (["mlp", "--input-shape", "nan"], "'nan': whole numbers are expected"),
        (["mlp", "--count", 4, "--depth", 1, "--units", "0:2"], "the search space has only 3"),
        (["mlp", "--depth", "a:b"], "is not minimum:maximum"),
        (["mlp", "--depth", "5:3"], "5:3"),
        (["mlp", "--units", "0:77"], "no range within 2^0 to 2^30"),
        (["cnn", "--input-shape", "784"], "is not 3 sizes"),
        (["mlp", "--max-memory-gb", "0.000001"], "the smallest network in this search space takes"),
        (["mlp", "--count", "0"], "--count"),
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
    assert (graph.weights, graph.name) == (1370, "command_nets:tiny")
    assert slotool(*arguments).exit_code == 2
    again = slotool(*arguments, "--force", "--json").document
    assert (again["graph_id"], again["weights"], again["unknown"]) == (graph.id, 1370, [])
    assert again["graph"] == graph.document()


def test_capture_takes_several_inputs_by_name(slotool, nets: Path) -> None:
    given = ("--input-shape", "tokens=6;mask=6", "--input-dtype", "tokens=int64;mask=bool")
    finished = slotool("capture", "--torch", "command_nets:Masked", *given, "--json")
    assert finished.exit_code == 0, finished.stderr
    inputs = [o["attributes"] for o in finished.document["graph"]["operators"] if o["op"] == "InputLayer"]
    assert inputs == [{"shape": [6], "dtype": "int64"}, {"shape": [6], "dtype": "bool"}]
    alone = slotool("capture", "--torch", "command_nets:Masked", "--input-shape", "6")
    assert alone.exit_code == 2
    assert "say the shape of each by its name, as tokens=…;mask=…" in alone.stderr


def test_capture_warns_of_what_it_does_not_know(slotool, nets: Path) -> None:
    finished = slotool("capture", "--torch", "command_nets:Sorting", "--input-shape", "8", "--json")
    assert finished.exit_code == 0
    assert "no backend can run the graph" in finished.stderr
    assert "torch.special_bessel_j0" in finished.stderr
    assert finished.document["unknown"] == ["special_bessel_j0"]


def test_capture_keras_prints_the_totals(slotool, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]).save(tmp_path / "net.keras")
    finished = slotool("capture", "--keras", tmp_path / "net.keras", "-o", tmp_path / "net.parquet", "--json")
    assert finished.exit_code == 0, finished.stderr
    assert (finished.document["weights"], finished.document["flops"]) == (36, 64)
    assert [graph.name for graph in read_graphs(tmp_path / "net.parquet")] == ["net"]


@pytest.fixture
def small_applications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for four members of keras.applications, for the real ones take a minute; VGG19 does not build."""
    keras = pytest.importorskip("keras")
    pytest.importorskip("tensorflow", reason="Keras models need TensorFlow, which is not installed")

    def captured(sources: Sequence[Source], *_: object) -> Iterator[tuple[Source, OperatorGraph | SlotoolError]]:
        for source in sources:
            if source.name == "VGG19":
                yield source, RunError("capturing VGG19 failed: ValueError: no room for its weights")
            else:
                model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(len(source.name))])
                yield source, replace(capture_keras(model), name=source.name)

    names = ["MobileNet", "VGG16", "VGG19", "Xception"]
    monkeypatch.setattr("slotool.graphs.capture.loading.application_names", lambda: names)
    monkeypatch.setattr("slotool.graphs.capture.package.captured_side_by_side", captured)


@pytest.mark.usefixtures("small_applications")
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_capture_all_of_keras_leaves_out_and_names_what_fails(slotool, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"applications{suffix}"
    finished = slotool("capture", "--keras", "all", "-o", out)
    assert finished.exit_code == 1, finished.stderr
    assert "VGG19 is left out: capturing VGG19 failed: ValueError: no room for its weights" in finished.stderr
    assert "networks of keras.applications, 1 left out" in finished.stdout
    graphs = {graph.name: graph for graph in read_graphs(out)}
    assert list(graphs) == ["MobileNet", "VGG16", "Xception"]
    assert graphs["VGG16"].output_shape == (5,)
    document = slotool("capture", "--keras", "all", "--json").document
    assert [entry["name"] for entry in document["graphs"]] == list(graphs)
    assert document["graphs"][-1]["graph_id"] == graphs[document["graphs"][-1]["name"]].id
    assert list(document["failed"]) == ["VGG19"]


@pytest.mark.usefixtures("small_applications")
def test_capture_fails_when_all_of_what_was_asked_for_does(slotool, tmp_path: Path) -> None:
    out = tmp_path / "some.parquet"
    finished = slotool("capture", "--keras", "VGG19,VGG19", "-o", out)
    assert finished.exit_code == 3
    assert "none of 1 network could be captured, so nothing is written; the first: capturing VGG19" in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["some.parquet.journal"]
    foreign = slotool("capture", "--keras", "VGG16,VGG17", "-o", out)
    assert foreign.exit_code == 2
    assert "'VGG17' is not in keras.applications; did you mean VGG19?" in foreign.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give exactly one of --keras, --torch and --onnx"),
        (["--keras", "ResNet50", "--torch", "a:b"], "give exactly one of --keras, --torch and --onnx"),
        (["--torch", "a:b"], "--torch needs the shape of one example"),
        (
            ["--keras", "ResNet50", "--input-shape", "3"],
            "to --torch, to models of your own and to free axes of --onnx and .keras",
        ),
        (["--torch", "a:b", "--input-shape", "1,x"], "is not a list of sizes"),
        (["--torch", "no_such_nets:b", "--input-shape", "8"], "no module no_such_nets"),
        (["--torch", "command_nets:tiny", "--input-shape", "9"], "cannot run on inputs of [9]"),
        (["--torch", "command_nets:tiny", "--input-shape", "1,8,8", "-o", "graph.txt"], "ends in .parquet or .jsonl"),
        (["--keras", "none.keras"], "none.keras: no such file"),
    ],
)
def test_capture_refuses(slotool, nets: Path, arguments: list[str], sentence: str) -> None:
    finished = slotool("capture", *arguments)
    assert finished.exit_code == 2
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert {path.name for path in nets.iterdir()} <= {"command_nets.py", "__pycache__"}
