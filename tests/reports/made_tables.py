"""Small tables whose figures are known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from slotool.predictors.scoring import PredictionsTable
from slotool.rules.ruleset.rules import Rule, RuleSet
from slotool.rules.switching import LoadTest, SwitchingPlan
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.workloads import RequestLog


def predictions(n: int = 40) -> PredictionsTable:
    """Every other prediction is exact, the rest 30 % too high."""
    measured_s = np.geomspace(2e-5, 3e-2, n)
    predicted_s = measured_s * np.where(np.arange(n) % 2, 1.3, 1.0)
    return PredictionsTable.of(
        {
            "graph_id": f"graph-{i}",
            "kind": "mlp" if i < n // 2 else "cnn",
            "measured_s": measured_s[i],
            "predicted_s": predicted_s[i],
            "low_s": predicted_s[i] / 1.5,
            "high_s": predicted_s[i] * 1.5,
        }
        for i in range(n)
    )


def outcomes(versions: dict[str, tuple[int, float]], provenance: dict[str, Any]) -> OutcomeTable:
    """Per version: how many of 100 examples it gets wrong, and its latency in seconds."""
    rows = [
        {"example": str(i), "version": name, "error": float(i < wrong), "confidence": 0.9, "latency_s": latency_s}
        for name, (wrong, latency_s) in versions.items()
        for i in range(100)
    ]
    return OutcomeTable(pd.DataFrame(rows), provenance)


def slo_nn_outcomes() -> OutcomeTable:
    versions = {"k=0.25": (20, 10e-6), "k=0.5": (3, 15e-6), "full": (2, 30e-6)}
    return outcomes(versions, {"subject": "slo-nn", "kind": "slo-nn", "data": "digits", "split": "test"})


def family_outcomes() -> OutcomeTable:
    """``clumsy`` is slower than ``small`` and no better."""
    versions = {"small": (10, 20e-6), "clumsy": (12, 25e-6), "large": (1, 80e-6)}
    return outcomes(versions, {"subject": "family", "kind": "family", "data": "digits", "split": "test"})


def request_log(n: int = 1000, *, failed: int = 0, deadline_s: float | None = 0.02) -> RequestLog:
    """Latencies of 1 ms, 2 ms … cycling to 10 ms; the first ``failed`` requests got 503."""
    rows = [
        {
            "intended_s": i / 100,
            "sent_s": i / 100,
            "done_s": i / 100 + 0.001 * (1 + i % 10),
            "status": 503 if i < failed else 200,
            "label": 1,
            "answer": -1 if i < failed else 1,
            "point": "" if i < failed else "k=0.5",
            "deadline_s": deadline_s,
            "error": "the queue is full" if i < failed else "",
        }
        for i in range(n)
    ]
    return RequestLog.of(rows, {"subject": "slo-nn", "endpoint": "infer", "seed": 3})


def rule_set() -> RuleSet:
    points = [
        OperatingPoint.of(policy="osfa", version="large"),
        OperatingPoint.of(policy="osfa", version="large"),
        OperatingPoint.of(policy="seq", first="small", second="large", threshold=0.7),
    ]
    rules = [
        Rule(
            id=f"{objective}-{tolerance:g}",
            objective=objective,
            tolerance=tolerance,
            point=point,
            degradation=0.0 if tolerance < 0.02 else 0.01,
            bound=0.0 if tolerance < 0.02 else 0.018,
            response_time_s=80e-6 if tolerance < 0.02 else 32e-6,
            cost=4.0 if tolerance < 0.02 else 1.0,
            certified=tolerance >= 0.02,
        )
        for objective in ("response-time", "cost")
        for tolerance, point in zip((0.0, 0.01, 0.02), points, strict=True)
    ]
    return RuleSet("bootstrap", 0.99, "absolute", "large", 0.01, 100, "0" * 64, tuple(rules))


def switching_plan() -> SwitchingPlan:
    """``clumsy`` is kept up to a lower rate than the more accurate ``large``; ``small`` was tried twice."""
    rates = {"small": 900.0, "clumsy": 100.0, "large": 300.0}
    loads = [
        LoadTest("small", 1, 1, 900.0, 0.019, 1.0),
        LoadTest("small", 1, 1, 100.0, 0.004, 1.0),
        LoadTest("small", 2, 1, 300.0, 0.01, 1.0),
        LoadTest("large", 1, 1, 100.0, None, 0.5),
    ]
    accuracy = {"small": 0.8, "clumsy": 0.85, "large": 0.9}
    return SwitchingPlan("family", 0.02, 1, 1, rates, accuracy, tuple(loads), "here")


def latency_table(batch_sizes: tuple[int, ...] = (1,)) -> LatencyTable:
    """Two networks solo, ``b`` twice as slow; ``a`` beside ``b`` takes three times as long; one row has failed."""
    rows: list[dict[str, Any]] = [
        {"subject": name, "batch_size": size, "samples_s": [seconds * size] * 3}
        for name, seconds in (("b", 2e-3), ("a", 1e-3))
        for size in batch_sizes
    ]
    rows.append({"subject": "a", "co_runners": "b", "samples_s": [3e-3] * 3})
    rows.append({"subject": "c", "status": "failed", "reason": "out of memory", "samples_s": []})
    solo_s = [np.full(3, 1e-3) if "co_runners" in row else None for row in rows]
    return LatencyTable(LatencyTable.of(rows).rows.assign(solo_s=solo_s))
