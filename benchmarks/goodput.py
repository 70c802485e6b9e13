"""Answers in time under overload, counted as the client counts: from the instant at which a request was due.

``python -m benchmarks goodput`` serves networks of about 0.03, 7 and 40 ms, in the event loop and by one worker that
shares the server's core. The client, in C (``load.c``), has the other core and sends Poisson arrivals with a deadline
in each, up to the capacity, then three and five times it. Shares are of the best rate of answers in time at any load.
``SLOTOOL_BENCH_SECONDS``: of each load (4).
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.load_client import Load, Samples, run
from benchmarks.peer_servers import client_cores, server_core
from benchmarks.serving_peers import binary_question
from slotool.artifacts.bundle import shipped_artifact
from slotool.elastic import load_model
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule
from slotool.planning.server_process import RunningServer
from slotool.process import allow_connections

# Convolutions of 8×8 images: how many, their filters, and the deadline of requests. None: the shipped MLP.
NETWORKS = {"0.03 ms": (None, 0, 0.05), "7 ms": (70, 64, 0.05), "40 ms": (150, 128, 0.4)}
ENGINES = ("inline", "local")
# Shares of the closed loop's rate at which goodput is looked for, times of it that are offered, and what is to be kept.
SHARES, OVERLOADS = (0.7, 0.85, 1.0), ((3, 0.9), (5, 0.75))
CLOSED, CONNECTIONS = 16, 3_000


def main() -> None:
    seconds = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "4"))
    allow_connections(CONNECTIONS)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (layers, filters, deadline_s) in NETWORKS.items():
            path = shipped_artifact("mlp").path if layers is None else convolutions(Path(folder), name, layers, filters)
            for engine in ENGINES:
                figures[f"{name}, {engine}"] = _goodput(f"{name}, {engine}", path, engine, deadline_s, seconds)
    print(json.dumps({"benchmark": "goodput", "seconds": seconds, "found": figures}))


def convolutions(folder: Path, name: str, layers: int, filters: int, side: int = 8) -> Path:
    """Save a network of so many convolutions of 8×8 images, those of ``side`` × ``side`` × 3 pooled to that first."""
    builder = GraphBuilder(name)
    last = builder.add("InputLayer", shape=[1 if side == 8 else 3, side, side])
    if side > 8:
        last = builder.add("MaxPooling2D", last, kernel=side // 8)
    for _ in range(layers):
        last = builder.add("Conv2D", last, filters=filters, kernel=3, padding="same", activation="relu")
    builder.add("Dense", builder.add("Flatten", builder.add("MaxPooling2D", last, kernel=8)), units=10)
    module = GraphModule(builder.graph()).eval().requires_grad_(False)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            torch.nn.init.kaiming_normal_(parameter)
    path = folder / name.replace(" ", "-")
    Family.of(path.name, [Network("one", module)]).save(path, config={}, seed=0)
    return path


def _goodput(name: str, path: Path, engine: str, deadline_s: float, seconds: float) -> dict[str, float]:
    model = load_model(str(path))
    x = np.random.default_rng(0).normal(size=(1, *model.input_shape)).astype(np.float32)
    sent = binary_question(x, "net", parameters={"timeout": round(deadline_s * 1e6)}).sent()
    with RunningServer([str(path), "--name", "net", "--port", "0", "--engine", engine]) as server:
        process = psutil.Process(server.process_id)
        for each in (process, *process.children(recursive=True)):
            for thread in each.threads():
                os.sched_setaffinity(thread.id, server_core())

        def load(connections: int, rate_per_s: float | None = None) -> Samples:
            port = int(server.url.rpartition(":")[2])
            return run(Load(port, sent, connections, seconds, rate_per_s), client_cores())

        def in_time_per_s(rate_per_s: float) -> float:
            samples = load(CONNECTIONS, rate_per_s)
            return float((samples.latency_s <= deadline_s).sum() / samples.seconds)

        capacity_per_s = load(CLOSED).per_s
        below = [in_time_per_s(share * capacity_per_s) for share in SHARES]
        over = {times: in_time_per_s(times * capacity_per_s) for times, _ in OVERLOADS}
    best = max(*below, *over.values())
    kept = ", ".join(f"{over[times] / best:.2f} at {times} x (target {least})" for times, least in OVERLOADS)
    print(f"{name:16} closed loop {capacity_per_s:.0f}/s, best {best:.0f}/s in time; {kept} of it", flush=True)
    return {"closed": capacity_per_s, "best": best, **{f"{times}x": value for times, value in over.items()}}


if __name__ == "__main__":
    main()
