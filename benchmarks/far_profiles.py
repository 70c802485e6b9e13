"""Policies on random profiles whose points may lie far apart, beside the offline optimum: where does each fail?

Two to eight points of 0.2 to 200 ms and accuracies of .1 to .99; batches of up to 1, 4 or 16, of which each example
takes a tenth to all of a call for one more; deadlines of 1.1 to 20 of the longest calls; Poisson, bursty and ramping
arrivals at .1 to 1.2 of what a random point can serve, for 12 deadlines but at most 5,000 requests. One worker.
Then as many such profiles with deadlines of 20 to 2,000 of the longest calls, as networks of microseconds have them,
and Poisson arrivals of 20,000 requests: there hundreds wait, and no dynamic program says what is possible.
``SLOTOOL_BENCH_PROFILES``: how many (40).
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from slotool.scheduling import ControlSpace
from slotool.scheduling.batching import ControlGrid, make_policy
from slotool.simulation import Scenario, optimum_of_one_worker, simulate
from slotool.tables import OperatingPoint
from slotool.workloads import ArrivalProcess, Bursty, Poisson, TimeVarying

POLICIES = ("slackfit", "value-iteration", "hindsight")
SEED, STEPS = 11, 512
DEADLINES, MIN_REQUESTS, MAX_REQUESTS = 12, 500, 5_000
LONG_REQUESTS = 20_000
# A share of the optimum by which a policy is worse than SlackFit.
WORSE = 0.002


def main() -> None:
    rows = [case(seed) for seed in range(int(os.environ.get("SLOTOOL_BENCH_PROFILES", "40")))]
    shares = {name: np.array([row[name]["share"] for row in rows]) for name in POLICIES}
    in_time = {name: np.array([row[name]["attainment"] for row in rows]) for name in POLICIES}
    figures = {}
    # SlackFit may drop requests and answer the others better: then it is no baseline of one that answers all.
    fair = in_time["slackfit"] >= 0.999
    for name in POLICIES:
        share = shares[name]
        least, low, quarter, middle = np.quantile(share, [0.0, 0.05, 0.25, 0.5])
        worse = share < shares["slackfit"] - WORSE
        figures[name] = {"mean": float(share.mean()), "min": float(least), "p5": float(low), "median": float(middle),
                       "attainment": float(in_time[name].mean()), "worse": int(worse.sum()),
                       "worse_fairly": int((worse & fair).sum())}  # fmt: skip
        print(f"{name:16} share of the best possible: mean {share.mean():.4f}, least {least:.4f}, 5 % {low:.4f}, "
              f"25 % {quarter:.4f}, median {middle:.4f}; in time {in_time[name].mean():.4f}; worse than SlackFit by "
              f"more than {WORSE:g}: {worse.sum()} of {len(rows)}, {(worse & fair).sum()} where that answers .999 in "
              "time")  # fmt: skip
    for at in np.argsort(shares["hindsight"] - shares["slackfit"])[:5]:
        print(f"  {json.dumps(rows[int(at)])}")
    long = long_deadlines(len(rows))
    print(
        json.dumps(
            {"benchmark": "far_profiles", "profiles": len(rows), "fair": int(fair.sum()), **figures, "long": long}
        )
    )


def long_deadlines(profiles: int) -> dict[str, Any]:
    """Effective accuracies of the policies where a deadline is as long as tens to thousands of calls."""
    shares: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(profiles):
        random = np.random.default_rng((SEED, 1, seed))
        grid = profile(random)
        deadline_us = float(grid.latency_us.max()) * float(np.exp(random.uniform(np.log(20.0), np.log(2_000.0))))
        rate_per_us = 1e-6 * float(random.uniform(0.1, 1.2) * random.choice(grid.best_rate_per_s))
        times_us = np.cumsum(random.exponential(1.0 / rate_per_us, LONG_REQUESTS))
        scenario = Scenario.of(times_us / 1e6, deadline_us / 1e6)
        for name in POLICIES:
            figures = simulate(make_policy(name, grid, deadline_us), scenario).summary()
            shares[name].append(figures["effective_accuracy"])
    best = np.max(list(shares.values()), axis=0)
    long = {
        name: {"mean": float(np.mean(of)), "lost_mean": float((best - of).mean()), "lost_max": float((best - of).max())}
        for name, of in shares.items()
    }
    for name, of in long.items():
        print(f"{name:16} deadlines of 20 to 2,000 calls: effective accuracy {of['mean']:.4f} on average, below the "
              f"best of the three by {of['lost_mean']:.4f}, at most {of['lost_max']:.4f}")  # fmt: skip
    return long


def case(seed: int) -> dict[str, Any]:
    """A random profile with its traffic, and what each policy makes of it."""
    random = np.random.default_rng((SEED, seed))
    grid = profile(random)
    longest_us = float(grid.latency_us.max())
    deadline_s = 1e-6 * longest_us * float(np.exp(random.uniform(np.log(1.1), np.log(20.0))))
    rate = float(random.uniform(0.1, 1.2) * random.choice(grid.best_rate_per_s))
    rate = min(rate, MAX_REQUESTS / DEADLINES / deadline_s)
    lasts_s = max(DEADLINES * deadline_s, MIN_REQUESTS / rate)
    process = traffic(rate, lasts_s, random)
    scenario = Scenario.of(process.times(lasts_s, seed), deadline_s)
    best = optimum_of_one_worker(grid, scenario, STEPS).reached
    row: dict[str, Any] = {
        "seed": seed, "ms": (1e-3 * grid.latency_us[:, 0]).round(2).tolist(),
        "accuracy": grid.accuracy.round(2).tolist(),
        "sizes": grid.sizes.tolist(), "deadline_ms": round(1e3 * deadline_s, 1), "arrivals": process.name,
        "load": round(rate / float(grid.best_rate_per_s.max()), 4), "requests": len(scenario),
    }  # fmt: skip
    for name in POLICIES:
        figures = simulate(make_policy(name, grid, 1e6 * deadline_s), scenario).summary()
        share = figures["effective_accuracy"] * len(scenario) / best
        row[name] = {"share": round(share, 4), "attainment": round(figures["attainment"], 4)}
    return row


def profile(random: np.random.Generator) -> ControlGrid:
    count, sizes = int(random.integers(2, 9)), ((1,), (1, 2, 4), (1, 2, 4, 8, 16))[int(random.integers(3))]
    times_us = np.sort(np.exp(random.uniform(np.log(200.0), np.log(200_000.0), count)))
    accuracy, once = np.sort(random.uniform(0.1, 0.99, count)), random.uniform(0.0, 0.9)
    points = [OperatingPoint.of(depth=i) for i in range(count)]
    latency_us = {
        (p, n): float(times_us[i] * (once + (1.0 - once) * n)) for i, p in enumerate(points) for n in sizes
    }  # fmt: skip
    return ControlGrid(ControlSpace(points, latency_us, dict(zip(points, accuracy.tolist(), strict=True))))


def traffic(rate: float, lasts_s: float, random: np.random.Generator) -> ArrivalProcess:
    kind, cv2 = int(random.integers(3)), int(random.integers(2, 17))
    if kind == 0:
        return Poisson(rate)
    if kind == 1:
        return Bursty(rate / 4, 3 * rate / 4, cv2)
    takes_s = lasts_s * float(random.choice([0.5, 0.025]))
    return TimeVarying(0.3 * rate, 1.3 * rate, rate / takes_s, cv2=cv2, starts_s=lasts_s / 4)


if __name__ == "__main__":
    main()
