"""``make bench``: every benchmark here in turn; each prints its floor, its peer and one JSON line at the end.

``python -m benchmarks --record NAME…`` also writes what they print to ``benchmarks/results/``, for the results pages.
One that fails is named, and the others run all the same. Each of several has a process of its own, so that none counts
the memory of those before it.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

from benchmarks.record import record
from slotool.machine import machine_facts, machine_id

BENCHMARKS = (
    "startup",
    "generate",
    "profiling",
    "predict",
    "graph_network",
    "served_request",
    "serving",
    "goodput",
    "closed_loop",
    "overload",
    "slo_nn",
    "language_model",
    "feed_forward",
    "promises",
    "kernel_checks",
    "scheduling",
    "far_profiles",
    "traces",
    "planned_served",
    "planned_predicted",
    "switching",
    "batches",
    "lcao",
    "supernets",
    "rules",
    "capture_zoo",
    "zoo_latency",
    "settings",
    "ten_labels",
    "certificates",
    "ray_cluster",
    "decision",
    "rule_splits",
    "certificate_kinds",
    "best_version",
)
# Those that install what they compare: run by name, and by ``make bench-peers``.
WITH_PEERS = ("serving_peers", "serving_limits", "front_ends")
# Measured some networks at a time, on idle minutes; a record shows those measured so far.
KEPT = ("measured_here",)


def main() -> int:
    """Run the benchmarks named, or all; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/NAME.json")
    asked = parser.parse_args()
    names = asked.names or BENCHMARKS
    if len(names) > 1:
        run = [sys.executable, "-m", "benchmarks", *(["--record"] if asked.record else [])]
        failed = [name for name in names if subprocess.run([*run, name]).returncode]
        if failed:
            print(f"failed: {', '.join(failed)}")
        return int(bool(failed))
    facts = machine_facts()
    print(f"machine {machine_id()}: {facts['cpu']}, {facts['cores_given']} cores given, {facts['system']}")
    print(f"\n== {names[0]}", flush=True)
    benchmark = importlib.import_module(f"benchmarks.{names[0]}").main
    if asked.record:
        print(f"wrote {record(names[0], benchmark)}")
    else:
        benchmark()
    return 0


if __name__ == "__main__":
    sys.exit(main())
