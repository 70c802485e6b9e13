"""``make bench``: every benchmark here in turn; each prints its floor, its peer and one JSON line at the end."""

from __future__ import annotations

import importlib
import sys

from slotool.machine import machine_facts, machine_id

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
    facts = machine_facts()
    print(f"machine {machine_id()}: {facts['cpu']}, {facts['cores_given']} cores given, {facts['system']}")
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"\n== {name}")
        importlib.import_module(f"tests.perf.{name}").main()


if __name__ == "__main__":
    main()
