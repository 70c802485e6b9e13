"""``make bench``: every benchmark here in turn; each prints its floor, its peer and one JSON line at the end.

``python -m benchmarks --record NAME…`` also writes what they print to ``benchmarks/results/``, for the results pages.
One that fails is named, and the others run all the same.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

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


def main() -> int:
    """Run the benchmarks named, or all; 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/NAME.json")
    asked = parser.parse_args()
    facts = machine_facts()
    print(f"machine {machine_id()}: {facts['cpu']}, {facts['cores_given']} cores given, {facts['system']}")
    failed = []
    for name in asked.names or BENCHMARKS:
        print(f"\n== {name}", flush=True)
        try:
            benchmark = importlib.import_module(f"benchmarks.{name}").main
            if asked.record:
                print(f"wrote {record(name, benchmark)}", flush=True)
            else:
                benchmark()
        except Exception:
            traceback.print_exc()
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
