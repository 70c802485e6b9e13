"""``serve --device``: which worker computes where, and what is refused; with GPUs that are simulated."""

from __future__ import annotations

import gc
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from slotool import devices
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.model_on_workers import Demand
from slotool.planning.promise import Promise
from slotool.planning.service_files import service_text
from slotool.serving import Router
from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine, local_worker
from slotool.serving.engines.messages import CALL, FAILED, READY, REPLY, encode_point
from slotool.serving.engines.worker_process import WorkerProcess
from slotool.serving.operations.sources import Sources
from slotool.tables import FULL
from tests.conftest import Slotool
from tests.cuda_on_cpu import simulated_cuda
from tests.elastic.tiny_slo_nns import network


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "net"
    Family.of("net", [Network.of_mlp("one", network(20, 8, 3))]).save(folder, config={}, seed=0)
    return folder


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "gpu"], "'gpu' is no device; cpu, cuda or cuda:N is expected"),
        (["--device", "cuda:5"], "there is no cuda:5 on this machine; available: cpu, cuda:0, cuda:1"),
        (
            ["--device", "cuda:0,cuda:1", "--engine", "inline"],
            "several GPUs have a worker process each: --engine local",
        ),
        (["--device", "cuda:0,cuda:0", "--engine", "local"], "cuda:0 is named twice"),
        (["--device", "cuda:0,cuda:1", "--engine", "local", "--replicas", "3"], "3 workers for 2 GPUs, which have one"),
        (["--device", "cuda", "--engine", "ray"], "workers of --engine ray compute on the CPU: leave it out"),
        (["--precision", "bf16", "--engine", "ray"], "workers of --engine ray compute in float32: leave it out"),
        (["--precision", "tf32"], "--precision: tf32 is a format of GPUs, and the device is cpu"),
        (["--precision", "int4"], "--precision: 'int4' is none of float32, tf32, bf16, fp16"),
    ],
)
def test_devices_that_cannot_serve_are_refused(
    slotool: Slotool, artifact: Path, options: list[str], sentence: str
) -> None:
    with simulated_cuda():
        done = slotool("serve", artifact, *options)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.split())


def test_the_only_worker_of_an_inline_server_has_its_models_on_the_gpu(artifact: Path) -> None:
    with simulated_cuda():
        served = Sources((artifact,), devices=("cuda:1",)).load(lambda sentence: None)
        assert served["net"].model.device == "cuda:1"
        router = Router(served, InlineInferenceEngine("cuda:1"))
        try:
            assert router.worker_states() == [{"state": "idle", "model": None, "device": "cuda:1"}]
            assert b'slotool_device_workers{device="cuda:1"} 1.0' in router.metrics.text()
            x = np.ones((2, 20), dtype=np.float32)
            answers: list[Any] = []
            router.engine.begin(0, "net", FULL, x, answers.append)
            expected = Sources((artifact,)).load(lambda sentence: None)["net"].model.forward(x, FULL)
            np.testing.assert_allclose(answers[0].tensors["logits"], expected, rtol=1e-5)
        finally:
            router.engine.close()


def test_every_worker_process_has_a_gpu_of_its_own(artifact: Path) -> None:
    """Also one that replaces another; the router itself has no model on any."""
    with simulated_cuda(), mock.patch("slotool.serving.engines.local.WorkerProcess") as made:
        served = Sources((artifact,), mapped=True, devices=("cuda:0", "cuda:1")).load(lambda sentence: None)
        assert served["net"].model.device == "cpu"
        made.return_value.started_s = 0.0
        engine = LocalInferenceEngine(2, devices=("cuda:0", "cuda:1"))
        engine.open(served, lambda worker, alive: None)
        engine._start(1)
    devices = [[each for each in call.args if str(each).startswith("cuda:")] for call in made.call_args_list]
    assert devices == [["cuda:0"], ["cuda:1"], ["cuda:1"]]


def test_a_worker_computes_in_the_format_of_the_server(artifact: Path) -> None:
    with simulated_cuda():
        served = Sources((artifact,), devices=("cuda:0",), precision="bf16").load(lambda sentence: None)
        assert served["net"].model.precision == "bf16"
    options = {"threads": 1, "device": "cpu", "precision": "bf16", "warns": True}
    entry = {
        "name": "net",
        "path": str(artifact),
        "max_batch": 8,
        "points": [encode_point(FULL).decode()],
        "batch_sizes": [],
        "before": [],
    }
    ((_, runner),) = local_worker._warm_runners({**options, "models": [entry]})
    assert (runner.model.device, runner.model.precision) == ("cpu", "bf16")
    with mock.patch("slotool.serving.engines.worker_process.subprocess.Popen") as started:
        LocalInferenceEngine(devices=("cuda:0",), precision="bf16")._new(
            0, {}, [0], 1, low_priority=False
        ).socket.close()
    assert '"precision": "bf16"' in started.call_args.args[0][-1]


def test_a_worker_process_sees_no_other_gpu() -> None:
    assert devices.alone("cpu", {}) == ({}, "cpu")
    assert devices.alone("cuda:1", {}) == ({"CUDA_VISIBLE_DEVICES": "1"}, "cuda:0")
    assert devices.alone("cuda:1", {"CUDA_VISIBLE_DEVICES": "3,GPU-7"}) == ({"CUDA_VISIBLE_DEVICES": "GPU-7"}, "cuda:0")
    with mock.patch("slotool.serving.engines.worker_process.subprocess.Popen") as started:
        WorkerProcess({}, [0], 1, False, "cuda:3").socket.close()
    assert started.call_args.kwargs["env"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert '"device": "cuda:0"' in started.call_args.args[0][-1]


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("words", ["Triton Error [CUDA]: an illegal memory access", "CUDA error, as a client wrote"])
def test_a_worker_whose_gpu_has_failed_answers_and_ends(words: str, is_lost: bool) -> None:
    """Every later call would fail too: another process takes its place."""
    router, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    router.settimeout(5.0)
    options = {"models": [], "tensors_fd": -1, "low_priority": False,
               "socket_fd": -1, "device": "cuda:0"}  # fmt: skip
    router.send(CALL.pack(0, 1))
    router.shutdown(socket.SHUT_WR)
    fault = torch.AcceleratorError("CUDA error: device-side assert triggered") if is_lost else None
    with (
        router,
        own,
        mock.patch.object(socket, "socket", return_value=own),
        mock.patch.object(local_worker, "SharedTensors", return_value=SimpleNamespace(write_text=len, slowed=1.0)),
        mock.patch.object(local_worker, "_warm_runners", return_value=[]),
        mock.patch.object(local_worker, "_answer", side_effect=RuntimeError(words)),
        mock.patch.object(torch.cuda, "synchronize", side_effect=fault),
    ):
        assert local_worker._serve(options) == (1 if is_lost else 0)
        gc.unfreeze()
        assert [REPLY.unpack(router.recv(REPLY.size))[0] for _ in range(2)] == [READY, FAILED]


@pytest.mark.parametrize(("replicas", "line"), [(1, 'device = "cuda:1"'), (2, 'device = "cuda:0,cuda:1"')])
def test_a_planned_service_names_a_gpu_for_each_worker(replicas: int, line: str) -> None:
    kind = WorkerType("1 thread", mock.Mock(), 1, 1.0, "latency.parquet", "cuda:1")
    promise = Promise(50_000.0, 0.99, 0.0, 0.95)
    demands = {"": Demand("", np.zeros(0), promise, {}, [])}
    text = service_text(demands, {"": Pool(kind, "slackfit", replicas)}, {"": {}}, Path(), 10)
    assert {line, 'engine = "local"'} <= set(text.splitlines())
    assert "\nreplicas" not in text
    on_cpu = WorkerType("1 thread", mock.Mock(), 1, 1.0, "latency.parquet")
    assert "device" not in service_text(demands, {"": Pool(on_cpu, "slackfit", replicas)}, {"": {}}, Path(), 10)
