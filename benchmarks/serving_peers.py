"""slotool beside what a practitioner would take instead: one network, one core for the server, one for the client.

``python -m benchmarks serving_peers`` installs each peer in an environment of its own (``$SLOTOOL_PEERS``, by default
``.venv/peers``). All serve the shipped MLP of 64 floats: FastAPI routes around ONNX Runtime on uvloop, by JSON and by
raw bytes; LitServe, MLServer, BentoML and Ray Serve in PyTorch by the plain way of their documentation (``peers/``;
LitServe with its fast queue too, MLServer without its worker process, which does not start with today's uvloop); and
Triton's Python backend by PyTriton, with dynamic batches. Each must give the network's own answer before it is
measured.

The client is written in C (``load.c``). A round takes the servers in random order, each in a fresh process: a closed
loop over 1 and over 32 connections, with the CPU time that a request costs the server's processes, then the greatest
rate of Poisson arrivals whose p99 is 25 ms at most, where a rate fails only when the median of three tries does.
``SLOTOOL_BENCH_SECONDS``: of each load (10); ``SLOTOOL_BENCH_ROUNDS`` (5); ``SLOTOOL_BENCH_PEERS``: beginnings of the
names of those to measure beside slotool, separated by commas. ``SLOTOOL_BENCH_JOURNAL``: a file that keeps what is
measured, where another run goes on; ``SLOTOOL_BENCH_LIMIT_S``: begin with no further server after so many seconds, of
which each takes two to four minutes by the defaults.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peer_servers import OPEN_CONNECTIONS, Question, Running, free_port, served, spread, summed_up
from benchmarks.rate_search import greatest_rate
from slotool.artifacts.bundle import shipped_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.errors import RunError

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).with_name("peers")
P99_S, CLOSED = 0.025, (1, 32)
# Where the search begins: this share of what 32 connections get.
FIRST_SHARE = 0.8
JSON, BINARY = {"Content-Type": "application/json"}, {"Content-Type": "application/octet-stream"}
INFER = "/v2/models/{}/infer"
SLOTOOL, SLOTOOL_JSON = "slotool, binary tensors", "slotool, JSON"
# CPU time of a request at most this share of FastAPI's, and the rate so many times each peer's.
CPU_GOAL, RATE_GOAL = 1 / 3, 3.0


@dataclass(frozen=True)
class Peer:
    """A server: what is installed for it, how it is started in a folder of its own (programs, port, folder to command),
    and what it is asked."""

    packages: tuple[str, ...]
    command: Callable[[Path, int, Path], list[str]]
    question: Callable[[np.ndarray], Question]


def binary_question(
    x: np.ndarray, model: str = "mlp", names: tuple[str, str] = ("input", "label"), **more: Any
) -> Question:
    """Open Inference Protocol, tensor in binary form, of the outputs only the label."""
    size = {"binary_data_size": x.nbytes}
    tensor = {"name": names[0], "datatype": "FP32", "shape": list(x.shape), "parameters": size}
    head = json.dumps({**more, "inputs": [tensor], "outputs": [{"name": names[1]}]}).encode()
    headers = {**BINARY, "Inference-Header-Content-Length": str(len(head))}
    return Question(INFER.format(model), headers, head + x.tobytes(), _label_of_outputs)


def v2_json_question(x: np.ndarray, model: str = "mlp", shape: tuple[int, ...] | None = None) -> Question:
    """The same with numbers as JSON."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(shape or x.shape), "data": x.ravel().tolist()}
    return Question(INFER.format(model), JSON, json.dumps({"inputs": [tensor]}).encode(), _label_of_outputs)


def plain_json_question(x: np.ndarray) -> Question:
    """The example as a flat list of numbers."""
    return Question("/predict", JSON, json.dumps({"input": x.ravel().tolist()}).encode(), _plain_label)


def raw_question(x: np.ndarray) -> Question:
    """The example's bytes and nothing else."""
    return Question("/predict", BINARY, x.tobytes(), _plain_label)


def _label_of_outputs(body: bytes) -> int:
    outputs = json.loads(body)["outputs"]
    output = next((each for each in outputs if each["name"] == "label"), outputs[0])
    return int(np.ravel(output["data"])[0])


def _plain_label(body: bytes) -> int:
    return int(json.loads(body)["label"])


def _slotool(programs: Path, port: int, folder: Path) -> list[str]:
    artifact = str(shipped_artifact("mlp").path)
    return [sys.executable, "-m", "slotool", "serve", artifact, "--name", "mlp", "--port", str(port)]


def _fastapi(kind: str) -> Callable[[Path, int, Path], list[str]]:
    def command(programs: Path, port: int, folder: Path) -> list[str]:
        model = folder / "mlp.onnx"
        save_onnx(shipped_artifact("mlp").path / "weights.safetensors", model)
        return [str(programs / "python"), str(HERE / "front_end.py"), kind, str(port), str(model)]

    return command


def _litserve(*more: str) -> Callable[[Path, int, Path], list[str]]:
    return lambda programs, port, _: [str(programs / "python"), str(HERE / "litserve_server.py"), str(port), *more]


def _mlserver(programs: Path, port: int, folder: Path) -> list[str]:
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": free_port(), "metrics_port": free_port(),
                "parallel_workers": 0, "debug": False}  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": "digits", "implementation": "mlserver_runtime.Digits", "parameters": {}}
    (folder / "model-settings.json").write_text(json.dumps(model))
    return [str(programs / "mlserver"), "start", str(folder)]


def _bentoml(programs: Path, port: int, folder: Path) -> list[str]:
    where = ["--working-dir", str(HERE), "--host", "127.0.0.1", "--port", str(port)]
    return [str(programs / "bentoml"), "serve", "bentoml_service:Digits", *where]


def _triton(programs: Path, port: int, folder: Path) -> list[str]:
    ports = [str(each) for each in (port, free_port(), free_port())]
    return [str(programs / "python"), str(HERE / "triton_server.py"), *ports]


def _triton_question(x: np.ndarray) -> Question:
    return binary_question(x.reshape(1, -1), "digits")


def _mlserver_question(x: np.ndarray) -> Question:
    return v2_json_question(x, "digits", (1, x.size))


FASTAPI = ("uvloop", "httptools", "uvicorn", "fastapi", "onnxruntime")
TORCH = (f"torch=={torch.__version__.partition('+')[0]}", "safetensors", "packaging", "numpy")
PEERS = {
    SLOTOOL: Peer((), _slotool, binary_question),
    f"{SLOTOOL}, deadline of 50 ms": Peer((), _slotool, partial(binary_question, parameters={"timeout": 50_000})),
    SLOTOOL_JSON: Peer((), _slotool, v2_json_question),
    "FastAPI + ONNX Runtime, raw bytes": Peer(FASTAPI, _fastapi("fastapi"), raw_question),
    "FastAPI + ONNX Runtime, JSON": Peer(FASTAPI, _fastapi("fastapi-json"), plain_json_question),
    "LitServe": Peer((*TORCH, "litserve"), _litserve(), plain_json_question),
    "LitServe, fast queue": Peer((*TORCH, "litserve"), _litserve("--fast-queue"), plain_json_question),
    "MLServer": Peer((*TORCH, "mlserver"), _mlserver, _mlserver_question),
    "BentoML": Peer((*TORCH, "bentoml"), _bentoml, plain_json_question),
    "Triton, Python backend": Peer((*TORCH, "nvidia-pytriton"), _triton, _triton_question),
    "Ray Serve": Peer(
        (*TORCH, "ray[serve]"), lambda bin, port, _: [f"{bin}/python", f"{HERE}/ray_server.py", str(port)],
        plain_json_question,
    ),
}  # fmt: skip


def main() -> None:
    seconds = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "10"))
    names, order = _asked(), random.Random(0)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    skipped: dict[str, str] = {}
    journal, until_s = _journal(), time.monotonic() + float(os.environ.get("SLOTOOL_BENCH_LIMIT_S", "inf"))
    known = {(line["round"], line["name"]): line for line in journal.read()}
    for number in range(int(os.environ.get("SLOTOOL_BENCH_ROUNDS", "5"))):
        for name in order.sample(names, len(names)):
            if name in skipped or (time.monotonic() > until_s and (number, name) not in known):
                continue
            line = known.get((number, name)) or journal.keep(_tried(name, seconds, number))
            if "skipped" in line:
                skipped[name] = line["skipped"]
            else:
                rounds[name].append(line["found"])
    figures = {name: _summed_up(runs) for name, runs in rounds.items() if runs}
    _tell(figures, skipped)
    print(json.dumps({"benchmark": "serving_peers", "p99_bound_s": P99_S, "seconds": seconds, "found": figures,
                      "skipped": skipped}))  # fmt: skip


class _Journal:
    """A JSON line per server and round; nothing is kept without a file."""

    def __init__(self, path: Path | None):
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        if self._path is None or not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def keep(self, line: dict[str, Any]) -> dict[str, Any]:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line


def _journal() -> _Journal:
    path = os.environ.get("SLOTOOL_BENCH_JOURNAL")
    return _Journal(Path(path) if path else None)


def _tried(name: str, seconds: float, number: int) -> dict[str, Any]:
    line = {"round": number, "name": name}
    try:
        return {**line, "found": _round(name, seconds, number)}
    except (RunError, subprocess.CalledProcessError) as error:
        return {**line, "skipped": " ".join(str(error).split())[:300]}


def _asked() -> list[str]:
    """The names of those to measure, the FastAPI routes first."""
    beginnings = tuple(os.environ.get("SLOTOOL_BENCH_PEERS", "").lower().split(","))
    return [name for name in PEERS if name.startswith("slotool") or name.lower().startswith(beginnings)]


def _round(name: str, seconds: float, seed: int) -> dict[str, Any]:
    """One server, once."""
    figures: dict[str, Any] = {}
    with _running(name) as server:
        for connections in CLOSED:
            figures[str(connections)] = server.closed_loop(connections, seconds)
        tries: list[tuple[float, float]] = []

        def tail_s(rate_per_s: float) -> float:
            samples = server.load(OPEN_CONNECTIONS, seconds, rate_per_s, seed=1_000 * seed + len(tries))
            tries.append((rate_per_s, samples.quantile_s(0.99)))
            return tries[-1][1]

        figures["rate_per_s"] = greatest_rate(tail_s, FIRST_SHARE * figures[str(CLOSED[-1])]["per_s"], P99_S)
    one, many = (figures[str(connections)] for connections in CLOSED)
    print(f"  {name}: {figures['rate_per_s']:.0f}/s within {P99_S * 1e3:g} ms ({len(tries)} loads); closed loop "
          f"{one['per_s']:.0f} and {many['per_s']:.0f}/s, CPU {one['cpu_s'] * 1e6:.0f} and "
          f"{many['cpu_s'] * 1e6:.0f} µs", file=sys.stderr, flush=True)  # fmt: skip
    return figures


@contextlib.contextmanager
def _running(name: str) -> Iterator[Running]:
    peer, port = PEERS[name], free_port()
    artifact = shipped_artifact("mlp").path
    model, x = load_model(str(artifact)), load_dataset("digits").test.x[:1].astype(np.float32)
    label = int(model.forward(x, model.full).argmax())
    programs = installed(name, peer.packages) / "bin" if peer.packages else Path(sys.executable).parent
    environment = {"PEER_WEIGHTS": str(artifact / "weights.safetensors"), "OMP_NUM_THREADS": "1",
                   "PYTHONDONTWRITEBYTECODE": "1", "PATH": f"{programs}:{os.environ['PATH']}"}  # fmt: skip
    if peer.packages:
        environment["PYTHONPATH"] = str(HERE)
    with tempfile.TemporaryDirectory() as folder:
        command = peer.command(programs, port, Path(folder))
        with served(command, port, peer.question(x), label, Path(folder), environment) as server:
            yield server


def save_onnx(weights: Path, path: Path) -> None:
    """The dense layers of an artifact's ``weights.safetensors``, those of ``peers/network.py``, as an ONNX network."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import load_file

    from benchmarks.peers.network import LAYERS

    of = {tuple(key.split(".")[-2:]): value for key, value in load_file(weights).items()}
    nodes, constants, at = [], [], "pixels"
    for name in LAYERS:
        constants += [numpy_helper.from_array(of[name, part], f"{name}.{part}") for part in ("weight", "bias")]
        to = "scores" if name == LAYERS[-1] else f"{name}.out"
        nodes.append(helper.make_node("Gemm", [at, f"{name}.weight", f"{name}.bias"], [to], transB=1))
        if to != "scores":
            nodes.append(helper.make_node("Relu", [to], [f"{name}.relu"]))
        at = f"{name}.relu"
    sizes = {"pixels": of[LAYERS[0], "weight"].shape[1], "scores": of[LAYERS[-1], "weight"].shape[0]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in sizes.items()]
    graph = helper.make_graph(nodes, "mlp", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _summed_up(runs: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {str(each): summed_up([run[str(each)] for run in runs]) for each in CLOSED}
    return {"rate_per_s": spread([run["rate_per_s"] for run in runs]), "rounds": len(runs), **figures}


def _tell(results: dict[str, Any], skipped: dict[str, str]) -> None:
    own = results.get(SLOTOOL)
    for name, figures in results.items():
        rate, spent = figures["rate_per_s"], [figures[str(each)]["cpu_s"]["median"] for each in CLOSED]
        closed = [figures[str(each)]["per_s"]["median"] for each in CLOSED]
        beside = ""
        if own is not None and not name.startswith("slotool") and rate["median"]:
            ratio = own["rate_per_s"]["median"] / rate["median"]
            share = own[str(CLOSED[-1])]["cpu_s"]["median"] / spent[-1]
            beside = f"; slotool: {ratio:.2f} x the rate (goal {RATE_GOAL:g}), {share:.2f} of the CPU over 32"
            beside += f" (goal {CPU_GOAL:.2f})" if name.startswith("FastAPI") else ""
        print(f"{name:34} {rate['median']:6.0f}/s ({rate['least']:.0f} to {rate['most']:.0f}) within "
              f"{P99_S * 1e3:g} ms; closed loop over 1 / 32 connections {closed[0]:.0f} / {closed[1]:.0f}/s, CPU "
              f"{spent[0] * 1e6:.0f} / {spent[1] * 1e6:.0f} µs a request{beside}", flush=True)  # fmt: skip
    for name, sentence in skipped.items():
        print(f"{name}: {sentence}")


def installed(name: str, packages: tuple[str, ...]) -> Path:
    """The peer's environment, made where there is none; with the very same version of torch."""
    folder = name.partition(",")[0].partition(" ")[0].lower()
    home = Path(os.environ.get("SLOTOOL_PEERS", ROOT / ".venv" / "peers")) / folder
    if not (home / ".installed").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [home / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, *packages], check=True)
        (home / ".installed").touch()
    return home


if __name__ == "__main__":
    main()
