"""What only a real CUDA device can show; skipped without one."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.profiling.backends import Backend, backend_class
from slotool.profiling.bench import Bench
from slotool.profiling.campaign import Campaign
from slotool.profiling.plan import Settings, combinations_of
from slotool.profiling.subjects import graph_subject
from slotool.testing.backends import BackendConformance, narrow_mlp, plain_cnn
from slotool.timing.timer import StoppingRule
from tests.profiling.solo_campaign import profile_solo

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
RULE = StoppingRule(runs=20, precision=0.05, max_seconds=1.0)
SETTINGS = Settings(device="cuda:0", rule=RULE)


def dense(units: int, layers: int = 1) -> OperatorGraph:
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=[units])
    for _ in range(layers):
        last = builder.add("Dense", last, units=units)
    return builder.graph()


def measured(backend: Backend, graph: OperatorGraph, batch_size: int = 1) -> dict[str, Any]:
    request = {"subject": dict(graph_subject(graph).request), "batch_size": batch_size}
    return Bench(backend, [0], RULE).answer(request)


def on_cuda(name: str) -> Any:
    """Makes the backend on the device; skips where its library is missing or sees no device."""

    def make(device: str = "cuda:0", **options: Any) -> Backend:
        try:
            return backend_class(name)(device, **options)
        except InputError as error:
            if device == "cuda:0":
                pytest.skip(str(error))
            raise

    return staticmethod(make)


class TestTorch(BackendConformance):
    make = on_cuda("torch")


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
class TestKeras(BackendConformance):
    make = on_cuda("keras")


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="ONNX Runtime is not installed")
class TestOnnx(BackendConformance):
    make = on_cuda("onnx")


@pytest.mark.parametrize("graph", [narrow_mlp(), plain_cnn()], ids=["mlp", "cnn"])
@pytest.mark.parametrize("name", ["torch", "torch-cuda-graph"])
def test_it_agrees_with_the_cpu(name: str, graph: OperatorGraph) -> None:
    here, there = backend_class("torch")("cpu"), backend_class(name)("cuda:0")
    wanted, call = here.array(here.prepare(graph, 2)()), there.prepare(graph, 2)
    for _ in range(2):
        np.testing.assert_allclose(there.array(call()), wanted, rtol=1e-3, atol=1e-5)


def test_float32_is_no_tf32() -> None:
    """TF32 keeps ten bits of the fraction: its error in such a sum is some hundred times larger."""
    backend_class("torch")("cuda:0")
    x = torch.randn(1024, 1024, device="cuda:0")
    error = ((x @ x).double() - x.double() @ x.double()).abs().max() / (x.double() @ x.double()).abs().max()
    assert float(error) < 1e-5


def test_the_events_enclose_the_work_and_the_host_sees_more() -> None:
    """Of a network whose work lasts long and is launched quickly."""
    found = measured(backend_class("torch")("cuda:0"), dense(4096), 1024)
    assert found["status"] == "ok", found
    device, host = np.median(found["device_samples_s"]), np.median(found["samples_s"])
    assert 0.5 * host < device <= host


def test_a_cuda_graph_is_no_slower_than_launching_each_kernel() -> None:
    graph = dense(64, layers=40)
    eager, replayed = (measured(backend_class(name)("cuda:0"), graph) for name in ("torch", "torch-cuda-graph"))
    assert np.median(replayed["samples_s"]) < np.median(eager["samples_s"])


def test_out_of_memory_is_told_and_the_process_goes_on() -> None:
    backend = backend_class("torch")("cuda:0")
    bench = Bench(backend, [0], RULE)
    assert backend.accelerator is not None
    memory = backend.accelerator.memory()
    assert memory is not None
    batch_size = memory.total_bytes // (4 * 1024)
    request = {"subject": dict(graph_subject(dense(1024)).request), "batch_size": 1}
    prepare = backend.prepare

    def takes_all(subject: Any, batch: int) -> Any:
        torch.empty(batch, 1024, device="cuda:0")
        return prepare(subject, batch)

    backend.prepare = takes_all
    assert bench.answer({**request, "batch_size": batch_size})["status"] == "out-of-memory"
    assert bench.answer(request)["status"] == "ok"


def test_the_driver_is_read_without_a_remark() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    backend = backend_class("torch")("cuda:0")
    assert backend.watch is not None
    backend.throttled()
    found = backend.watch.columns()
    assert "NVML" not in found["remarks"]
    assert found["clock_mhz"] > 0


def test_campaigns_alone_and_co_located(tmp_path: Path) -> None:
    subjects = [graph_subject(dense(512)), graph_subject(dense(768))]
    alone = profile_solo(subjects, SETTINGS, tmp_path / "alone.parquet").rows
    assert set(alone["status"]) == {"ok"}
    assert set(alone["device_name"]) == {torch.cuda.get_device_name(0)}
    for sharing, recorded in (("processes", {"processes", "mps"}), ("streams", {"streams"})):
        settings = replace(SETTINGS, placement="shared", sharing=sharing)
        items = combinations_of(subjects, [2], settings)
        with Campaign(items, settings, tmp_path / f"{sharing}.parquet") as campaign:
            pairs = campaign.run().rows
        assert set(pairs["status"]) == {"ok"}
        assert set(pairs["colocation"]) <= recorded
        assert (pairs["degradation_ratio"] > 0.8).all()
