"""``make bench``: every benchmark here in turn; each prints its floor, its peer and one JSON line at the end.

``python -m tests.perf --record NAME…`` also writes what they print to ``benchmarks/results/``, for the results pages.
"""

from __future__ import annotations

import argparse
import importlib

from slotool.machine import machine_facts, machine_id
from tests.perf.record import record

BENCHMARKS = (
    "startup",
    "generate",
    "profiling",
    "predict",
    "served_request",
    "serving",
    "overload",
    "slo_nn",
    "promises",
    "kernel_checks",
    "scheduling",
    "traces",
    "switching",
    "batches",
    "lcao",
    "supernets",
    "rules",
)


def main() -> None:
    """Run the benchmarks named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.perf", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/NAME.json")
    asked = parser.parse_args()
    facts = machine_facts()
    print(f"machine {machine_id()}: {facts['cpu']}, {facts['cores_given']} cores given, {facts['system']}")
    for name in asked.names or BENCHMARKS:
        print(f"\n== {name}")
        benchmark = importlib.import_module(f"tests.perf.{name}").main
        if asked.record:
            print(f"wrote {record(name, benchmark)}")
        else:
            benchmark()


if __name__ == "__main__":
    main()
