"""Closed-loop clients of a default server beside the bare model: rate, and requests that were refused.

``python -m benchmarks closed_loop`` serves networks of about 0.05, 1, 5 and 50 ms to 1, 16, 64 and 256 clients, each of
which sends its next request when it has an answer, with a deadline of 30 s in each; for inputs of 64 floats, and for
images of 600 KB. The client, in C (``load.c``), and the server share the machine. The bare model is the same network
called again and again in one process, once before and once after each load. ``SLOTOOL_BENCH_SECONDS``: of each load at
least (2); a load takes three calls a client. ``SLOTOOL_BENCH_INPUTS``: ``floats`` or ``images`` alone.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.goodput import convolutions
from benchmarks.load_client import Load, run
from benchmarks.serving_peers import binary_question
from slotool.elastic import ElasticModel, load_model
from slotool.planning.server_process import RunningServer

# Convolutions of 8×8 images, and their filters.
NETWORKS = {"0.05 ms": (0, 1), "1 ms": (10, 64), "5 ms": (50, 64), "50 ms": (180, 128)}
INPUTS = {"floats": 8, "images": 224}
CLIENTS, DEADLINE_S, BARE_S = (1, 16, 64, 256), 30.0, 0.5
CALLS, GOAL = 3, 0.95


def main() -> None:
    torch.set_num_threads(1)
    seconds, inputs = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "2")), os.environ.get("SLOTOOL_BENCH_INPUTS", "")
    cells = []
    for kind, side in INPUTS.items():
        for name, (layers, filters) in NETWORKS.items():
            if inputs in ("", kind):
                with tempfile.TemporaryDirectory() as folder:
                    path = convolutions(Path(folder), name, layers, filters, side)
                    cells += [{"inputs": kind, "network": name, **cell} for cell in _cells(path, seconds)]
                    _tell(cells[-len(CLIENTS) :])
    print(json.dumps({"benchmark": "closed_loop", "deadline_s": DEADLINE_S, "cells": cells}))


def _cells(path: Path, seconds: float) -> list[dict[str, Any]]:
    """One for each number of clients: ``bare_s``, a call of the bare model before the load and after it."""
    model, cells = load_model(str(path)), []
    x = np.random.default_rng(0).normal(size=(1, *model.input_shape)).astype(np.float32)
    sent = binary_question(x, "net", parameters={"timeout": round(DEADLINE_S * 1e6)}).sent()
    bare_s = _bare_s(model, x)
    with RunningServer([str(path), "--name", "net", "--port", "0"]) as server:
        port = int(server.url.rpartition(":")[2])
        for clients in CLIENTS:
            load = Load(port, sent, clients, max(seconds, CALLS * clients * bare_s))
            samples, before_s = run(load), bare_s
            bare_s = _bare_s(model, x)
            # The last requests of the clients have no answer where the client stopped before it came.
            answered, ended = samples.status == 200, samples.status != 0
            cells.append({
                "clients": clients, "per_s": float(answered.sum() / samples.answered_s[answered].max()),
                "bare_s": [before_s, bare_s], "requests": int(ended.sum()), "refused": int((ended & ~answered).sum()),
                "p99_s": float(np.quantile(samples.latency_s[ended], 0.99)),
            })  # fmt: skip
    return cells


def _bare_s(model: ElasticModel, x: np.ndarray) -> float:
    began_s, calls = time.perf_counter(), 0
    while time.perf_counter() - began_s < BARE_S:
        model.forward(x, model.full)
        calls += 1
    return (time.perf_counter() - began_s) / calls


def _tell(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        shares = sorted(cell["per_s"] * bare_s for bare_s in cell["bare_s"])
        print(f"{cell['inputs']:6} {cell['network']:7} {cell['clients']:3} clients: {cell['per_s']:7.0f}/s, "
              f"{shares[0]:.2f} to {shares[1]:.2f} of the bare model (goal {GOAL}), {cell['refused']} of "
              f"{cell['requests']} refused, p99 {1e3 * cell['p99_s']:.0f} ms", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
