"""What ``slotool plan`` promises of two models that share one worker beside what a real server serves of both.

As ``planned_served``, of pairs of its services: each model gets its own trace at the same time, within 2.4 times the
longest call; ``RATES_PER_S`` add up to as many requests as there, since client and server share this machine. Figures
are kept in ``$SLOTOOL_NETWORKS``, so that a run that was cut short goes on behind the last pair of traces.
``SLOTOOL_BENCH_SECONDS``: how long each trace lasts (8). ``SLOTOOL_BENCH_CASES``: at most so many new cases in this run
(all).
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import slotool
from benchmarks.planned_served import GOALS, MIN_DEADLINE_S, Service, off, services
from slotool.errors import SlotoolWarning
from slotool.workloads import ArrivalTable, Bursty, Poisson, TimeVarying

RATES_PER_S = (150.0, 150.0)
PAIRS = (("shipped family", "three ONNX files"), ("shipped supernet", "three ONNX files"))
ROWS = ("planned", "with the front end", "served")


def main() -> None:
    lasts_s = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "8"))
    left = int(os.environ.get("SLOTOOL_BENCH_CASES", "99"))
    rows = []
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", SlotoolWarning)
        folder = Path(os.environ.get("SLOTOOL_NETWORKS", made)).resolve()
        known = services(folder)
        for pair in PAIRS:
            for case in range(3):
                kept = folder / f"planned-shared-{PAIRS.index(pair)}-{case}.json"
                if not kept.exists():
                    if left == 0:
                        continue
                    left -= 1
                    kept.write_text(json.dumps(compared({name: known[name] for name in pair}, case, lasts_s, folder)))
                rows += json.loads(kept.read_text())
    for row in rows:
        print(said(row), flush=True)
    within = {
        what: {by: sum(abs(off(row, what, by)) <= goal for row in rows) for by in ROWS[:2]}
        for what, goal in GOALS.items()
    }
    print(f"\nwithin the goals, of {len(rows)}: {within}")
    print(json.dumps({"benchmark": "planned_shared", "seconds": lasts_s, "rows": rows, "within": within}))


def traces(case: int, rates: Mapping[str, float], lasts_s: float) -> dict[str, tuple[str, np.ndarray]]:
    """Of each model, by name and instants: both as Poisson has it; bursts beside Poisson; a ramp beside bursts."""
    kinds = (("Poisson", "Poisson"), ("bursty, CV² 4", "Poisson"), ("growing", "bursty, CV² 4"))[case]
    arrivals = {}
    for seed, ((name, rate), kind) in enumerate(zip(rates.items(), kinds, strict=True), start=11 + 2 * case):
        process = {
            "Poisson": Poisson(rate),
            "bursty, CV² 4": Bursty(rate / 4, 3 * rate / 4, 4),
            "growing": TimeVarying(rate / 2, 1.5 * rate, 3 * rate / lasts_s, starts_s=lasts_s / 3),
        }[kind]
        arrivals[name] = kind, process.times(lasts_s, seed=seed)
    return arrivals


def compared(pair: Mapping[str, Service], case: int, lasts_s: float, folder: Path) -> list[dict[str, Any]]:
    """By model and row of the plan's own verification: attainment, accuracy and p99."""
    grids = {name: service.grid() for name, service in pair.items()}
    rates = dict(zip(pair, RATES_PER_S, strict=True))
    # A call of another model may have started just before.
    longest_s = 1e-6 * max(float(grid.latency_us.max()) for grid in grids.values())
    deadline_ms = 1e3 * max(MIN_DEADLINE_S, 2.4 * longest_s)
    sent = traces(case, rates, lasts_s)
    models = [
        {
            "name": name, "artifact": service.artifact, "latency": service.latency, "outcomes": service.outcomes,
            "arrivals": ArrivalTable(pd.DataFrame({"arrival_s": sent[name][1]})), "data": service.data,
        }
        for name, service in pair.items()
    ]  # fmt: skip
    planned = slotool.plan(
        models=models, deadline_ms=deadline_ms, attainment=0.5, confidence=0.9, policies="value-iteration",
        max_workers=1, out=folder / "shared.toml", verify_s=lasts_s + 1.0, force=True, progress=None,
    )  # fmt: skip
    print(planned, file=sys.stderr, flush=True)
    planned.judge()
    rows = []
    for name in pair:
        by = {row["what"]: row for row in planned.verified if row["model"] == name}
        figures = {what: {key: row[key] if row[key] < math.inf else None for key in GOALS} for what, row in by.items()}
        facts = {
            "pair": " and ".join(pair),
            "model": name,
            "trace": sent[name][0],
            "requests": by["served"]["requests"],
        }
        rows.append({**facts, "rate_per_s": rates[name], "deadline_ms": deadline_ms, **figures})
    return rows


def said(row: Mapping[str, Any]) -> str:
    shown = [
        f"{what} {', '.join(f'{scale * (row[by][what] or math.inf):.{digits}f}' for by in ROWS)}{unit}"
        for what, scale, digits, unit in (("attainment", 1, 4, ""), ("accuracy", 1, 4, ""), ("p99_s", 1e3, 1, " ms"))
    ]
    return (
        f"{row['pair']}: {row['model']}, {row['trace']}, {row['rate_per_s']:.0f}/s within {row['deadline_ms']:.0f} ms, "
        f"{row['requests']:,} requests: {'; '.join(shown)}"
    )


if __name__ == "__main__":
    main()
