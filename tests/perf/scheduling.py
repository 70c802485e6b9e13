"""Batching policies: what a decision costs, how fast the simulator is, and every policy beside the best possible.

The profile is a model of the supernet's (12 points, 1.6 to 8 ms, a batch of n takes (n + 2) / 3 times), said so.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path

import numpy as np

from slotool.scheduling import ControlSpace, EdfQueue, Query
from slotool.scheduling.batching import POLICIES, ControlGrid, make_policy
from slotool.simulation import Scenario, optimum_of_one_worker, simulate
from slotool.tables import OperatingPoint
from slotool.workloads import ArrivalProcess, Bursty, TimeVarying, read_trace

DEADLINE_S = 0.036
DECISIONS, WAITING, POINTS, SIZES = 2_000, 10_000, 500, 16
TRACES: dict[str, ArrivalProcess] = {
    **{f"bursty {rate}/s CV² {cv2}": Bursty(rate / 4, 3 * rate / 4, cv2) for rate in (100, 300, 500) for cv2 in (2, 8)},
    **{f"100 to 600/s at {tau}/s²": TimeVarying(100, 600, tau, cv2=8, starts_s=1.0) for tau in (250, 5_000)},
}


FORMS: dict[str, dict[str, list[float | None]]] = {}


def main() -> None:
    costs = decision_costs()
    speed = simulator_speed()
    regrets = sweep()
    killed = half_killed()
    found = {"decision_us": costs, **speed, "sweep": regrets, "two_forms": FORMS, "killed": killed}
    print(json.dumps({"benchmark": "scheduling", **found}))


def modelled(points: int, sizes: list[int]) -> ControlGrid:
    times = np.geomspace(1_600.0, 8_000.0, points)
    accuracy = 0.74 + 0.062 * np.log(times / times[0]) / np.log(5)
    named = [OperatingPoint.of(depth=i) for i in range(points)]
    latency_us = {(p, n): times[i] * (n + 2) / 3 for i, p in enumerate(named) for n in sizes}
    return ControlGrid(ControlSpace(named, latency_us, dict(zip(named, accuracy.tolist(), strict=True))))


def decision_costs() -> dict[str, list[float]]:
    """Median and p99 µs of ``decide``, 500 points × 16 sizes and 10,000 waiting; floor: a call that does nothing."""
    grid = modelled(POINTS, list(range(1, SIZES + 1)))
    queue = EdfQueue()
    for i in range(WAITING):
        queue.push(Query(str(i), 100.0 * i, 100.0 * i + 1e6))
    found = {}
    for name in POLICIES:
        policy = make_policy(name, grid, 1e6)
        taken = []
        for i in range(DECISIONS):
            began = time.perf_counter()
            policy.decide(980_000.0 + i, queue)
            taken.append(1e6 * (time.perf_counter() - began))
        found[name] = [float(np.median(taken)), float(np.quantile(taken, 0.99))]
        print(f"decide {name:12} p50 {found[name][0]:6.1f} µs, p99 {found[name][1]:6.1f} µs (asked: 20 and 100)")
    return found


def simulator_speed() -> dict[str, float]:
    """Queries a second of wall time, 8 workers and 1,000; the second with ten million queries."""
    grid, speeds = modelled(12, [1, 2, 4, 8, 16]), {}
    for workers, count in ((8, 1_000_000), (1_000, 10_000_000)):
        times_s = np.cumsum(np.random.default_rng(0).exponential(1.0, count)) / (400.0 * workers)
        scenario = Scenario.of(times_s, DEADLINE_S, workers)
        policy = make_policy("slackfit", grid, DEADLINE_S * 1e6)
        began = time.perf_counter()
        simulate(policy, scenario)
        speeds[f"queries_per_s_{workers}_workers"] = count / (time.perf_counter() - began)
        print(f"simulate {count:,} queries, {workers} workers: {count / (time.perf_counter() - began):,.0f} queries/s")
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak_gb:.2f} GB (asked: 4)")
    return {**speeds, "peak_gb": peak_gb}


def sweep() -> dict[str, dict[str, list[float]]]:
    """Per trace and policy: attainment, accuracy of those in time, effective accuracy, regret. One worker."""
    grid, found = modelled(12, [1, 2, 4, 8, 16]), {}
    fixed = [f"fixed@{grid.points[i].key}" for i in (0, 6)]
    for trace, times_s in traces().items():
        scenario = Scenario.of(times_s, DEADLINE_S)
        best = optimum_of_one_worker(grid, scenario, steps=144)
        print(f"\n{trace}: best possible {best.reached / len(scenario):.4f} to {best.bound / len(scenario):.4f}")
        found[trace] = {}
        for name in (*POLICIES, *fixed):
            figures = simulate(make_policy(name, grid, DEADLINE_S * 1e6), scenario).summary()
            regret = best.bound / len(scenario) - figures["effective_accuracy"]
            row = [figures["attainment"], figures["accuracy"], figures["effective_accuracy"], regret]
            found[trace][name] = row
            print(f"  {name:14} attainment {row[0]:.4f}  accuracy {row[1]:.4f}  effective {row[2]:.4f}  "
                  f"regret {row[3]:.4f}")  # fmt: skip
        FORMS[trace] = two_forms(grid, scenario, found[trace])
    return found


def traces() -> dict[str, np.ndarray]:
    """Arrivals in seconds: 4 s of each process, and a day of Azure Functions in 120 s if its counts are at hand."""
    drawn = {name: process.times(4.0, seed=1) for name, process in TRACES.items()}
    counts = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "traces" / "azure_functions_2019_1000.csv"
    if counts.exists():
        for rate in (200, 400):
            drawn[f"Azure Functions, {rate}/s"] = read_trace(counts, rate).times(120.0, seed=1)
    else:
        print(f"no Azure trace: {counts} is not there")
    return drawn


def two_forms(grid: ControlGrid, scenario: Scenario, rows: dict[str, list[float]]) -> dict[str, list[float | None]]:
    """Per policy, beside the fixed points, in the forms of superserve §6.3: points of accuracy above the most accurate
    that attains as much (within .001), and times the attainment of the least accurate that is as accurate."""
    points = [simulate(make_policy(f"fixed@{p.key}", grid, DEADLINE_S * 1e6), scenario).summary() for p in grid.points]
    forms: dict[str, list[float | None]] = {}
    for name in ("whole-queue", "slackfit"):
        attained, accuracy = rows[name][:2]
        equal = [p["accuracy"] for p in points if p["attainment"] >= attained - 1e-3]
        gained = 100 * (accuracy - max(equal)) if equal else None
        times = attained / next(p["attainment"] for p in points if p["accuracy"] >= accuracy)
        forms[name] = [gained, times]
        told = "no fixed point attains as much" if gained is None else f"{gained:+.2f} points at equal attainment"
        print(f"  {name:14} beside fixed points: {told}, {times:.2f} × attainment at equal accuracy "
              "(paper, SlackFit: 4.67 and 2.85)")  # fmt: skip
    return forms


def half_killed() -> dict[str, dict[str, list[float]]]:
    """Attainment and accuracy over 60 s in which four of eight workers die (superserve, §6.4), at two mean rates."""
    grid, found = modelled(12, [1, 2, 4, 8, 16]), {}
    for rate in (2_400, 3_500):
        times_s = Bursty(rate / 4, 3 * rate / 4, 2).times(60.0, seed=1)
        scenario = Scenario.of(times_s, DEADLINE_S, 8, (12.0, 24.0, 36.0, 48.0))
        found[str(rate)] = {}
        for name in ("whole-queue", "slackfit", "mincost", "fixed"):
            figures = simulate(make_policy(name, grid, DEADLINE_S * 1e6), scenario).summary()
            found[str(rate)][name] = [figures["attainment"], figures["accuracy"]]
            print(f"4 of 8 workers killed, {rate}/s: {name:12} attainment {figures['attainment']:.5f}  "
                  f"accuracy {figures['accuracy']:.4f}  (asked: attainment 0.999)")  # fmt: skip
    return found


if __name__ == "__main__":
    main()
