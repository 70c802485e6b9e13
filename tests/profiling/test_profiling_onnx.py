"""The ONNX Runtime backend: one of the backends, with threads, weights and denormals as a label needs them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from slotool.errors import GraphError
from slotool.graphs import OPERATORS, Effect, GraphBuilder, OperatorGraph
from slotool.graphs.architectures import ARCHITECTURES
from slotool.graphs.operators import OperatorType
from slotool.graphs.store import write_graphs
from slotool.profiling.backends import backend_class
from slotool.profiling.backends.torch_backend import TorchBackend
from slotool.tables import LatencyTable
from slotool.testing.backends import BackendConformance, branched_cnn, narrow_mlp, plain_cnn
from tests.graphs.operator_cases import (
    CASES,
    case_names,
    computed_places,
    constants_meet_data,
    graph_of,
    shared_backend,
)

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; pip install 'slotool[onnx]'")
pytest.importorskip("onnx", reason="onnx is not installed; pip install 'slotool[onnx]'")

from slotool.graphs.onnx_model import onnx_model  # noqa: E402
from slotool.profiling.backends.onnx_backend import OnnxBackend  # noqa: E402


class TestOnnx(BackendConformance):
    make = OnnxBackend


def test_it_is_found_by_its_name() -> None:
    assert backend_class("onnx") is OnnxBackend


def test_it_needs_both_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotool.profiling.backends.onnx_backend.find_spec", lambda _: None)
    assert OnnxBackend.missing() == "onnx"


@pytest.mark.parametrize("graph", [narrow_mlp(), plain_cnn(), branched_cnn()], ids=["mlp", "plain", "branched"])
def test_every_backend_gives_the_same_shapes_and_torch_the_same_values(graph: OperatorGraph) -> None:
    found = OnnxBackend().array(OnnxBackend().prepare(graph, 3)())
    torch_backend = TorchBackend()
    wanted = torch_backend.array(torch_backend.prepare(graph, 3)())
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    if find_spec("tensorflow") is not None:
        from slotool.profiling.backends.keras_backend import KerasBackend

        keras_backend = KerasBackend()
        call = keras_backend.prepare(graph, 3)
        assert keras_backend.array(call()).shape == found.shape
        assert len(call.model.layers) == len(graph.operators)


@pytest.mark.parametrize("op", ["MaxPooling2D", "AveragePooling2D"])
def test_padding_wider_than_the_window_behind_it(op: str) -> None:
    builder = GraphBuilder()
    padded = builder.add("ZeroPadding2D", builder.add("InputLayer", shape=[2, 5, 5]), padding=(1, 2))
    builder.add(op, padded, kernel=2, stride=1)
    found, wanted = (b.array(b.prepare(builder.graph(), 2)()) for b in (OnnxBackend(), TorchBackend()))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_it_builds_every_known_operator() -> None:
    not_built = {op for op, kind in OPERATORS.items() if type(kind).onnx is OperatorType.onnx}
    assert not_built == {"InputLayer", "Constant", *CANNOT}


CANNOT = ("Unfold", "Fold")
# By a number that onnxruntime does not leave out as it would a one.
SCALED = ("Rescaling", "Normalization")


@pytest.mark.parametrize(("op", "attributes", "sources"), CASES, ids=case_names())
def test_an_operator_computes_what_it_does_in_torch(op: str, attributes: dict, sources: list) -> None:
    graph, backend = graph_of(op, attributes, sources), shared_backend(OnnxBackend)
    if op in (*CANNOT, "AdaptivePooling"):
        with pytest.raises(GraphError, match="cannot be built in ONNX"):
            backend.prepare(graph, 1)
        return
    found, wanted = (b.array(b.prepare(graph, 3)()) for b in (backend, shared_backend(TorchBackend)))
    assert found.shape == wanted.shape
    if op not in SCALED:
        np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=1e-3, atol=1e-5)


MODELS = {
    "constants": constants_meet_data(),
    "computed places": computed_places(),
    **{name: ARCHITECTURES[name].graph((0,) * len(ARCHITECTURES[name].sizes)) for name in ("swin", "bert", "llama")},
}


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_computes_what_it_does_in_torch(name: str, batch_size: int) -> None:
    graph = MODELS[name]
    found, wanted = (b.array(b.prepare(graph, batch_size)()) for b in (OnnxBackend(), TorchBackend()))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_it_runs_on_the_threads_it_was_given(threads: int) -> None:
    assert OnnxBackend("cpu", threads).threads() == threads


def wide_mlp() -> OperatorGraph:
    """Layers of different widths, with more weights than one block of values."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[2048])
    for units in (2048, 1024, 8):
        last = builder.add("Dense", last, units=units)
    return builder.graph()


def test_weights_are_aligned_and_never_share_memory() -> None:
    backend = OnnxBackend()
    for graph in (narrow_mlp(), wide_mlp(), branched_cnn()):
        _, weights = onnx_model(graph, 1)
        lent = backend._filled(weights)
        assert [array.shape for array in lent] == [weight.shape for weight in weights]
        trained = [array for array, weight in zip(lent, weights, strict=True) if weight.trained]
        assert all(array.ctypes.data % 64 == 0 for array in trained)
        parts = sorted((array.ctypes.data, array.nbytes) for array in lent)
        assert all(at + size <= after for (at, size), (after, _) in pairwise(parts))
        assert all(np.abs(array).max() > 0 for array in lent)
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in trained]
        assert [value.data_ptr() for value in values] == [array.ctypes.data for array in trained], "copied"


def test_a_model_of_many_gigabytes_fits_its_message() -> None:
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[1 << 15])
    for _ in range(4):
        last = builder.add("Dense", last, units=1 << 15)
    graph = builder.graph()
    model, weights = onnx_model(graph, 1)
    assert sum(4 * int(np.prod(weight.shape)) for weight in weights) == 4 * graph.weights > 1 << 34
    assert model.ByteSize() < 10_000


def test_a_campaign_measures_with_it_and_an_unknown_operator_costs_one_row(slotool, tmp_path: Path) -> None:
    builder = GraphBuilder()
    builder.add("Wavelet", builder.add("InputLayer", shape=[4]), name="odd", stated=Effect((4,)))
    write_graphs(tmp_path / "graphs.parquet", [narrow_mlp(), branched_cnn(), builder.graph()])
    options = ["--backend", "onnx", "--threads", 1, "--runs", 3, "--max-seconds-per-item", 0.05, "--json"]
    out = tmp_path / "latency.parquet"
    finished = slotool("profile", "solo", tmp_path / "graphs.parquet", "-o", out, *options)
    assert finished.exit_code == 0, finished.stderr
    rows = LatencyTable.load(out).rows.set_index("subject")
    assert set(rows["backend"]) == {"onnx"}
    assert list(rows.loc[[narrow_mlp().id, branched_cnn().id], "status"]) == ["ok", "ok"]
    assert "Wavelet cannot be built in ONNX" in rows.loc[builder.graph().id, "reason"]


DENORMALS = """
import numpy as np
from slotool.graphs import GraphBuilder
from slotool.profiling.backends.onnx_backend import OnnxBackend
builder = GraphBuilder("mlp")
builder.add("Dense", builder.add("InputLayer", shape=[512]), units=512)
backend = OnnxBackend("cpu", 2)
assert backend.threads() == 2
backend.weight_block[:] = 1e-40
output = backend.array(backend.prepare(builder.graph(), 64)())
raise SystemExit(0 if not output.view(np.int32).any() else "some of its threads compute with denormals")
"""


def test_denormals_are_zero_on_every_thread() -> None:
    """In a process of its own: here, another backend may have set the calling thread already."""
    subprocess.run([sys.executable, "-c", DENORMALS], check=True)
