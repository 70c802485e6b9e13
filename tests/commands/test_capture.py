"""``slotool.capture``: graphs of model objects and of named models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import slotool
from slotool.errors import ArgumentError, GraphError

NETS = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
"""


def test_a_module_and_its_factory_have_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    (tmp_path / "api_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    found = slotool.capture([module, "api_nets:tiny"], tmp_path / "nets.jsonl", input_shape=(8,))
    ids = {graph.id for graph in found.graphs}
    assert len(ids) == 1
    assert found.frame()["name"].tolist() == ["Sequential", "api_nets:tiny"]
    assert [graph.id for graph in slotool.load(tmp_path / "nets.jsonl")] == [*ids] * 2
    assert repr(found).startswith("2 networks of torch\n")


def test_one_network_is_shown_operator_by_operator_with_what_it_lacks() -> None:
    from torch import nn

    found = slotool.capture(nn.Linear(8, 4).half(), input_shape=(8,))
    assert found.document["source"] == "Linear"
    assert found.warnings == ["the network is float16; predictions and profiles of graphs are of float32 ones"]
    assert repr(found).splitlines()[1] == f"Linear, graph {found.graphs[0].id}"


def test_networks_that_cannot_be_captured_are_left_out_and_named(tmp_path: Path) -> None:
    from torch import nn

    asked = {"words": nn.Embedding(8, 4), "first": nn.Linear(8, 4), "rows": nn.Bilinear(8, 8, 2), "last": nn.ReLU()}
    with pytest.warns(slotool.errors.SlotoolWarning, match="is left out: ") as warned:
        found = slotool.capture(asked, tmp_path / "nets.jsonl", input_shape=[(8,)] * 4, input_dtype="float32")
    assert [str(each.message).partition(" is ")[0] for each in warned] == ["words", "rows"]
    assert [graph.name for graph in slotool.load(tmp_path / "nets.jsonl")] == ["first", "last"]
    assert list(found.document["failed"]) == ["words", "rows"]
    assert "int64" in found.failed["words"]
    with pytest.raises(GraphError, match=r"none of 2 networks .*: Embedding cannot .*int64.*; Bilinear takes 2"):
        slotool.capture([asked["words"], asked["rows"]], tmp_path / "no.jsonl", input_shape=(8,), input_dtype="float32")
    assert not (tmp_path / "no.jsonl").exists()


def test_only_graph_files_are_written(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"ends in \.parquet or \.jsonl"):
        slotool.capture("ResNet50", tmp_path / "nets.txt")


@pytest.mark.parametrize("shape", [8, {"input": 8}, (), (0,)])
def test_what_is_no_shape_is_an_argument_error(shape: object) -> None:
    with pytest.raises(ArgumentError, match="is not a list of sizes such as"):
        slotool.capture(torch.nn.Linear(8, 4), input_shape=shape)
