"""What ``slotool plan`` promises beside what a real server of one worker serves: ``plan --verify`` on six traces.

Three families: the shipped family and the shipped supernet of digits, whose calls take microseconds, and three ONNX
files of milliseconds, trained here in a minute. Latencies are measured here first; networks and tables are read from
``$SLOTOOL_NETWORKS`` if they are there, and left there. Rates are shares of what one worker serves at its most accurate
point, but at most ``MAX_RATE_PER_S``, since client and server share this machine; deadlines 1.2 times the longest call,
and at least ``MIN_DEADLINE_S``. Recorded arrivals are read from ``$SLOTOOL_DATA_DIR``. Beside the plan stands the same
plan with the front end as it was probed at the server's start, by which the goals are judged; and beside what was
served what a second server served of the same trace: no plan can be nearer to either than they are to each other.
``SLOTOOL_BENCH_SECONDS``: how long each trace lasts (8). Figures are kept in ``$SLOTOOL_NETWORKS`` too, so that a run
that was cut short goes on behind the last trace.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import slotool
from slotool.demo import own_networks
from slotool.errors import SlotoolWarning
from slotool.scheduling.batching import ControlGrid, read_profile
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads import ArrivalTable, Bursty, Poisson, TimeVarying, read_trace

ROOT = Path(__file__).parents[1]
MAX_RATE_PER_S, MIN_DEADLINE_S, SHARE = 300.0, 0.03, 0.8
SIZES = "1,2,4,8,16"
RECORDED = {
    "Azure Functions": "azure_functions_2019_1000.csv",
    "Azure LLM, code": "azure_llm_2023_code.csv",
    "Azure LLM, conversations": "azure_llm_2023_conv.csv",
}
# Issue 21: planned beside served.
GOALS = {"attainment": 0.005, "accuracy": 0.005, "p99_s": 0.1}
ROWS = ("planned", "with the front end", "served", "served again")


@dataclass(frozen=True)
class Service:
    """An artifact with its tables, and ``data`` whose test examples are sent."""

    artifact: Path
    latency: Path
    outcomes: Path
    data: str

    def grid(self) -> ControlGrid:
        return read_profile(LatencyTable.load(self.latency), OutcomeTable.load(self.outcomes)).grid


def main() -> None:
    lasts_s = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "8"))
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", SlotoolWarning)
        folder = Path(os.environ.get("SLOTOOL_NETWORKS", made)).resolve()
        rows = [row for name, service in services(folder).items() for row in rows_of(name, service, lasts_s, folder)]
    for name in dict.fromkeys(row["service"] for row in rows):
        mine = [row for row in rows if row["service"] == name]
        print(f"\n{name}: {mine[0]['points']} points, {mine[0]['setting']}")
        for row in mine:
            print(f"  {said(row)}", flush=True)
    within = {
        what: {by: sum(abs(off(row, what, by)) <= goal for row in rows) for by in ROWS if by != "served"}
        for what, goal in GOALS.items()
    }
    print(f"\nwithin the goals, of {len(rows)}: {within}")
    print(json.dumps({"benchmark": "planned_served", "seconds": lasts_s, "rows": rows, "within": within}))


def rows_of(name: str, service: Service, lasts_s: float, folder: Path) -> list[dict[str, Any]]:
    grid = service.grid()
    rate = min(MAX_RATE_PER_S, SHARE * float(grid.best_rate_per_s[-1]))
    deadline_s = max(MIN_DEADLINE_S, 1.2e-6 * float(grid.latency_us.max()))
    setting = (
        f"{grid.fastest_us / 1e3:.3g} to {grid.latency_us.max() / 1e3:.3g} ms a call; {rate:.0f} requests/s, "
        f"deadline {1e3 * deadline_s:.0f} ms"
    )
    facts = {"service": name, "points": len(grid.points), "setting": setting}
    rows = []
    for number, (trace, times_s) in enumerate(traces(rate, lasts_s).items()):
        kept = folder / f"planned-served-{service.latency.stem}-{number}.json"
        if not kept.exists():
            row = {**facts, "trace": trace, **compared(service, times_s, deadline_s, folder)}
            kept.write_text(json.dumps(row))
        rows.append(json.loads(kept.read_text()))
        print(f"  {said(rows[-1])}", file=sys.stderr, flush=True)
    return rows


def services(folder: Path) -> dict[str, Service]:
    """The shipped family and supernet, profiled here, and three ONNX files."""
    services_by_name = {}
    for kind in ("family", "supernet"):
        latency = folder / f"planned-{kind}-latency.parquet"
        if not latency.exists():
            _slotool("profile", "points", ROOT / "models" / kind, "-o", latency, "--co-runners", 0, "--batch-size",
                     SIZES, "--runs", 100, "--max-seconds-per-item", 1)  # fmt: skip
        outcomes = ROOT / "datasets" / f"digits-{kind}-outcomes.parquet"
        services_by_name[f"shipped {kind}"] = Service(ROOT / "models" / kind, latency, outcomes, "digits")
    home = folder / "planned-onnx"
    home.mkdir(exist_ok=True)
    own = Service(home / "own", home / "latency.parquet", home / "outcomes.parquet", str(home / "held-out.npz"))
    with chdir(home):
        if not Path("large.onnx").exists():
            own_networks.main(8)
        if not own.latency.exists():
            names = [f"{name}={name}.onnx" for name in ("small", "medium", "large")]
            _slotool("family", *names, "--data", "held-out.npz", "-o", "own", "--outcomes", "outcomes.parquet",
                     "--latency", "latency.parquet", "--batch-size", SIZES, "--repeats", 1, "--force")  # fmt: skip
    return {**services_by_name, "three ONNX files": own}


def traces(rate: float, lasts_s: float) -> dict[str, np.ndarray]:
    """Instants in seconds by name, of this mean rate."""
    drawn = {
        "Poisson": Poisson(rate).times(lasts_s, seed=1),
        "bursty, CV² 4": Bursty(rate / 4, 3 * rate / 4, 4).times(lasts_s, seed=2),
        "growing": TimeVarying(rate / 2, 1.5 * rate, 3 * rate / lasts_s, starts_s=lasts_s / 3).times(lasts_s, seed=3),
    }
    folder = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "traces"
    for name, file in RECORDED.items():
        if (folder / file).exists():
            drawn[name] = read_trace(folder / file, rate).times(lasts_s, seed=4)
        else:
            print(f"no trace {name}: {folder / file} is not there")
    return drawn


def compared(service: Service, times_s: np.ndarray, deadline_s: float, folder: Path) -> dict[str, Any]:
    """By row of the plan's own verification, made twice: attainment, accuracy and p99."""
    first, second = (verified(service, times_s, deadline_s, folder) for _ in range(2))
    named = {**{row["what"]: row for row in first}, "served again": second[-1]}
    # A p99 that never came is no number of JSON.
    by = {name: {what: row[what] if row[what] < math.inf else None for what in GOALS} for name, row in named.items()}
    return {"requests": first[-1]["requests"], **by}


def verified(service: Service, times_s: np.ndarray, deadline_s: float, folder: Path) -> list[dict[str, Any]]:
    """What ``plan --verify`` finds, what was served last."""
    arrivals = ArrivalTable(pd.DataFrame({"arrival_s": times_s - times_s[0]}))
    planned = slotool.plan(
        service.latency, outcomes=service.outcomes, arrivals=arrivals, deadline_ms=1e3 * deadline_s, attainment=0.5,
        confidence=0.9, policies="value-iteration", max_workers=1, artifact=service.artifact,
        out=folder / "service.toml", verify_s=float(times_s[-1]) + 1.0, data=service.data, force=True, progress=None,
    )  # fmt: skip
    planned.judge()
    return list(planned.verified)


def off(row: Mapping[str, Any], what: str, by: str = ROWS[1]) -> float:
    """How far what was served lies from a plan; of a latency as a share of the plan's."""
    planned, served = row[by][what], row["served"][what]
    if None in (planned, served):
        return 0.0 if planned is served else math.inf
    return float((served - planned) / planned if what == "p99_s" else served - planned)


def said(row: Mapping[str, Any]) -> str:
    shown = [
        f"{what} {', '.join(f'{scale * (row[by][what] or math.inf):.{digits}f}' for by in ROWS)}{unit}"
        for what, scale, digits, unit in (("attainment", 1, 4, ""), ("accuracy", 1, 4, ""), ("p99_s", 1e3, 1, " ms"))
    ]
    return f"{row['trace']:24} {row['requests']:6,} requests: {'; '.join(shown)} ({off(row, 'p99_s'):+.0%})"


def _slotool(*arguments: object) -> None:
    command = [sys.executable, "-m", "slotool", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
