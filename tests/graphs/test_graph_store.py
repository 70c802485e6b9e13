"""Graph files: what goes in comes out, equal input gives equal bytes, and what is wrong is named by file and row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.generators import RandomGraphs
from slotool.graphs.store import SCHEMA_NAME, read_graphs, write_graphs
from slotool.tables.schema import read_header, schema_name
from tests.graphs.graph_strategies import graphs


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(graphs(), min_size=1, max_size=6))
def test_graphs_come_back_as_they_were(tmp_path: Path, suffix: str, written: list[OperatorGraph]) -> None:
    path = tmp_path / f"graphs{suffix}"
    assert write_graphs(path, written) == len(written)
    back = list(read_graphs(path))
    assert back == written
    assert [(g.id, g.kind, g.name) for g in back] == [(g.id, g.kind, g.name) for g in written]
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_same_seed_same_bytes(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "abc"]
    for path, seed in zip(paths, (5, 5, 6), strict=True):
        write_graphs(path, RandomGraphs("cnn", 200, seed), {"seed": 5})
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second != other


def test_columns_header_and_progress(tmp_path: Path) -> None:
    path, steps = tmp_path / "graphs.parquet", []
    write_graphs(path, RandomGraphs("mlp", 5000, 0), {"seed": 0}, steps.append)
    assert sum(steps) == 5000
    assert len(steps) > 1
    assert schema_name(path) == SCHEMA_NAME == "graphs"
    assert read_header(pq.read_schema(path), path) == {
        "schema": "graphs",
        "schema_version": 1,
        "provenance": {"seed": 0},
    }
    row = pq.read_table(path).slice(4321, 1).to_pylist()[0]
    graph = list(read_graphs(path))[4321]
    assert row["graph_id"] == graph.id
    assert (row["kind"], row["name"], row["operators"]) == ("mlp", None, len(graph.operators))
    assert (row["weights"], row["flops"]) == (graph.weights, graph.flops)
    assert json.loads(row["graph"]) == graph.document()


def test_names_have_a_column_and_files_of_before_had_none(tmp_path: Path) -> None:
    path = tmp_path / "graphs.parquet"
    graphs = [replace(graph, name=name) for graph, name in zip(RandomGraphs("mlp", 2), ("", "VGG16"), strict=True)]
    write_graphs(path, graphs)
    assert pq.read_table(path)["name"].to_pylist() == [None, "VGG16"]
    assert [graph.name for graph in read_graphs(path)] == ["", "VGG16"]
    pq.write_table(pq.read_table(path).drop_columns(["name"]), path)
    assert list(read_graphs(path)) == graphs


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_run_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"graphs{suffix}"
    write_graphs(path, RandomGraphs("mlp", 3))
    before = path.read_bytes()

    def broken():
        yield from RandomGraphs("mlp", 2, seed=9)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_graphs(path, broken())
    with pytest.raises(InputError, match="no graphs to write"):
        write_graphs(path, [])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


LINE = '{"operators":[{"name":"x","op":"InputLayer","attributes":{"shape":[4]}}]}\n'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file has no graphs"),
        (LINE + "{", "line 2: not an operator graph"),
        ("\n" + LINE + "[]", "line 3: not an operator graph"),
        (LINE + '{"id":"0123",' + LINE[1:], "line 2: states the id 0123, but its graph's id is"),
        (LINE.replace("4", "0"), "line 1: operator 'x': InputLayer: shape cannot be [0]"),
        (LINE.encode() + b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: bytes | str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        list(read_graphs(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def rewritten(path: Path, **columns: list) -> Path:
    """The Parquet file with some columns replaced, its header kept."""
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table, path)
    return path


def test_a_bad_parquet_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "graphs.parquet"
    write_graphs(path, RandomGraphs("mlp", 3))
    whole, rows = path.read_bytes(), pq.read_table(path).to_pydict()

    def sentence() -> str:
        with pytest.raises(InputError) as caught:
            list(read_graphs(path))
        path.write_bytes(whole)
        return str(caught.value)

    rewritten(path, graph_id=[*rows["graph_id"][:2], "f" * 16])
    assert f"{path}: row 3: states the id ffff" in sentence()
    rewritten(path, graph=[rows["graph"][0], rows["graph"][1].replace('"units":', '"unitz":'), rows["graph"][2]])
    assert f"{path}: row 2: operator 'dense_1': Dense has no attribute 'unitz'" in sentence()
    rewritten(path, graph=[None, *rows["graph"][1:]])
    assert f"{path}: row 1: not an operator graph" in sentence()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a readable Parquet file" in sentence()
    pq.write_table(pa.table({"x": [1]}), path)
    assert "not graphs" in sentence()
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert "the file has no graphs" in sentence()


@pytest.mark.parametrize(
    ("name", "command"),
    [("net.onnx", "--onnx"), ("net.keras", "--keras"), ("nets.py", "--torch"), ("net.bin", "--torch, --onnx or")],
)
def test_for_a_model_the_command_that_captures_it_is_said(tmp_path: Path, name: str, command: str) -> None:
    (tmp_path / name).write_text("no graphs")
    with pytest.raises(InputError, match=f"no graph file .*slotool capture {command}"):
        list(read_graphs(tmp_path / name))


def test_missing_files_and_foreign_suffixes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such graph file"):
        read_graphs(tmp_path / "none.parquet")
    with pytest.raises(InputError, match=r"ends in \.parquet or \.jsonl"):
        write_graphs(tmp_path / "graphs.csv", RandomGraphs("mlp", 1))
