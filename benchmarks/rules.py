"""Tolerance tiers: is the promise kept, how tight is it, what does it save, how fast are rules made.

``python -m benchmarks rules`` draws 1,000 tables of the smallest size and fewer of the others; ``SLOTOOL_BENCH_TABLES``
names another number, ``SLOTOOL_BENCH=full`` draws 1,000 tables everywhere. The peer
of the first two is the paper's bootstrap, that of the last its loop written plainly; the floor of the bound is what
the normal distribution gives.
"""

from __future__ import annotations

import json
import math
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest, norm

from benchmarks.rule_populations import POPULATIONS, excesses_over_bound, population_outcomes
from slotool.rules import Problem, from_point, generate_rules
from slotool.rules.evidence.betting import betting_p_value
from slotool.rules.evidence.counting import paired_p_value
from slotool.rules.generate.certified import MISS
from slotool.tables import OutcomeTable

FULL = os.environ.get("SLOTOOL_BENCH") == "full"
DRAWS = int(os.environ.get("SLOTOOL_BENCH_TABLES", "1000"))
DELTA = 0.05
TIERS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
PAPER = {"response-time": (0.19, 0.45, 0.60), "cost": (0.21, 0.60, 0.70)}
TRUTH = 200_000
PLAIN_TRIALS, PLAIN_CANDIDATES = 2, 4
Test = Callable[[np.ndarray, np.ndarray, float, float], float]


def main() -> None:
    figures = {"validity": validity(), "tightness": tightness(), "savings": savings(), "speed": speed()}
    print(json.dumps({"benchmark": "rules", "full": FULL, **figures}))


def validity() -> list[dict[str, Any]]:
    """Per population, size and method the share of tables from which some tier came out that exceeds its tolerance."""
    print(f"share of tables with a tier beyond its tolerance; promised: at most {DELTA:.0%} (95 % interval)")
    rows = []
    sizes = {500: DRAWS, 5_000: DRAWS if FULL else DRAWS // 5, 50_000: DRAWS if FULL else DRAWS // 50}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name in POPULATIONS:
            for examples, draws in sizes.items():
                for method in ("certified", "bootstrap", "naive"):
                    made = draws if method != "bootstrap" else max(20, draws // (1 if FULL else 10))
                    broken = sum(pool.map(partial(_broken, name, examples, method), range(made), chunksize=5))
                    interval = binomtest(broken, made).proportion_ci(method="exact")
                    rows.append({"population": name, "examples": examples, "method": method, "draws": made,
                                 "share": broken / made, "low": interval.low, "high": interval.high})  # fmt: skip
                    print(f"{name:15} n = {examples:6,} {method:10} {broken:4} of {made:5,}: {broken / made:7.2%} "
                          f"({interval.low:.2%} – {interval.high:.2%})")  # fmt: skip
    return rows


def _broken(name: str, examples: int, method: str, seed: int) -> bool:
    population = POPULATIONS[name]
    outcomes = population_outcomes(*population(np.random.default_rng([1, seed]), examples))
    rules = generate_rules(
        outcomes, TIERS, ["cost"], 1.0 - DELTA, method, "absolute", policies=["osfa", "seq"], thresholds=10, seed=seed
    )
    # A tier is exceeded when its ensemble is: bounds are at most tolerances, and for the naive one just what was seen.
    # An ensemble that no tier promises cannot exceed one.
    bounded = {rule.point: rule.bound for rule in rules.rules if rule.bound is not None}
    tolerances = [
        min((rule.tolerance for rule in rules.rules if rule.point == point and rule.promised), default=math.inf)
        for point in bounded
    ]
    excesses = excesses_over_bound(rules, _truth(name))
    return any(e.mean() + bound > t + 1e-12 for e, bound, t in zip(excesses, bounded.values(), tolerances, strict=True))


@cache
def _truth(name: str) -> OutcomeTable:
    return population_outcomes(*POPULATIONS[name](np.random.default_rng(0), TRUTH))


def tightness() -> dict[str, float]:
    """Mean excess of the bound over the truth: 5,000 examples, 2 % against 1.5 % discordant pairs, confidence 0.999."""
    draw, certified, bets, bootstrap = np.random.default_rng(0), [], [], []
    for _ in range(200):
        u = draw.random(5000)
        error, best = (u < 0.02).astype(float), ((u >= 0.02) & (u < 0.035)).astype(float)
        certified.append(degradation_bound(error, best, 0.001) - 0.005)
        bets.append(degradation_bound(error, best, 0.001, betting) - 0.005)
        tenths = (error - best)[draw.integers(0, 5000, (200, 500))].mean(axis=1)
        bootstrap.append(tenths.max() - 0.005)
    floor = float(norm.isf(0.001) * np.sqrt((0.035 - 0.005**2) / 5000))
    means = {name: float(np.mean(own)) for name, own in (("certified", certified), ("bets", bets))}
    figures = {**means, "bootstrap": float(np.mean(bootstrap)), "normal": floor}
    print(f"mean excess of the bound, points: certified {figures['certified']:.3%} (target: 0.95 %), bets "
          f"{figures['bets']:.3%}, paper's bootstrap of 200 trials {figures['bootstrap']:.3%}, floor (normal "
          f"distribution) {floor:.3%}; {figures['certified'] / floor:.2f} x the floor")  # fmt: skip
    return figures


def counting(error: np.ndarray, best_error: np.ndarray, tolerance: float, alpha: float) -> float:
    """P-value of the exact test, as of ``degradation_bound``."""
    return paired_p_value(error, best_error, tolerance, "absolute", MISS * alpha)


def betting(error: np.ndarray, best_error: np.ndarray, tolerance: float, alpha: float) -> float:
    """P-value of a bet, as of ``degradation_bound``."""
    return betting_p_value(error, best_error, tolerance, "absolute", alpha, 0.035, 100.0)


def degradation_bound(error: np.ndarray, best_error: np.ndarray, alpha: float, p_value: Test = counting) -> float:
    """The least absolute tolerance that a test shows to be kept at level ``alpha``, or infinity.

    Tolerances are tried from 0.995 down, each 0.995 times the one before, until one is not shown to be kept:
    fixed-sequence testing, so that the bound holds with probability 1 − ``alpha``.
    """
    tolerance, shown = 0.995, float("inf")
    while tolerance > 1e-6 and p_value(error, best_error, tolerance, alpha) <= alpha:
        tolerance, shown = tolerance * 0.995, tolerance
    return shown


def savings() -> list[dict[str, Any]]:
    """Saved at 1, 5 and 10 % relative tolerance on the outcome tables there are, beside the paper's."""
    rows = []
    tables = [Path("datasets/digits-family-outcomes.parquet"), *map(Path, _extra_tables())]
    for path in tables:
        outcomes = OutcomeTable.load(path)
        for kind in ("relative", "absolute"):
            rules = generate_rules(outcomes, (0.01, 0.05, 0.1), tolerance_kind=kind, confidence=0.95)
            for objective, paper in PAPER.items():
                tiers = [rule for rule in rules.rules if rule.objective == objective]
                base = rules.config["best_cost" if objective == "cost" else "best_response_time_s"]
                saved = [1 - (t.cost if objective == "cost" else t.response_time_s) / base for t in tiers]
                rows.append({"table": path.name, "kind": kind, "objective": objective, "saved": saved})
                print(f"{path.name} ({rules.sample_size:,} examples, {kind}), {objective} saved at 1, 5, 10 %: "
                      + ", ".join(f"{s:.0%}" for s in saved) + "; the paper's "
                      + ", ".join(f"{s:.0%}" for s in paper))  # fmt: skip
    return rows


def _extra_tables() -> list[str]:
    """More outcome tables, named in SLOTOOL_OUTCOMES, separated by colons (of Fashion-MNIST, say)."""
    return [path for path in os.environ.get("SLOTOOL_OUTCOMES", "").split(":") if path]


def speed() -> dict[str, Any]:
    """45,000 requests × 7 versions × 42 pairs × 100 thresholds × 3 policies × 101 tolerances, and the plain loop."""
    outcomes, tolerances = _seven_versions(45_000), [i / 1000 for i in range(101)]
    seconds: dict[str, float] = {}
    for method in ("certified", "naive", "bootstrap"):
        started, cpu_s = time.perf_counter(), time.process_time()
        rules = generate_rules(outcomes, tolerances, method=method, thresholds=100)
        seconds[method], cpu_s = time.perf_counter() - started, time.process_time() - cpu_s
        candidates, trials = rules.config["candidates"], rules.config.get("trials", 0)
        print(
            f"{method}: {candidates:,} candidates in {seconds[method]:.1f} s (target: 60 s), {cpu_s:.1f} s of processor"
        )
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    plain_s = _plain_loop(outcomes) * candidates * trials
    print(f"peak memory {memory_gb:.2f} GB (target: 2 GB); the paper's loop written plainly, {PLAIN_TRIALS} trials of "
          f"{PLAIN_CANDIDATES} candidates timed, would take {plain_s / 3600:.1f} h for the same {trials:,} trials: "
          f"{plain_s / seconds['bootstrap']:,.0f} x")  # fmt: skip
    return {"seconds": seconds, "memory_gb": memory_gb, "trials": trials, "plain_s": plain_s}


def _plain_loop(outcomes: OutcomeTable) -> float:
    """Seconds per trial and candidate of the listing's simulate, request by request."""
    candidates = Problem(outcomes, (0.1,), thresholds=100).candidates()
    chosen = [candidates.policy(int(i)) for i in np.linspace(10, len(candidates) - 1, PLAIN_CANDIDATES)]
    cells = {v: outcomes.rows[outcomes.rows["version"] == v].to_dict("records") for v in outcomes.versions}
    draw, started = np.random.default_rng(0), time.perf_counter()
    for policy in chosen:
        first, second = (cells[policy.versions[at]] for at in (0, -1))
        point = from_point(policy.point).point
        threshold, together = float(point.get("threshold")), point.get("policy") == "conc"
        for _ in range(PLAIN_TRIALS):
            sample = [int(i) for i in draw.integers(0, len(outcomes.examples), len(outcomes.examples) // 10)]
            total = [0.0, 0.0, 0.0]
            for i in sample:
                a, b = first[i], second[i]
                if a["confidence"] >= threshold:
                    ran = min(a["latency_s"], b["latency_s"]) / b["latency_s"] * b["cost"] if together else 0.0
                    answer = (a["error"], a["latency_s"], a["cost"] + ran)
                else:
                    surer = b if b["confidence"] >= a["confidence"] else a
                    both = max(a["latency_s"], b["latency_s"]) if together else a["latency_s"] + b["latency_s"]
                    answer = (surer["error"], both, a["cost"] + b["cost"])
                total = [t + x for t, x in zip(total, answer, strict=True)]
    return (time.perf_counter() - started) / (PLAIN_TRIALS * PLAIN_CANDIDATES)


def _seven_versions(examples: int) -> OutcomeTable:
    draw = np.random.default_rng(0)
    hard, frames = draw.beta(0.4, 3.0, examples), []
    for v in range(7):
        values = {
            "example": np.arange(examples).astype(str),
            "version": f"v{v}",
            "error": (draw.random(examples) < np.clip(hard * (3.4 - 0.25 * v), 0, 1)).astype(float),
            "confidence": 1.0 - 0.9 * hard * draw.uniform(0.7, 1.0, examples),
            "latency_s": 0.001 * 1.4**v * draw.lognormal(0.0, 0.1, examples),
        }
        frames.append(pd.DataFrame(values))
    return OutcomeTable(pd.concat(frames, ignore_index=True))
