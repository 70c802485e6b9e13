"""What speaks HTTP in front of slotool's router, and what it costs: today's, uvicorn as it comes, granian's RSGI; and
today's without each of its shortcuts.

One example of 64 floats as a binary tensor to the shipped MLP, the servers on one core in turn, the client in C on the
other with one connection and with 32, in rounds of random order; CPU time is that of the server's process. Beside them
FastAPI routes around ONNX Runtime with the same network, and llhttp on uvloop that answers without a model.
``python -m benchmarks front_ends`` makes an environment with uvloop, granian and FastAPI (``$SLOTOOL_PEERS``).
``SLOTOOL_BENCH_SECONDS``: of each load (1); ``SLOTOOL_BENCH_ROUNDS`` (5); ``SLOTOOL_BENCH_FRONT_ENDS``: beginnings of
the names of those to measure, separated by commas.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_servers import Question, Running, free_port, served, summed_up
from benchmarks.peers.front_end import SHORTCUTS
from benchmarks.serving_peers import (
    HERE,
    ROOT,
    binary_question,
    plain_json_question,
    raw_question,
    save_onnx,
)
from slotool.artifacts.bundle import shipped_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model

CONNECTIONS = (1, 32)
WITHOUT, FLOOR = "slotool without ", "llhttp on uvloop, no model"
PACKAGES = ("uvloop", "granian", "uvicorn", "httptools", "fastapi", "onnxruntime")


def main() -> None:
    seconds, rounds = (float(os.environ.get(f"SLOTOOL_BENCH_{name}", given)) for name, given in
                       (("SECONDS", "1"), ("ROUNDS", "5")))  # fmt: skip
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        servers = {kind: _served(kind, Path(name), stack) for kind in asked(_commands(Path(name)))}
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in servers}
        order = random.Random(0)
        for _ in range(int(rounds)):
            for kind in order.sample(list(servers), len(servers)):
                runs[kind].append({str(each): servers[kind].closed_loop(each, seconds) for each in CONNECTIONS})
    rates = {kind: {each: summed_up([run[each] for run in every]) for each in every[0]} for kind, every in runs.items()}
    for kind, figures in rates.items():
        _tell(kind, figures)
    print(json.dumps({"benchmark": "front_ends", "seconds": seconds, "rounds": int(rounds), "found": rates}))


def asked(kinds: dict[str, list[str]]) -> list[str]:
    """Those whose names begin as the environment says; all by default."""
    beginnings = tuple(os.environ.get("SLOTOOL_BENCH_FRONT_ENDS", "").split(","))
    return [kind for kind in kinds if kind.startswith(beginnings)]


def _commands(folder: Path) -> dict[str, list[str]]:
    """By front end, how it is started but for its port."""
    artifact, script = shipped_artifact("mlp").path, str(HERE / "front_end.py")
    python, mlp, onnx = str(environment() / "bin" / "python"), str(artifact), folder / "mlp.onnx"
    serve = [sys.executable, "-m", "slotool", "serve", mlp, "--name", "mlp", "--port", "PORT"]
    save_onnx(artifact / "weights.safetensors", onnx)
    return {
        "slotool": serve,
        "slotool, uvloop": [python, script, "fast-uvloop", "PORT", mlp],
        **{WITHOUT + name: [sys.executable, script, name, "PORT", mlp] for name in SHORTCUTS},
        "uvicorn, asyncio": [python, script, "asyncio", "PORT", mlp],
        "uvicorn, uvloop": [python, script, "uvloop", "PORT", mlp],
        "granian, RSGI, uvloop": [python, script, "granian", "PORT", mlp],
        "FastAPI + ONNX Runtime, raw bytes": [python, script, "fastapi", "PORT", str(onnx)],
        "FastAPI + ONNX Runtime, JSON": [python, script, "fastapi-json", "PORT", str(onnx)],
        FLOOR: [python, script, "echo", "PORT", mlp],
    }


def _served(kind: str, folder: Path, stack: contextlib.ExitStack) -> Running:
    port, own = free_port(), folder / kind.replace(" ", "-")
    own.mkdir()
    command = [str(port) if word == "PORT" else word for word in _commands(folder)[kind]]
    artifact = str(shipped_artifact("mlp").path)
    model, x = load_model(artifact), load_dataset("digits").test.x[:1].astype(np.float32)
    label = None if kind == FLOOR else int(model.forward(x, model.full).argmax())
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return stack.enter_context(served(command, port, _question(kind, x), label, own, variables))


def _question(kind: str, x: np.ndarray) -> Question:
    if kind == FLOOR:
        asked = binary_question(x)
        return Question(asked.path, asked.headers, asked.body, lambda body: int(json.loads(body)["label"]))
    if kind.startswith("FastAPI"):
        return plain_json_question(x) if kind.endswith("JSON") else raw_question(x)
    return binary_question(x)


def _tell(kind: str, figures: dict[str, Any]) -> None:
    one, many = (figures[str(each)] for each in CONNECTIONS)
    spent = " / ".join(
        f"{each['cpu_s']['median'] * 1e6:4.0f} ({each['cpu_s']['least'] * 1e6:.0f} to "
        f"{each['cpu_s']['most'] * 1e6:.0f})" for each in (one, many)
    )  # fmt: skip
    p50 = " / ".join(f"{each['p50_s']['median'] * 1e6:4.0f}" for each in (one, many))
    rates = " / ".join(f"{each['per_s']['median']:5.0f}" for each in (one, many))
    print(f"{kind:48} CPU {spent} µs a request, p50 {p50} µs, {rates}/s over 1 / 32 connections", flush=True)


def environment() -> Path:
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
