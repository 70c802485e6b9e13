"""Throughput at a p99 of 25 ms beside Ray Serve, LitServe, BentoML and MLServer: one model, one client, one machine.

``python -m tests.perf serving_peers`` installs each peer in an environment of its own (``$SLOTOOL_PEERS``, by default
``.venv/peers``) and serves the shipped MLP's weights there in PyTorch, by the plain way of the peer's documentation
and with its defaults (``peers/``; MLServer without its worker process, which spares it a hop and does not start with
today's uvloop). One open-loop client asks all of them, Poisson arrivals, one example a request; the greatest rate
whose p99 over all requests sent is 25 ms at most, to within 15 %, in one of two tries. Client and server share the
machine's cores. ``SLOTOOL_BENCH_SECONDS``: how long each load lasts (4).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from slotool.artifacts.shipped import shipped_artifact
from slotool.data import load_dataset
from slotool.errors import RunError
from slotool.planning.server_process import server_process
from slotool.rules.switching import LoadTest, greatest_rate, keeps_deadline
from slotool.serving.server import bind
from slotool.workloads import Poisson
from slotool.workloads.channels import TargetServer
from slotool.workloads.client import LoadPlan, LocalRun
from slotool.workloads.endpoint import Channel, Endpoint, ServerAnswer, object_of
from slotool.workloads.http_channel import HttpChannel
from slotool.workloads.infer import InferEndpoint

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).with_name("peers")
P99_S, FIRST_PER_S, READY_WITHIN_S, ASKED = 0.025, 200.0, 120.0, 3.0
JSON = {"Content-Type": "application/json"}


class PlainJson(Endpoint):
    """``POST /predict`` with the example as a flat list."""

    name = "plain-json"
    path = "/predict"

    def request(self, x: np.ndarray, number: int, priority: int = 0) -> tuple[dict[str, str], bytes]:
        return JSON, json.dumps({"input": x.ravel().tolist()}).encode()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        return ServerAnswer(int(object_of(body)["label"]))


class V2Json(Endpoint):
    """Open Inference Protocol with tensors as JSON."""

    name = "v2-json"

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/infer"

    def request(self, x: np.ndarray, number: int, priority: int = 0) -> tuple[dict[str, str], bytes]:
        shape = [1, x.size] if self.model == "digits" else [1, *x.shape]
        tensor = {"name": "input", "datatype": "FP32", "shape": shape, "data": x.ravel().tolist()}
        return JSON, json.dumps({"inputs": [tensor]}).encode()

    def answer(self, headers: Mapping[str, str], body: bytes) -> ServerAnswer:
        outputs = object_of(body)["outputs"]
        told = next((output for output in outputs if output["name"] == "label"), outputs[0])
        return ServerAnswer(int(told["data"][0]))


@dataclass(frozen=True)
class PeerTarget(TargetServer):
    """A server that is asked by an endpoint of this file."""

    endpoint: type[Endpoint] = PlainJson

    def connect(self) -> Channel:
        return HttpChannel(self.endpoint(self.model, self.terms), self.address, self.answer_within_s)


@dataclass(frozen=True)
class Peer:
    """What is installed, and how it is started in a folder of its own: (programs, port, folder) to command."""

    package: str
    command: Callable[[Path, int, Path], list[str]]
    endpoint: type[Endpoint] = PlainJson


def _mlserver(programs: Path, port: int, folder: Path) -> list[str]:
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port(),
                "parallel_workers": 0, "debug": False}  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": "digits", "implementation": "mlserver_runtime.Digits", "parameters": {}}
    (folder / "model-settings.json").write_text(json.dumps(model))
    return [str(programs / "mlserver"), "start", str(folder)]


PEERS = {
    "ray": Peer("ray[serve]", lambda programs, port, _: [f"{programs}/python", f"{HERE}/ray_server.py", str(port)]),
    "litserve": Peer(
        "litserve", lambda programs, port, _: [f"{programs}/python", f"{HERE}/litserve_server.py", str(port)]
    ),
    "bentoml": Peer("bentoml", lambda programs, port, _: [f"{programs}/bentoml", "serve", "bentoml_service:Digits",
                    "--host", "127.0.0.1", "--port", str(port)]),
    "mlserver": Peer("mlserver", _mlserver, V2Json),
}  # fmt: skip


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    artifact = shipped_artifact("mlp").path
    found["slotool, JSON"] = _own(artifact, "by JSON", V2Json)
    for name, peer in PEERS.items():
        # Beside each peer anew: the machine is not the same at the end of ten minutes as at their beginning.
        own = _own(artifact, f"beside {name}", InferEndpoint)
        try:
            with tempfile.TemporaryDirectory() as folder, _served(name, peer, Path(folder), artifact) as url:
                found[name] = _greatest(PeerTarget(url, "http", "digits", endpoint=peer.endpoint), name)
        except (RunError, subprocess.CalledProcessError) as error:
            found[name] = {"skipped": " ".join(str(error).split())[:300]}
        found[name]["slotool"] = own
        _tell(name, found[name])
    print(json.dumps({"benchmark": "serving_peers", "p99_bound_s": P99_S, "found": found}))


def _own(artifact: Path, name: str, endpoint: type[Endpoint]) -> dict[str, Any]:
    with server_process([str(artifact)]) as url:
        return _greatest(PeerTarget(url, "http", "mlp", endpoint=endpoint), f"slotool {name}")


def _tell(name: str, found: dict[str, Any]) -> None:
    if "skipped" in found:
        print(f"{name}: {found['skipped']}")
    elif found["per_s"]:
        found["ratio"] = found["slotool"]["per_s"] / found["per_s"]
        print(f"slotool ÷ {name}: {found['ratio']:.2f} (target: {ASKED:g})", flush=True)
    else:
        print(f"{name} has a longer p99 than {P99_S * 1e3:g} ms at every rate tried", flush=True)


def _greatest(target: TargetServer, name: str) -> dict[str, Any]:
    seconds = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "4"))
    accuracies, split = [], load_dataset("digits").test

    def measure(rate_per_s: float) -> LoadTest:
        first = measure_once(rate_per_s)
        # A machine with other tenants stalls now and then: what fails is tried once more.
        return first if first.p99_s is not None and first.p99_s <= P99_S else measure_once(rate_per_s)

    def measure_once(rate_per_s: float) -> LoadTest:
        run = LocalRun(LoadPlan.draw(Poisson(rate_per_s), seconds, split, seed=1), target)
        run.drive()
        log = run.log()
        tail_s = log.tail_of_all_s(0.99)
        accuracies.append(float(log.correct.sum() / max(1, log.answered.sum())))
        shown = "not all answered" if tail_s is None else f"p99 {tail_s * 1e3:.1f} ms"
        print(f"  {name}: {rate_per_s:.0f}/s, {shown}, send delay {1e3 * np.quantile(log.send_delay_s, 0.99):.1f} ms",
              file=sys.stderr, flush=True)  # fmt: skip
        return LoadTest(name, 1, 1, rate_per_s, tail_s, float((log.latency_s <= P99_S).mean()))

    rate, loads = greatest_rate(measure, FIRST_PER_S, keeps_deadline(P99_S))
    p50_s = min((load.p99_s for load in loads if load.p99_s is not None), default=float("nan"))
    print(f"{name:22} {rate:6.0f}/s within {P99_S * 1e3:g} ms (best p99 of any rate tried {p50_s * 1e3:.1f} ms), "
          f"accuracy {accuracies[0]:.4f}", flush=True)  # fmt: skip
    return {"per_s": rate, "accuracy": accuracies[0], "loads": [(load.rate_per_s, load.p99_s) for load in loads]}


@contextlib.contextmanager
def _served(name: str, peer: Peer, folder: Path, artifact: Path) -> Iterator[str]:
    programs, port = _installed(name, peer.package) / "bin", _free_port()
    environment = {**os.environ, "PEER_WEIGHTS": str(artifact / "weights.safetensors"), "PYTHONPATH": str(HERE),
                   "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                   "PATH": f"{programs}:{os.environ['PATH']}"}  # fmt: skip
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(peer.command(programs, port, folder), cwd=HERE, env=environment, stdout=log,
                                  stderr=log)  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, peer, server, folder / "log")
            yield url
        finally:
            _end(server)


def _wait_until_ready(url: str, peer: Peer, server: subprocess.Popen[bytes], log: Path) -> None:
    endpoint = peer.endpoint("digits", PeerTarget(url, "http", "digits").terms)
    headers, body = endpoint.request(load_dataset("digits").test.x[0], 0)
    until_s = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < until_s and server.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError):
            asked = urllib.request.Request(url + endpoint.path, body, dict(headers))
            with urllib.request.urlopen(asked, timeout=10) as response:
                endpoint.answer({}, response.read())
                return
        time.sleep(0.5)
    raise RunError(f"it does not answer: {log.read_text()[-300:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """The server and whatever it started, some of which does not end with it."""
    try:
        family = [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]
    except psutil.NoSuchProcess:
        family = []
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=20)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def _installed(name: str, package: str) -> Path:
    """The peer's environment, made where there is none; with the very same version of torch."""
    home = Path(os.environ.get("SLOTOOL_PEERS", ROOT / ".venv" / "peers")) / name
    if not (home / ".installed").exists():
        venv.create(home, with_pip=True, clear=True)
        version = torch.__version__.partition("+")[0]
        pip = [home / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install", f"torch=={version}"]
        subprocess.run([*pip, "safetensors", "packaging", "numpy", package], check=True)
        (home / ".installed").touch()
    return home


def _free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
