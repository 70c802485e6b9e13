"""Latencies of the 300 candidates of a search (``nas_space``): first with unknown operators, then with known ones.

Wall and CPU seconds of ``slotool predict --torch`` as a program of its own, of ``slotool.predict`` of the factory's
name, and of ``slotool.predict`` of the modules themselves, which are captured in the caller's process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SPACE = f"{Path(__file__).with_name('nas_space.py')}:candidates"
COUNT = 300
SHAPE = (3, 32, 32)
PYTHON = """
import json, sys, time
import slotool
began = time.perf_counter()
networks = sys.argv[1]
if len(sys.argv) > 2:
    sys.path.insert(0, sys.argv[2])
    from nas_space import candidates
    networks = candidates()
predicted = slotool.predict(networks, input_shape=(3, 32, 32), threads=1)
scores = [graph.flops for graph in predicted.graphs]
print(len(predicted.latency_s), len(slotool.pareto(predicted, scores)), time.perf_counter() - began)
"""


def timed(run: Callable[[], subprocess.CompletedProcess[str]]) -> dict[str, float]:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run().check_returncode()
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)}


def main() -> None:
    shape = ",".join(map(str, SHAPE))
    command = [sys.executable, "-m", "slotool", "predict", "--torch", SPACE, "--input-shape", shape, "--threads", "1"]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SLOTOOL_CACHE_DIR": folder}

        def run(*arguments: str) -> Callable[[], subprocess.CompletedProcess[str]]:
            return lambda: subprocess.run(arguments, env=environment, capture_output=True, text=True)

        ways = {
            "command, unknown operators": command,
            "command": command,
            "Python, factory by name": [sys.executable, "-c", PYTHON, SPACE],
            "Python, modules": [sys.executable, "-c", PYTHON, SPACE, str(Path(__file__).parent)],
            "command, one core": ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command],
        }
        for name, arguments in ways.items():
            figures[name] = timed(run(*arguments))
            print(
                f"{COUNT} candidates, {name}: {figures[name]['wall_s']} s, {figures[name]['cpu_s']} s of CPU",
                flush=True,
            )
    print(json.dumps({"benchmark": "candidates", "candidates": COUNT, "ways": figures}))


if __name__ == "__main__":
    main()
