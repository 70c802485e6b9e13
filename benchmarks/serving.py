"""A server under real load on worker processes: what the hop costs, and what deaths cost.

``python -m benchmarks serving`` serves the shipped supernet on this machine's cores, with a profile measured first.
The hop's floor is the inline engine on the same call; the deaths' peer is the same load without them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from slotool.artifacts.bundle import shipped_artifact
from slotool.data import load_dataset
from slotool.elastic import load_model
from slotool.planning.server_process import server_process
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving.engines import InlineInferenceEngine, LocalInferenceEngine
from slotool.serving.request_options import RequestOptions
from slotool.serving.routing.router import Router
from slotool.serving.served import ServedModel
from slotool.workloads import Poisson
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LoadPlan, LocalRun
from slotool.workloads.requests import RequestLog

OUTCOMES = Path(__file__).parents[1] / "datasets" / "digits-supernet-outcomes.parquet"
DEADLINE_S = 0.05
HOPS, ROUNDS = 200, 10
DEATHS_S = 20.0


def main() -> None:
    hop = _hop()
    with tempfile.TemporaryDirectory() as folder:
        deaths = _deaths(profiled(Path(folder)))
    print(json.dumps({"benchmark": "serving", "hop_s": hop, "deaths": deaths}))


def _hop() -> dict[str, float]:
    """Medians of one request after the other through a router, by engine, in turns."""
    path = shipped_artifact("mlp").path
    model, x = load_model(str(path)), load_dataset("digits").test.x[:1]
    served = ServedModel("mlp", model, by_demand(ControlSpace(model.points)), None, path)
    routers = {
        "inline": Router({"mlp": served}, InlineInferenceEngine()),
        "local": Router({"mlp": served}, LocalInferenceEngine()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in routers}

    async def ask() -> None:
        for _ in range(ROUNDS):
            for name, router in routers.items():
                for _ in range(HOPS):
                    started = time.perf_counter()
                    await router.answer("mlp", x, RequestOptions(), router.now_us(), lambda: False)
                    seconds[name].append(time.perf_counter() - started)

    asyncio.run(ask())
    for router in routers.values():
        router.close()
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    extra_us = 1e6 * (medians["local"] - medians["inline"])
    told = ", ".join(f"{name} {value * 1e6:.0f} µs" for name, value in medians.items())
    print(f"a request through the router: {told}: a hop costs {extra_us:.0f} µs (target: 150)")
    return medians


def profiled(folder: Path) -> Path:
    """The shipped supernet's latency table, measured now."""
    out = folder / "latency.parquet"
    command = [sys.executable, "-m", "slotool", "profile", "points", str(shipped_artifact("supernet").path),
               "--batch-size", "1,4,16", "--threads", "1", "-o", str(out)]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def arguments(latency: Path, replicas: int, policy: str = "value-iteration") -> list[str]:
    """Of ``serve``."""
    model, milliseconds = str(shipped_artifact("supernet").path), str(DEADLINE_S * 1e3)
    choosing = [
        "--latency",
        str(latency),
        "--outcomes",
        str(OUTCOMES),
        "--policy",
        policy,
        "--deadline-ms",
        milliseconds,
    ]
    return [model, *choosing, "--engine", "local", "--replicas", str(replicas)]


def load(url: str, rate_per_s: float, seconds: float) -> RequestLog:
    """Poisson arrivals of digits with the deadline, by a client in this process."""
    plan = LoadPlan.draw(Poisson(rate_per_s), seconds, load_dataset("digits").test, seed=1)
    run = LocalRun(plan, TargetServer(url, "infer", "supernet", Terms(DEADLINE_S, None, None, None), 10.0))
    run.drive()
    return run.log()


def server() -> psutil.Process:
    """The ``serve`` process that this one has started."""
    children = psutil.Process().children()
    return next(child for child in children if "serve" in child.cmdline())


def _workers() -> list[int]:
    return [child.pid for child in server().children() if "slotool.serving.engines.local_worker" in child.cmdline()]


def _deaths(latency: Path) -> dict[str, Any]:
    """Half of the workers killed, one by one, at a rate that those who are left can carry."""
    replicas = max(2, len(os.sched_getaffinity(0)))
    figures: dict[str, Any] = {}
    for name, kills in (("nobody dies", 0), ("half die", replicas // 2)):
        with server_process(arguments(latency, replicas)) as url:
            victims = _workers()[:kills]
            timers = [
                threading.Timer(DEATHS_S * (1 + at) / (1 + kills), os.kill, (pid, 9)) for at, pid in enumerate(victims)
            ]
            for timer in timers:
                timer.start()
            log = load(url, 200.0, DEATHS_S)
        unanswered = int((log.rows["status"] == 0).sum())
        figures[name] = {"attainment": float(log.in_time.mean()), "unanswered": unanswered, "requests": len(log)}
        print(f"{name:12} attainment {log.in_time.mean():.5f} (target: 0.999), {unanswered} of {len(log)} without an "
              f"answer, effective accuracy {log.effective_accuracy:.4f}")  # fmt: skip
    return figures


if __name__ == "__main__":
    main()
