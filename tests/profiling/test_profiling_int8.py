"""The backend that quantises: near the float32 answer, its share of FLOPs told, its rows a setting of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slotool.graphs import GraphBuilder
from slotool.graphs.store import write_graphs
from slotool.predictors.labels import join_settings
from slotool.tables import LatencyTable
from slotool.testing.backends import plain_cnn

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; pip install 'slotool[onnx]'")
pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")

from slotool.profiling.backends.onnx_backend import OnnxBackend
from slotool.profiling.backends.onnx_int8_backend import OnnxInt8Backend


def test_a_quantised_network_answers_nearly_as_the_original() -> None:
    graph = plain_cnn()
    backend, other = OnnxInt8Backend(threads=1), OnnxBackend(threads=1)
    found, wanted = backend.array(backend.prepare(graph, 2)()), other.array(other.prepare(graph, 2)())
    assert found.shape == wanted.shape
    assert 0 < np.abs(found - wanted).max() <= 0.1 * np.ptp(wanted)
    assert backend.facts()["int8_share"] > 0.9


def test_weights_of_a_sequence_are_quantised_too(capfd: pytest.CaptureFixture[str]) -> None:
    builder = GraphBuilder()
    last = builder.add("LayerNormalization", builder.add("InputLayer", shape=[4, 8]))
    builder.add("ReLU", builder.add("Dense", last, units=8))
    backend = OnnxInt8Backend(threads=1)
    graph = builder.graph()
    backend.prepare(graph, 1)
    products = sum(operator.flops for operator in graph.operators if operator.op == "Dense")
    assert backend.facts()["int8_share"] == products / graph.flops
    assert "initializer" not in capfd.readouterr().err  # a weight that nothing uses any more


def test_what_has_no_int8_kernel_runs_in_float32() -> None:
    builder = GraphBuilder()
    last = builder.add("InputLayer", shape=[4, 6])
    builder.add("CumulativeSum", last, axis=0)
    backend = OnnxInt8Backend(threads=1)
    graph = builder.graph()
    other = OnnxBackend(threads=1)
    assert np.allclose(backend.array(backend.prepare(graph, 1)()), other.array(other.prepare(graph, 1)()))
    assert backend.facts()["int8_share"] == 0


def test_rows_name_the_precision_and_no_setting_mixes_them(slotool, tmp_path: Path) -> None:
    graph = plain_cnn()
    write_graphs(tmp_path / "graphs.jsonl", [graph])
    rows = {}
    for name in ("onnx", "onnx-int8"):
        out = tmp_path / f"{name}.parquet"
        options = ("--backend", name, "--runs", 1, "--rounds", 1, "--max-seconds-per-item", 0.01, "-o", out)
        finished = slotool("profile", "solo", tmp_path / "graphs.jsonl", *options)
        assert finished.exit_code == 0
        assert ("of the FLOPs ran in int8" in finished.stderr) == (name == "onnx-int8")
        rows[name] = LatencyTable.load(out).rows
    assert rows["onnx"]["precision"].tolist() == ["float32"]
    assert rows["onnx-int8"]["precision"].tolist() == ["int8"]
    assert rows["onnx-int8"]["int8_share"].iloc[0] > 0.9
    old = rows["onnx"].drop(columns=["precision", "int8_share"])
    assert len(old) == 1
    graphs, tables = [], []
    for seed in range(12):
        builder = GraphBuilder()
        builder.add("Dense", builder.add("InputLayer", shape=[4]), units=seed + 1)
        graphs.append(builder.graph())
        for part in (old, rows["onnx-int8"]):
            tables.append(part.assign(subject=graphs[-1].id, content=graphs[-1].id))
    labelled = join_settings(LatencyTable(pd.concat(tables, ignore_index=True), {}), graphs)
    assert {(s.backend, s.precision) for s in labelled.settings} == {("onnx", "float32"), ("onnx-int8", "int8")}
    assert labelled.latency_s.shape == (12, 2)
