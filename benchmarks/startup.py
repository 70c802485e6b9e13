"""How long ``slotool --help`` takes, beside its floor (a bare interpreter) and what it avoids (importing torch)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

REPEATS = 15
COMMANDS = {
    "floor: python -c pass": ["-c", "pass"],
    "import typer": ["-c", "import typer"],
    "slotool --help": ["-m", "slotool", "--help"],
    "import torch": ["-c", "import torch"],
}


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, arguments in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    floor = medians["floor: python -c pass"]
    for name, value in medians.items():
        print(
            f"{name:24} {value * 1e3:8.1f} ms   {value / floor:5.1f} x floor   ({REPEATS} runs, medians, interleaved)"
        )
    print(json.dumps({"benchmark": "startup", "medians_s": medians}))
