"""Batching policies: what a decision costs, how fast the simulator is, and every policy beside the best possible.

On the measured profile of a supernet in ``datasets/``, and on a modelled one of a wider range (12 points, 1.6 to 8 ms,
a batch of n takes (n + 2) / 3 times). Rates are shares of what the most accurate point can serve, deadlines 1.2 times
its largest call for a measured profile (superserve: 36 ms), so that both are asked the same.
"""

from __future__ import annotations

import json
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.lookahead import with_lookahead
from slotool.scheduling import ControlSpace, EdfQueue, Query
from slotool.scheduling.batching import POLICIES, ControlGrid, make_policy, read_profile
from slotool.simulation import Scenario, optimum_of_one_worker, simulate
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.workloads import ArrivalProcess, Bursty, TimeVarying, read_trace

DEADLINE_S = 0.036
DECISIONS, WAITING, POINTS, SIZES = 2_000, 10_000, 500, 16
DATASETS = Path(__file__).parents[1] / "datasets"
SHARES, CV2 = (0.3, 0.9, 1.3), (2, 8)
# Deadlines that a trace lasts: 4 s of 36 ms; a day of Azure Functions, 120 s of them.
LASTS, DAY_LASTS = 111, 3_333
# Deadlines that arrivals are known ahead, and the most queries for which that is tried: it takes 10 ms a decision.
AHEAD, LOOKED_AHEAD = (0.0, 0.25, 1.0), 5_000
KILLED_SHARES = (0.36, 0.525)


@dataclass(frozen=True)
class Setting:
    """A profile and what is asked of it; ``unit``: queries/s that its most accurate point can serve."""

    name: str
    grid: ControlGrid
    deadline_s: float

    @property
    def unit(self) -> float:
        return float(self.grid.best_rate_per_s[-1])


def main() -> None:
    costs = decision_costs()
    speed = simulator_speed()
    figures = {"decision_us": costs, **speed}
    for setting in [*measured(), Setting("modelled", modelled(12, [1, 2, 4, 8, 16]), DEADLINE_S)]:
        grid = setting.grid
        print(f"\n== {setting.name} profile: {len(grid.points)} points, accuracy {grid.accuracy[0]:.4f} to "
              f"{grid.accuracy[-1]:.4f}, {grid.fastest_us:.0f} to {grid.latency_us.max():.0f} µs a call, "
              f"{grid.best_rate_per_s[-1]:.0f} to {grid.best_rate_per_s.max():.0f} queries/s, "
              f"deadline {1e3 * setting.deadline_s:.3g} ms")  # fmt: skip
        rows, forms = sweep(setting)
        figures[setting.name] = {"sweep": rows, "two_forms": forms, "killed": half_killed(setting)}
    print(json.dumps({"benchmark": "scheduling", **figures}))


def measured() -> list[Setting]:
    """The last of the supernets' profiles that are shipped; medians, as the optimum's calls take what is planned."""
    tables = sorted(DATASETS.glob("*-supernet-latency.parquet"))
    if not tables:
        print(f"no measured profile: no *-supernet-latency.parquet in {DATASETS}")
        return []
    chosen = tables[-1]
    outcomes = chosen.with_name(chosen.name.replace("-latency", "-outcomes"))
    profile = read_profile(LatencyTable.load(chosen), OutcomeTable.load(outcomes), quantile=0.5)
    for remark in profile.grid.remarks:
        print(f"{chosen.name}: {remark}")
    return [Setting(chosen.stem.removesuffix("-latency"), profile.grid, 1.2e-6 * float(profile.grid.latency_us.max()))]


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
        # Far enough apart that the fastest batches, 600 µs a query, can serve them all: nothing is given up early.
        queue.push(Query(str(i), 100.0 * i, 1_000.0 * i + 1e6))
    figures = {}
    for name in POLICIES:
        policy = make_policy(name, grid, 1e6)
        taken = []
        for i in range(DECISIONS):
            began = time.perf_counter()
            policy.decide(980_000.0 + i, queue)
            taken.append(1e6 * (time.perf_counter() - began))
        figures[name] = [float(np.median(taken)), float(np.quantile(taken, 0.99))]
        print(f"decide {name:12} p50 {figures[name][0]:6.1f} µs, p99 {figures[name][1]:6.1f} µs (target: 20 and 100)")
    return figures


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
    print(f"peak memory {peak_gb:.2f} GB (target: 4)")
    return {**speeds, "peak_gb": peak_gb}


def sweep(setting: Setting) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, list[float | None]]]]:
    """Per trace and policy: attainment, accuracy of those in time, effective accuracy, regret. One worker."""
    grid, results, forms = setting.grid, {}, {}
    deadline_us = setting.deadline_s * 1e6
    fixed = [f"fixed@{grid.points[i].key}" for i in (0, len(grid.points) // 2)]
    for trace, times_s in traces(setting).items():
        scenario = Scenario.of(times_s, setting.deadline_s)
        best = optimum_of_one_worker(grid, scenario, steps=144)
        most = optimum_of_one_worker(all_alike(grid), scenario, steps=144)
        print(f"\n{trace}: {len(scenario):,} queries; best possible {best.reached / len(scenario):.4f} to "
              f"{best.bound / len(scenario):.4f}, attainment {most.reached / len(scenario):.4f} to "
              f"{most.bound / len(scenario):.4f}")  # fmt: skip
        results[trace] = {
            "best": [best.bound / len(scenario), most.reached / len(scenario), most.bound / len(scenario)]
        }
        for name in (*POLICIES, *fixed):
            figures = simulate(make_policy(name, grid, deadline_us), scenario).summary()
            regret = best.bound / len(scenario) - figures["effective_accuracy"]
            row = [figures["attainment"], figures["accuracy"], figures["effective_accuracy"], regret]
            results[trace][name] = row
            print(f"  {name:24} attainment {row[0]:.4f}  accuracy {row[1]:.4f}  effective {row[2]:.4f}  "
                  f"regret {row[3]:.4f}  {row[2] * len(scenario) / best.bound:.2%} of the best")  # fmt: skip
        if len(scenario) <= LOOKED_AHEAD:
            look_ahead(setting, scenario, best.bound, results[trace])
        forms[trace] = two_forms(setting, scenario, results[trace])
    return results, forms


def look_ahead(setting: Setting, scenario: Scenario, bound: float, figures: dict[str, list[float]]) -> None:
    """Rows of a policy that knows some arrivals beforehand: where the distance to the best possible comes from."""
    for ahead in AHEAD:
        effective, attained = with_lookahead(setting.grid, scenario, ahead)
        name = f"knows {ahead:g} deadlines ahead"
        figures[name] = [attained, effective / attained, effective, bound / len(scenario) - effective]
        print(f"  {name:24} attainment {attained:.4f}  accuracy {effective / attained:.4f}  effective {effective:.4f}  "
              f"regret {figures[name][3]:.4f}  {effective * len(scenario) / bound:.2%} of the best")  # fmt: skip


def all_alike(grid: ControlGrid) -> ControlGrid:
    """One point of accuracy 1, as quick as the quickest: its best utility is the most that can be in time."""
    point = OperatingPoint.of(depth=0)
    times = {(point, int(n)): float(t) for n, t in zip(grid.sizes, grid.quickest_us, strict=True)}
    return ControlGrid(ControlSpace([point], times, {point: 1.0}))


def traces(setting: Setting) -> dict[str, np.ndarray]:
    """Arrivals in seconds, and a day of Azure Functions if its counts are at hand."""
    unit, lasts_s = setting.unit, LASTS * setting.deadline_s
    drawn: dict[str, ArrivalProcess] = {
        f"bursty {share:g}, CV² {cv2}": Bursty(share * unit / 4, 3 * share * unit / 4, cv2)
        for share in SHARES
        for cv2 in CV2
    }
    low, high = SHARES[0] * unit, SHARES[-1] * unit
    for name, takes in (("slowly", 0.5), ("at once", 0.025)):
        pace = (high - low) / (takes * lasts_s)
        ramp = TimeVarying(low, high, pace, cv2=8, starts_s=lasts_s / 4)
        drawn[f"{SHARES[0]:g} to {SHARES[-1]:g} {name}"] = ramp
    times = {name: process.times(lasts_s, seed=1) for name, process in drawn.items()}
    counts = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "traces" / "azure_functions_2019_1000.csv"
    if not counts.exists():
        print(f"no Azure trace: {counts} is not there")
        return times
    for share in (0.6, 1.2):
        day = read_trace(counts, share * unit)
        times[f"Azure Functions, {share:g}"] = day.times(DAY_LASTS * setting.deadline_s, seed=1)
    return times


def two_forms(setting: Setting, scenario: Scenario, rows: dict[str, list[float]]) -> dict[str, list[float | None]]:
    """Per policy, beside the fixed points, in the forms of superserve §6.3: points of accuracy above the most accurate
    that attains as much (within .001), and times the attainment of the least accurate that is as accurate."""
    grid = setting.grid
    fixed = [make_policy(f"fixed@{p.key}", grid, setting.deadline_s * 1e6) for p in grid.points]
    points = [simulate(policy, scenario).summary() for policy in fixed]
    forms: dict[str, list[float | None]] = {}
    for name in ("hindsight", "value-iteration", "slackfit"):
        attained, accuracy = rows[name][:2]
        equal = [p["accuracy"] for p in points if p["attainment"] >= attained - 1e-3]
        gained = 100 * (accuracy - max(equal)) if equal else None
        times = attained / next(p["attainment"] for p in points if p["accuracy"] >= accuracy)
        forms[name] = [gained, times]
        told = "no fixed point attains as much" if gained is None else f"{gained:+.2f} points at equal attainment"
        print(f"  {name:14} beside fixed points: {told}, {times:.2f} × attainment at equal accuracy "
              "(paper, SlackFit: 4.67 and 2.85)")  # fmt: skip
    return forms


def half_killed(setting: Setting) -> dict[str, dict[str, list[float]]]:
    """Attainment and accuracy while four of eight workers die, one by one (superserve, §6.4), at two mean rates: shares
    of what the four that live could serve in their fastest batches."""
    grid, results = setting.grid, {}
    lasts_s = DAY_LASTS / 2 * setting.deadline_s
    deaths = tuple(lasts_s * part / 5 for part in range(1, 5))
    for share in KILLED_SHARES:
        rate = share * 4 * float(grid.best_rate_per_s.max())
        times_s = Bursty(rate / 4, 3 * rate / 4, 2).times(lasts_s, seed=1)
        scenario = Scenario.of(times_s, setting.deadline_s, 8, deaths)
        results[f"{rate:.0f}"] = {}
        for name in ("hindsight", "value-iteration", "slackfit", "mincost", "fixed"):
            figures = simulate(make_policy(name, grid, setting.deadline_s * 1e6), scenario).summary()
            results[f"{rate:.0f}"][name] = [figures["attainment"], figures["accuracy"]]
            print(f"4 of 8 workers killed, {rate:.0f}/s: {name:12} attainment {figures['attainment']:.5f}  "
                  f"accuracy {figures['accuracy']:.4f}  (target: attainment 0.999)")  # fmt: skip
    return results


if __name__ == "__main__":
    main()
