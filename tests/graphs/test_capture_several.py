"""A factory that makes several modules: each is a network of its own, captured by all cores, in the order given."""

from __future__ import annotations

from pathlib import Path

import pytest

import slotool as library
from slotool.errors import ArgumentError, GraphError, WorkerError
from slotool.graphs.capture import load_torch
from slotool.graphs.capture.sources import Source
from slotool.graphs.capture.subprocess_capture import all_captured_apart

SPACE = """
import ctypes
from torch import nn

def net(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

class Crashing(nn.Module):
    def forward(self, x):
        return x if ctypes.string_at(0) else x

def candidates(count=7):
    for width in range(1, count + 1):
        yield f"width {width}", net(width)

def unnamed():
    return [net(1), net(2)]

by_name = {"a": net(1), "b": net(2), "too narrow": nn.Linear(3, 3), "c": net(3)}

def breaks():
    yield "first", net(1)
    yield "second", net(2)
    raise RuntimeError("no more ideas")

def wrong():
    yield "number", 3

def nameless():
    return [3]

def crashes():
    yield "first", net(1)
    yield "crash", Crashing()
    yield "crash again", Crashing()

def twins():
    yield "twin", net(1)
    yield "other", net(3)
    yield "twin", net(2)

def same():
    yield "twin", net(1)
    yield "twin", net(1)

def nothing():
    return []
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "several_nets.py").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(width: int) -> int:
    return 4 * width + width + 2 * width + 2


def test_all_are_captured_in_order_and_by_name(slotool) -> None:
    options = ("--torch", "several_nets.py:candidates", "--input-shape", "4")
    finished = slotool("capture", *options, "-o", "space.jsonl", "--json")
    assert finished.exit_code == 0, finished.stderr
    rows = [(row["name"], row["weights"]) for row in finished.document["graphs"]]
    assert rows == [(f"width {width}", weights(width)) for width in range(1, 8)]
    fewer = slotool("capture", *options, "--factory-arguments", "count=2", "--json")
    assert [row["name"] for row in fewer.document["graphs"]] == ["width 1", "width 2"]


def test_a_list_is_numbered_and_one_that_does_not_fit_is_named(slotool) -> None:
    both = ("--torch", "several_nets:unnamed", "--torch", "several_nets:by_name", "--input-shape", "4")
    finished = slotool("capture", *both, "--json")
    assert finished.exit_code == 1
    names = [row["name"] for row in finished.document["graphs"]]
    assert names == ["several_nets:unnamed[0]", "several_nets:unnamed[1]", "a", "b", "c"]
    assert list(finished.document["failed"]) == ["too narrow"]


def test_what_was_made_before_an_error_stays(slotool) -> None:
    finished = slotool("capture", "--torch", "several_nets:breaks", "--input-shape", "4", "--json")
    assert finished.exit_code == 1
    assert [row["name"] for row in finished.document["graphs"]] == ["first", "second"]
    (sentence,) = finished.document["failed"].values()
    assert sentence == "making several_nets:breaks[2] failed: RuntimeError: no more ideas"


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("wrong", GraphError, "number of several_nets:wrong is no torch.nn.Module, but of type int"),
        ("nameless", GraphError, "several_nets:nameless[0] is no torch.nn.Module, but of type int"),
        ("nothing", GraphError, "several_nets:nothing makes no network"),
        ("twins", GraphError, "several_nets:twins makes two different networks named twin"),
    ],
)
def test_what_makes_no_network_is_one_sentence(name: str, kind: type[Exception], sentence: str) -> None:
    (answer,) = all_captured_apart([Source("torch", f"several_nets:{name}", (4,))])
    error = answer[0][1] if isinstance(answer, list) else answer
    assert type(error) is kind
    assert sentence in str(error)


def test_a_network_made_twice_is_no_other_of_its_name() -> None:
    (answer,) = all_captured_apart([Source("torch", "several_nets:same", (4,))])
    assert isinstance(answer, list)
    assert [name for name, _ in answer] == ["twin", "twin"]


def test_a_crash_ends_the_capture_of_all(real_processes: None) -> None:
    (answer,) = all_captured_apart([Source("torch", "several_nets:crashes", (4,))])
    assert isinstance(answer, WorkerError)
    assert "several_nets:crashes" in str(answer)


def test_who_needs_one_module_gets_no_list() -> None:
    with pytest.raises(GraphError, match="makes several modules, and one is needed"):
        load_torch("several_nets:unnamed")


def test_candidates_are_predicted_from_python_and_the_best_are_found() -> None:
    from torch import nn

    def candidates():
        for width in (8, 64, 512):
            yield f"width {width}", nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    predicted = library.predict(candidates(), input_shape=(4,))
    assert [graph.name for graph in predicted.graphs] == ["width 8", "width 64", "width 512"]
    named = library.predict("several_nets.py:candidates", input_shape=(4,))
    assert len(named.latency_s) == 7
    assert set(library.pareto(named, [1.0] * 7)) <= {f"width {width}" for width in range(1, 8)}
    latency = {"small": 0.1, "slow": 0.5, "large": 0.4, "twin": 0.1}
    assert library.pareto(latency, {"small": 0.7, "slow": 0.8, "large": 0.9, "twin": 0.7}) == ["small", "large"]
    with pytest.raises(ArgumentError, match="slow has none"):
        library.pareto(latency, {"small": 0.7, "large": 0.9, "twin": 0.7})
    with pytest.raises(ArgumentError, match="2 scores of 4 networks"):
        library.pareto(latency, [0.1, 0.2])
    pair = ("twice", nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match="two networks are named twice"):
        library.predict([pair, pair], input_shape=(4,))


def test_versions_of_a_family_are_named_one_by_one(slotool) -> None:
    options = ("--torch", "several_nets:candidates", "--input-shape", "4", "--out", "few.parquet", "--family", "nets")
    finished = slotool("predict", *options)
    assert finished.exit_code == 2
    assert "a factory makes several" in finished.stderr
