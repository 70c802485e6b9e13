"""Answers per second of ``serve --engine ray`` by nodes of a cluster, beside what its workers could compute at most.

A call waits 20 ms, as for an accelerator, so that the nodes of one machine do not share what they are measured by. What
bounds the rate is then the router, and ray between it and the workers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

from tests.started_ray import LISTENS, environment, process, started_cluster

NODES = (1, 2, 4, 8)
CALL_S = 0.02
SECONDS, TRIES = 5.0, 3
# Requests outstanding per worker: one in its hands, one that waits.
OUTSTANDING = 2
MODEL = f"""
import time

def build():
    def waits(x):
        time.sleep({CALL_S})
        return {{"scores": x[:, :2]}}
    return waits, "x=FP32[-1,4] -> scores=FP32[-1,2]"
"""


def main() -> None:
    rates: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    with tempfile.TemporaryDirectory() as name, started_cluster() as cluster:
        folder = Path(name)
        family = _family(folder)
        there = 0
        for nodes in NODES:
            for _ in range(nodes - there):
                cluster.add_node()
            there = nodes
            serve = [
                sys.executable,
                "-m",
                "slotool",
                "serve",
                str(family),
                "--allow-code",
                "--engine",
                "ray",
                "--port",
                "0",
            ]
            with process(
                [*serve, "--address", cluster.address, "--replicas", str(nodes)],
                environment(cluster.home), folder / "server.log", LISTENS,
            ) as (_, listens):  # fmt: skip
                rates[nodes] = [_rate_per_s(f"{listens[1]}/v2/models/waits/infer", nodes) for _ in range(TRIES)]
            middle, most = statistics.median(rates[nodes]), nodes / CALL_S
            print(
                f"{nodes} nodes  {middle:6.1f} answers/s ({min(rates[nodes]):.1f} to {max(rates[nodes]):.1f})   "
                f"{middle / most:.2f} x what workers of {CALL_S * 1e3:.0f} ms could give"
            )
    print(json.dumps({"benchmark": "ray_cluster", "call_s": CALL_S, "rates_per_s": rates}))


def _family(folder: Path) -> Path:
    (folder / "waits.py").write_text(MODEL)
    x = np.random.default_rng(0).random((8, 4), np.float32)
    np.savez(folder / "data.npz", x=x, y=np.zeros(8, np.int64))
    made = folder / "waits"
    command = [sys.executable, "-m", "slotool", "family", f"waits={folder / 'waits.py'}:build", "-o", str(made)]
    subprocess.run([*command, "--data", f"{folder / 'data.npz'}:y", "--repeats", "1", "--quiet"], check=True)
    return made


def _rate_per_s(url: str, workers: int) -> float:
    """Of a closed loop, by threads with a connection each."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}
    ends_s = time.perf_counter() + SECONDS

    def ask() -> int:
        count = 0
        with httpx.Client(timeout=30) as client:
            while time.perf_counter() < ends_s:
                client.post(url, json={"inputs": [tensor]}).raise_for_status()
                count += 1
        return count

    with ThreadPoolExecutor(workers * OUTSTANDING) as pool:
        return sum(pool.map(lambda _: ask(), range(workers * OUTSTANDING))) / SECONDS
