"""Fleets planned from predicted latencies alone, beside those from measured ones: ten families of three networks.

A family is three random networks of one kind (``slotool generate architectures``), none of them among those the shipped
predictor of this kind of machine (``models/predictor-architectures``) learnt from; nothing of them is measured before
the prediction. Accuracies are made up (.70, .75, .80), as the networks are not trained. Traffic, deadline and promise
follow from predictions alone: bursty arrivals at ``LOADS`` times what one worker serves at the middle network, and
``DEADLINE`` times the largest one's latency. Then the networks are profiled here, one thread (three minutes, resumed
from ``$SLOTOOL_NETWORKS/planned-predicted-latency.parquet`` if it is there), and a fleet is planned from these tables.
The fleet of the prediction, its policy choosing by predicted latencies, is simulated with calls as long as measured
samples. *Calibrated*: the predictions times one factor, the median of measured ÷ predicted over the other nine
families, as the machine may be slower or busier than the predictor's. *slotool calibrate*: what ``slotool calibrate
--threads 1`` leaves after two minutes of measuring networks of its own, and ``slotool predict`` then answers by. The
baseline are FLOPs at the median rate of the other nine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import slotool
from slotool.cache_folder import CACHE_VARIABLE
from slotool.errors import SlotoolWarning
from slotool.graphs import OperatorGraph
from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
from slotool.graphs.store import read_graphs, write_graphs
from slotool.scheduling.batching import Profile, make_policy, read_profile
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.tables import LatencyTable
from slotool.workloads import ArrivalTable, Bursty

ROOT = Path(__file__).parents[1]
PREDICTOR = ROOT / "models" / "predictor-architectures"
SIZES = (1, 2, 4)
ACCURACY = {"small": 0.70, "medium": 0.75, "large": 0.80}
# FLOPs that the three of a family come closest to, of ``DRAWN`` networks.
FLOPS, DRAWN, SEED = {"small": 1.5e8, "medium": 6e8, "large": 2.4e9}, 40, 7
CASES = list(ARCHITECTURES)[:10]
# Of fleets of two workers and of many: an error of a tenth is one worker of ten.
LOADS = np.linspace(1.2, 6.0, 10)
DEADLINE, REQUESTS, CV2 = 4.0, 4_000, 4.0
ATTAINMENT, MIN_ACCURACY = 0.99, 0.74
POLICY = "value-iteration"
PREDICTED, DEFAULT, CALIBRATED, BASELINE = WAYS = ("predicted", "slotool calibrate", "calibrated", "FLOPs")
MINUTES = 2.0


def main() -> None:
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", SlotoolWarning)
        folder = Path(os.environ.get("SLOTOOL_NETWORKS", made)).resolve()
        rows = compared(families(), folder)
    for row in rows:
        print(f"  {said(row)}", flush=True)
    within = {way: {"same": sum(row[way]["replicas"] == row["measured"]["replicas"] for row in rows),
                    "short": sum(short(row[way]) > 0.01 for row in rows)} for way in WAYS}  # fmt: skip
    print(f"\nof {len(rows)}: {within}")
    print(json.dumps({"benchmark": "planned_predicted", "rows": rows, "within": within}))


def families() -> dict[str, dict[str, OperatorGraph]]:
    """Three networks of each kind, by name, none of which the predictor knows."""
    known = {graph.id for graph in read_graphs(ROOT / "datasets" / "random-architectures.parquet")}
    folders = {}
    for kind in CASES:
        drawn = [graph for graph in RandomArchitectures([kind], DRAWN, SEED) if graph.id not in known]
        nearest = {
            name: min(drawn, key=lambda graph: abs(np.log(graph.flops / flops))) for name, flops in FLOPS.items()
        }
        folders[kind] = nearest
    return folders


def compared(nets: dict[str, dict[str, OperatorGraph]], folder: Path) -> list[dict[str, Any]]:
    measured = profiled([graph for of in nets.values() for graph in of.values()], folder)
    predicted = {kind: _predicted(kind, of, folder, PREDICTOR) for kind, of in nets.items()}
    here = _calibrated(nets, folder)
    ratios, rates = {}, {}
    for kind, of in nets.items():
        own = [(graph, float(np.median(measured[graph.id, 1])), predicted[kind][name, 1]) for name, graph in of.items()]
        ratios[kind] = [true_s / predicted_s for _, true_s, predicted_s in own]
        rates[kind] = [graph.flops / true_s for graph, true_s, _ in own]
    rows = []
    for (kind, of), load in zip(nets.items(), LOADS, strict=True):
        factor, rate = (np.median([each for other in of_kind if other != kind for each in of_kind[other]])
                        for of_kind in (ratios, rates))  # fmt: skip
        samples_s: dict[str, Callable[[str, int], list[float]]] = {
            "measured": lambda name, size, of=of: list(measured[of[name].id, size]),
            PREDICTED: lambda name, size, kind=kind: [predicted[kind][name, size]],
            DEFAULT: lambda name, size, kind=kind: [here[kind][name, size]],
            CALIBRATED: lambda name, size, kind=kind, factor=factor: [factor * predicted[kind][name, size]],
            BASELINE: lambda name, size, of=of, rate=rate: [size * of[name].flops / rate],
        }
        rows.append(
            {
                "kind": kind,
                "factor": float(factor),
                **_fleets({way: _table(kind, each) for way, each in samples_s.items()}, load),
            }
        )
        print(f"  {said(rows[-1])}", file=sys.stderr, flush=True)
    return rows


def profiled(graphs: list[OperatorGraph], folder: Path) -> dict[tuple[str, int], np.ndarray]:
    """Seconds measured here, by graph and batch size."""
    file = folder / "planned-predicted-latency.parquet"
    networks = folder / "planned-predicted-graphs.parquet"
    write_graphs(networks, graphs)
    slotool.profile(networks, file, threads=1, batch_sizes=SIZES, runs=20, progress=None)
    rows = LatencyTable.load(file).where(status="ok").rows
    samples = zip(rows["subject"], rows["batch_size"], rows["samples_s"], strict=True)
    by: dict[tuple[str, int], list[np.ndarray]] = {}
    for subject, size, took_s in samples:
        by.setdefault((subject, int(size)), []).append(np.asarray(took_s))
    return {key: np.concatenate(parts) for key, parts in by.items()}


def _calibrated(nets: dict[str, dict[str, OperatorGraph]], folder: Path) -> dict[str, dict[tuple[str, int], float]]:
    """Of every family, by the predictor that ``slotool calibrate`` leaves where ``slotool predict`` looks."""
    before, os.environ[CACHE_VARIABLE] = os.environ.get(CACHE_VARIABLE), str(folder / "planned-predicted-cache")
    try:
        calibrated = slotool.calibrate(minutes=MINUTES, threads=1, progress=None)
        print(f"  slotool calibrate: {calibrated.mape:.1%} off", file=sys.stderr)
        return {kind: _predicted(kind, of, folder, None) for kind, of in nets.items()}
    finally:
        os.environ.pop(CACHE_VARIABLE)
        if before is not None:
            os.environ[CACHE_VARIABLE] = before


def _predicted(
    kind: str, of: dict[str, OperatorGraph], folder: Path, predictor: Path | None
) -> dict[tuple[str, int], float]:
    """Seconds by name and batch size."""
    out = folder / f"planned-predicted-{kind}.parquet"
    named: dict[str, Any] = {"predictor": predictor} if predictor else {"backend": "torch", "threads": 1}
    slotool.predict(of, **named, sweep={"batch": SIZES}, out=out, family=kind, force=True)
    rows = LatencyTable.load(out).rows
    names = [point.removeprefix("version=") for point in rows["point"]]
    return {
        (name, int(size)): float(samples_s[0])
        for name, size, samples_s in zip(names, rows["batch_size"], rows["samples_s"], strict=True)
    }


def _table(kind: str, samples_s: Callable[[str, int], list[float]]) -> LatencyTable:
    cells = [(name, size) for name in ACCURACY for size in SIZES]
    rows = LatencyTable.of(
        [{"subject": kind, "point": f"version={name}", "batch_size": size, "threads": 1,
          "samples_s": samples_s(name, size)} for name, size in cells]
    ).rows  # fmt: skip
    return LatencyTable(rows.assign(accuracy=[ACCURACY[name] for name, _ in cells]))


def _fleets(tables: dict[str, LatencyTable], load: float) -> dict[str, Any]:
    """Of each table the fleet planned from it, and what it attains with calls as long as measured."""
    profiles = {way: read_profile(table) for way, table in tables.items()}
    grid = profiles[CALIBRATED].grid
    deadline_us = DEADLINE * float(grid.latency_us[-1, 0])
    rate = load * float(grid.best_rate_per_s[len(grid.points) // 2])
    times_s = Bursty(0.25 * rate, 0.75 * rate, CV2).times(REQUESTS / rate, seed=1)
    arrivals = ArrivalTable(pd.DataFrame({"arrival_s": times_s}))
    figures: dict[str, Any] = {"deadline_s": deadline_us / 1e6, "rate_per_s": rate}
    for way, table in tables.items():
        plan = slotool.plan(
            table, arrivals=arrivals, deadline_ms=deadline_us / 1e3, attainment=ATTAINMENT, min_accuracy=MIN_ACCURACY,
            policies=POLICY, max_workers=40, progress=None,
        )  # fmt: skip
        replicas = plan.rows[0]["replicas"]
        grid = profiles[way].grid
        times = ServiceTimes.sampled(grid, profiles["measured"].samples_us, 1)
        policy = make_policy(POLICY, grid, deadline_us - 2e3)
        scenario = Scenario.of(times_s, deadline_us / 1e6 - 2e-3, replicas)
        served = simulate(policy, scenario, times).summary()
        figures[way] = {"replicas": replicas, "holds": plan.holds, "attainment": served["attainment"],
                      "accuracy": served["accuracy"], "off": _off(profiles[way], profiles["measured"])}  # fmt: skip
    return figures


def _off(profile: Profile, measured: Profile) -> float:
    """Mean relative error of the latencies that policies plan with, over points and batch sizes."""
    errors = []
    for (point, size), samples_us in measured.samples_us.items():
        planned_us, true_us = float(np.median(profile.samples_us[point, size])), float(np.median(samples_us))
        errors.append(abs(planned_us / true_us - 1.0))
    return float(np.mean(errors))


def short(figures: dict[str, Any]) -> float:
    """By how much attainment or accuracy, whichever is worse, lies below the promise."""
    return max(ATTAINMENT - figures["attainment"], MIN_ACCURACY - figures["accuracy"], 0.0)


def said(row: dict[str, Any]) -> str:
    fleets = "; ".join(
        f"{way}: {row[way]['replicas']} workers, {row[way]['attainment']:.4f} in time at {row[way]['accuracy']:.4f}, "
        f"latencies {row[way]['off']:.0%} off"
        for way in ("measured", *WAYS)
    )
    return f"{row['kind']:10} {row['rate_per_s']:5.0f}/s in {1e3 * row['deadline_s']:4.0f} ms: {fleets}"


if __name__ == "__main__":
    main()
