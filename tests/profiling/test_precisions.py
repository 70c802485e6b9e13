"""Number formats of measurements, and ``torch.compile``: what computes in them, what rows say, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import slotool
from slotool.errors import ArgumentError
from slotool.graphs import OperatorGraph
from slotool.profiling.backends import backend_class
from slotool.testing.backends import branched_cnn, narrow_mlp, plain_cnn
from tests.profiling.simulated_cuda import SimulatedCuda
from tests.profiling.test_profiling_providers import SimulatedOnnxRuntime, needs_onnx

GRAPHS = pytest.mark.parametrize("graph", [narrow_mlp(), plain_cnn(), branched_cnn()], ids=["mlp", "cnn", "branches"])


def outputs(name: str, graph: OperatorGraph, device: str = "cpu", **options: Any) -> np.ndarray:
    backend = backend_class(name)(device, **options)
    return np.array(backend.array(backend.prepare(graph, 3)()))


@GRAPHS
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("name", ["torch", "torch-cuda-graph"])
def test_short_formats_are_those_of_weights_and_activations(
    graph: OperatorGraph, precision: str, dtype: torch.dtype, name: str
) -> None:
    wanted = outputs("torch", graph)
    called: list[Any] = []
    linear, conv = torch.nn.functional.linear, torch.nn.functional.conv2d

    def record(function: Any, *args: Any, **kwargs: Any) -> Any:
        called.append([value.dtype for value in args if isinstance(value, torch.Tensor)])
        return function(*args, **kwargs)

    with (
        SimulatedCuda().installed(),
        mock.patch.object(torch.nn.functional, "linear", partial(record, linear)),
        mock.patch.object(torch.nn.functional, "conv2d", partial(record, conv)),
    ):
        found = outputs(name, graph, "cuda:0", precision=precision)
    assert called
    assert {each for dtypes in called for each in dtypes} <= {dtype}
    assert found.dtype == np.float32
    assert 0 < np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_float32_products_are_short_only_where_that_is_stated() -> None:
    with SimulatedCuda().installed():
        for precision, short in (("tf32", True), (None, False), ("tf32", True), ("float32", False), ("bf16", False)):
            backend = backend_class("torch")("cuda:0", precision=precision)
            assert torch.backends.cuda.matmul.allow_tf32 is short
            assert torch.backends.cudnn.allow_tf32 is short
            assert backend.accelerator is not None
            assert backend.accelerator.settings()["cudnn deterministic"]
            assert backend.precision == (precision or "float32")


@needs_onnx
def test_onnx_runtime_is_asked_for_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimulatedOnnxRuntime(monkeypatch)
    backend = backend_class("onnx")("cuda:0", precision="tf32")
    assert runtime.asked[-1][0][1]["use_tf32"] == "1"
    assert backend.accelerator is not None
    assert backend.accelerator.settings()["use_tf32"] == "1"


@pytest.mark.parametrize(
    ("name", "device", "precision", "sentence"),
    [
        ("torch", "cpu", "tf32", "tf32 is a format of GPUs, and the device is cpu"),
        ("torch", "cpu", "bfloat", "the torch backend computes in float32, tf32, bf16, fp16, not in 'bfloat'"),
        ("onnx", "cuda:0", "bf16", "the onnx backend computes in float32, tf32, not in 'bf16'"),
        ("onnx-int8", "cpu", "float32", "the onnx-int8 backend computes in int8, not in 'float32'"),
    ],
)
def test_what_a_backend_does_not_compute_in_is_refused(name: str, device: str, precision: str, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence) as caught:
        backend_class(name).required_precision(precision, device)
    assert caught.value.argument == "precision"


def test_rows_state_their_format_and_campaigns_of_two_do_not_mix(tmp_path: Any) -> None:
    quick: Any = {"threads": 1, "runs": 2, "rounds": 1, "stable_within": 1.0, "max_seconds": 0.01, "progress": None}
    with pytest.raises(ArgumentError, match="precision: tf32 is a format of GPUs"):
        slotool.profile(narrow_mlp(), tmp_path / "l.parquet", precision="tf32", **quick)
    for precision in ("bf16", "bf16"):
        found = slotool.profile(narrow_mlp(), tmp_path / "l.parquet", precision=precision, **quick)
        assert set(found.latency.rows["precision"]) == {"bf16"}
    with pytest.raises(slotool.errors.AlreadyExistsError, match="number_format bf16 then, None now"):
        slotool.profile(narrow_mlp(), tmp_path / "l.parquet", **quick)


@GRAPHS
def test_a_network_is_compiled_whole_for_its_batch_size(graph: OperatorGraph) -> None:
    """Traced by ``torch.compile``; compiling to machine code, which takes a minute, is left out."""
    asked: list[Any] = []

    def compiled(module: torch.nn.Module, **options: Any) -> Any:
        asked.append(options)
        return real(module, backend="eager", **options)

    real = torch.compile
    with mock.patch.object(torch, "compile", compiled):
        for _ in range(2):
            found = outputs("torch-compile", graph)
    assert asked == [{"fullgraph": True, "dynamic": False}] * 2
    np.testing.assert_allclose(found, outputs("torch", graph), rtol=1e-4, atol=1e-6)


def test_more_networks_are_compiled_than_one_function_may_have_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)

    def backend(graph: Any, example: Any) -> Any:
        counted.append(graph)
        return graph.forward

    real = torch.compile
    with mock.patch.object(torch, "compile", lambda module, **options: real(module, backend=backend, **options)):
        made = backend_class("torch-compile")()
        for batch_size in range(1, 5):
            made.prepare(narrow_mlp(), batch_size)()
    assert len(counted) == 4


def test_operators_are_predicted_in_the_format_that_is_stated(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTOOL_CACHE_DIR", str(tmp_path))
    found = slotool.predict(narrow_mlp(), precision="bf16", threads=1, progress=None)
    assert found.latency_s[0] > 0
    assert found.trained.setting.precision == "bf16"
    assert [path.name.partition("-threads")[0] for path in (tmp_path / "operators").iterdir()] == ["torch-cpu-bf16"]
    for backend, precision, sentence in (
        ("onnx", "bf16", "the onnx backend computes in float32, tf32, not in 'bf16'"),
        ("torch", "tf32", "tf32 is a format of GPUs"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            slotool.predict(narrow_mlp(), precision=precision, backend=backend, threads=1, progress=None)
