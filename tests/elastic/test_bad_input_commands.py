"""What build-tables and evaluate cannot work with ends in one sentence and exit 2, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotool.artifacts import create_artifact, open_artifact
from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.slo_nn.build import TableSettings, TableSubject, build
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.stored import DESCRIPTION_FILE, TABLES_FILE, WEIGHTS_FILE
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule

Slotool = Callable[..., Any]
LABELLED = "120 64 10\n" + "3 0:1 5:0.5\n" * 120


def network(shape: tuple[int, ...]) -> MLP:
    rng = np.random.default_rng(0)
    layers = [
        DenseLayer(name, rng.normal(size=(units, inputs)).astype(np.float32), np.zeros(units, dtype=np.float32))
        for name, units, inputs in (("first", 20, 64), ("last", 10, 20))
    ]
    return MLP(shape, tuple(layers))


def saved(path: Path, version: Network) -> Path:
    Family.of(path.name, [version]).save(path, config={"data": "digits"}, seed=0)
    return path


def sentence(done: Any) -> str:
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


def test_a_network_without_relu_layers(slotool: Slotool, tmp_path: Path) -> None:
    builder = GraphBuilder()
    builder.add("Dense", builder.add("Flatten", builder.add("InputLayer", shape=[1, 8, 8])), units=10)
    path = saved(tmp_path / "linear", Network("linear", GraphModule(builder.graph())))
    said = sentence(slotool("build-tables", path, "-o", tmp_path / "t", "--data", "digits"))
    assert "no ReLU layer" in said
    assert not (tmp_path / "t").exists()


def test_data_that_do_not_fit_the_network(slotool: Slotool, tmp_path: Path) -> None:
    path = saved(tmp_path / "wide", Network.of_mlp("wide", network((4, 4, 4))))
    said = sentence(slotool("build-tables", path, "-o", tmp_path / "t", "--data", "digits"))
    assert "the network takes inputs (4, 4, 4) and knows 10 classes, but digits has (1, 8, 8)" in said


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (LABELLED.replace("5:0.5", "64:0.5", 1), "line 2: the feature of '64:0.5' is beyond the 64"),
        (LABELLED.replace("0.5", "nan", 1), "line 2: the value of '5:nan' is no finite number"),
        (LABELLED, "examples are too few for tables; 50 are needed"),
    ],
)
def test_bad_examples(slotool: Slotool, tmp_path: Path, train: str, expected: str) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.txt").write_text(train)
    (tmp_path / "set" / "test.txt").write_text(LABELLED)
    path = saved(tmp_path / "sparse", Network.of_mlp("sparse", network((64,)), sparse=True))
    assert expected in sentence(slotool("build-tables", path, "-o", tmp_path / "t", "--data", tmp_path / "set"))


def test_tables_of_other_weights(slotool: Slotool, tmp_path: Path) -> None:
    mlp = network((1, 8, 8))
    model = build("m", TableSubject(mlp, load_dataset("digits")), "freehash", TableSettings((0.5,), bits=2))
    model.save(tmp_path / "good", config={}, seed=0)
    good = open_artifact(tmp_path / "good")
    weights = good.tensors(WEIGHTS_FILE)
    weights["first.weight"] = weights["first.weight"] * np.float32(1.01)
    with create_artifact(tmp_path / "altered", "slo-nn", config={}) as bundle:
        bundle.write_json(DESCRIPTION_FILE, good.json(DESCRIPTION_FILE))
        bundle.write_tensors(WEIGHTS_FILE, weights)
        bundle.write_tensors(TABLES_FILE, good.tensors(TABLES_FILE))
    said = sentence(slotool("evaluate", tmp_path / "altered", "--data", "digits", "-o", tmp_path / "t.parquet"))
    assert "its tables were built for other weights than it holds" in said
