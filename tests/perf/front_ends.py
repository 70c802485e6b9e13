"""What speaks HTTP in front of slotool, and what it costs: today's, uvicorn as it comes, granian's RSGI; and today's
without each of its shortcuts.

One example of 64 floats as a binary tensor to the shipped MLP, the servers on one core in turn, ``wrk`` (in C) on
the other with one connection and with 32, in rounds of random order; CPU time is that of the server's process. Then the
greatest share of the rate with 32 connections, offered by Poisson arrivals, whose p99 is 25 ms at most. Beside them a
FastAPI route around ONNX Runtime with a network of the same shape, raw bytes in, and llhttp on uvloop that answers
without a model. ``python -m tests.perf front_ends`` makes an environment with uvloop, granian and FastAPI
(``$SLOTOOL_PEERS``); it needs ``wrk``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slotool.artifacts.shipped import shipped_artifact
from slotool.data import load_dataset
from slotool.errors import RunError
from slotool.process import bound_to, cores_by_preference
from tests.perf.open_loop import OpenLoop
from tests.perf.peers.front_end import SHORTCUTS
from tests.perf.served_request import _onnx_family
from tests.perf.serving_peers import HERE, ROOT, _end, _free_port

ROUNDS, SECONDS, OPEN_SECONDS, P99_S = 5, 1, 3.0, 0.025
SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
PATH = "/v2/models/mlp/infer"
WITHOUT = "slotool without "
PACKAGES = ("uvloop", "granian", "uvicorn", "httptools", "fastapi", "onnxruntime")
_LATENCY, _TOTAL = re.compile(r"50%\s+([\d.]+)(us|ms|s)"), re.compile(r"(\d+) requests in ([\d.]+)s")
_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def main() -> None:
    if shutil.which("wrk") is None:
        raise RunError("wrk is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows: dict[str, dict[str, Any]] = {}
        with contextlib.ExitStack() as stack:
            servers = {kind: stack.enter_context(_served(kind, folder)) for kind in _commands(folder)}
            for kind, (process, port) in servers.items():
                script = _script(folder, kind)
                runs: dict[str, list[dict[str, float]]] = {"1": [], "32": []}
                rows[kind] = {"runs": runs, "script": script, "port": port, "pid": process.pid}
            order = random.Random(0)
            for _ in range(ROUNDS):
                for row in order.sample(list(rows.values()), len(rows)):
                    for connections, measured in row["runs"].items():
                        measured.append(_wrk(row["port"], row["pid"], int(connections), row["script"]))
            found = {kind: _medians(row["runs"]) for kind, row in rows.items()}
            for kind in order.sample(list(rows), len(rows)):
                if not kind.startswith(WITHOUT):
                    rate_per_s = found[kind]["32"]["per_s"]
                    found[kind]["goodput_per_s"] = _goodput(rows[kind]["port"], _request(kind), rate_per_s)
            for kind, figures in found.items():
                _tell(kind, figures)
    print(json.dumps({"benchmark": "front_ends", "p99_bound_s": P99_S, "found": found}))


def _commands(folder: Path) -> dict[str, list[str]]:
    """By front end, how it is started but for its port."""
    artifact, script = str(shipped_artifact("mlp").path), str(HERE / "front_end.py")
    python = str(_environment() / "bin" / "python")
    serve = [sys.executable, "-m", "slotool", "serve", artifact, "--name", "mlp"]
    onnx = folder / "mlp.onnx"
    if not onnx.exists():
        _onnx_family(folder, 64)
    return {
        "slotool": serve,
        "slotool, uvloop": [python, script, "fast-uvloop", artifact],
        **{WITHOUT + name: [sys.executable, script, name, artifact] for name in SHORTCUTS},
        "slotool, --http uvicorn": [*serve, "--http", "uvicorn"],
        "uvicorn, asyncio": [python, script, "asyncio", artifact],
        "uvicorn, uvloop": [python, script, "uvloop", artifact],
        "granian, RSGI, uvloop": [python, script, "granian", artifact],
        "FastAPI + ONNX Runtime": [python, script, "fastapi", str(onnx)],
        "llhttp on uvloop, no model": [python, script, "echo", artifact],
    }


@contextlib.contextmanager
def _served(kind: str, folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    port, cores = _free_port(), cores_by_preference()
    command = _commands(folder)[kind]
    command = [*command, "--port", str(port)] if "serve" in command else [*command[:3], str(port), command[3]]
    with (folder / f"{kind}.log").open("w") as log, bound_to([cores[0]]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait_until_ready(kind, port, server, folder / f"{kind}.log")
        yield psutil.Process(server.pid), port
    finally:
        _end(server)


def _wait_until_ready(kind: str, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s and server.poll() is None:
        with contextlib.suppress(OSError):
            headers, body = _request_of(kind)
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", body, headers)
            with urllib.request.urlopen(asked, timeout=10) as response:
                assert b"label" in response.read()
                return
        time.sleep(0.3)
    raise RunError(f"{kind} does not answer: {log.read_text()[-400:]}")


def _request_of(kind: str) -> tuple[dict[str, str], bytes]:
    x = load_dataset("digits").test.x[:1].astype(np.float32)
    if kind.startswith("FastAPI"):
        return {"Content-Type": "application/octet-stream"}, x.tobytes()
    tensor = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "label"}]}).encode()
    named = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return named, head + x.tobytes()


def _request(kind: str) -> bytes:
    headers, body = _request_of(kind)
    lines = [f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _script(folder: Path, kind: str) -> Path:
    """What wrk sends."""
    headers, body = _request_of(kind)
    lua, raw = folder / f"{kind}.lua", folder / f"{kind}.body"
    raw.write_bytes(body)
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    lines += ['wrk.method = "POST"', f'wrk.path = "{PATH}"', f'local file = io.open("{raw}", "rb")',
              'wrk.body = file:read("*all")']  # fmt: skip
    lua.write_text("\n".join(lines) + "\n")
    return lua


def _wrk(port: int, pid: int, connections: int, script: Path) -> dict[str, float]:
    server, core = psutil.Process(pid), cores_by_preference()[1]
    before = server.cpu_times()
    command = ["taskset", "-c", str(core), "wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "--latency", "-s",
               str(script), f"http://127.0.0.1:{port}{PATH}"]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = server.cpu_times()
    assert "Non-2xx" not in said, said
    latency, total = _LATENCY.search(said), _TOTAL.search(said)
    assert latency is not None, said
    assert total is not None, said
    requests = int(total[1])
    spent_s = after.user + after.system - before.user - before.system
    return {
        "p50_s": float(latency[1]) * _UNIT[latency[2]],
        "per_s": requests / float(total[2]),
        "cpu_s": spent_s / requests,
    }


def _medians(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for connections, each in runs.items():
        found[connections] = {name: float(np.median([run[name] for run in each])) for name in each[0]}
        rates = [run["cpu_s"] for run in each]
        found[connections] |= {"cpu_least_s": min(rates), "cpu_most_s": max(rates)}
    return found


def _goodput(port: int, request: bytes, closed_per_s: float) -> float:
    """The greatest rate tried at which 99 % of the requests sent are answered within the bound; one failure is tried
    once more."""
    best, failures = 0.0, 0
    with bound_to([cores_by_preference()[1]]):
        for share in SHARES:
            for _ in range(2):
                client = OpenLoop(f"http://127.0.0.1:{port}", [request], P99_S)
                sent = client.run(share * closed_per_s, OPEN_SECONDS)
                client.close()
                if sent.in_time >= 0.99 * sent.sent:
                    best = sent.goodput_per_s
                    break
            else:
                failures += 1
            if failures:
                break
    return best


def _tell(kind: str, found: dict[str, Any]) -> None:
    one, many = found["1"], found["32"]
    spent, p50 = (" / ".join(f"{each[name] * 1e6:4.0f}" for each in (one, many)) for name in ("cpu_s", "p50_s"))
    in_time = f", {found['goodput_per_s']:5.0f}/s within {P99_S * 1e3:g} ms" if "goodput_per_s" in found else ""
    print(f"{kind:48} CPU {spent} µs a request, p50 {p50} µs, {one['per_s']:5.0f} / {many['per_s']:5.0f}/s with 1 / 32 "
          f"connections{in_time}", flush=True)  # fmt: skip


def _environment() -> Path:
    """With what slotool runs on here, and the packages of other front ends."""
    home = Path(os.environ.get("SLOTOOL_PEERS", ROOT / ".venv" / "peers")) / "front-ends"
    if not (home / ".installed").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [home / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (home / ".installed").touch()
    # After its own packages: what is newer there is what is measured.
    others = [path for path in [str(ROOT), *site.getsitepackages(), *sys.path] if path and Path(path).is_dir()]
    (next(home.glob("lib/python*/site-packages")) / "slotool.pth").write_text("\n".join(dict.fromkeys(others)) + "\n")
    return home


if __name__ == "__main__":
    main()
