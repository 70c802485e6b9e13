"""What an elastic model answers at each operating point, and how long each answer takes: its outcome table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from slotool.data.dataset import Split
from slotool.elastic.model import ElasticModel, confidence
from slotool.errors import InputError
from slotool.machine import collector_off
from slotool.tables import OperatingPoint, OutcomeTable

WARM_UP_CALLS = 20


def evaluate(
    model: ElasticModel,
    split: Split,
    *,
    points: Sequence[OperatingPoint] | None = None,
    repeats: int = 3,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> OutcomeTable:
    """Every example at every point (default: all), one at a time: error 0/1, confidence, median latency of ``repeats``.

    The points take turns on each example, so that drift of the machine hits all alike. ``progress`` is called per
    example. Versions are point keys; a family's are its plain version names. Raises ``InputError`` when the data do
    not have the model's input shape.
    """
    chosen = tuple(points or model.points)
    if tuple(split.x.shape[1:]) != tuple(model.input_shape):
        raise InputError(f"{model.name} takes inputs {model.input_shape}, the data set has {split.x.shape[1:]}")
    for point in chosen:
        model.require(point)
        for _ in range(WARM_UP_CALLS):
            model.forward(split.x[:1], point)
    logits = np.empty((len(chosen), len(split), model.classes), dtype=np.float32)
    latency_s = np.empty((len(chosen), len(split), repeats))
    with collector_off():
        for i in range(len(split)):
            x = split.x[i : i + 1]
            for repeat in range(repeats):
                for p, point in enumerate(chosen):
                    started = time.perf_counter()
                    logits[p, i] = model.forward(x, point)[0]
                    latency_s[p, i, repeat] = time.perf_counter() - started
            progress()
    return _table(chosen, split, logits, np.median(latency_s, axis=2), provenance)


def version_name(point: OperatingPoint) -> str:
    """What outcome tables call a point: a family's plain version name, else the point's key."""
    name = point.get("version")
    return point.key if name is None else str(name)


def accuracy_by_target(
    model: ElasticModel, split: Split, targets: Iterable[float], outcomes: OutcomeTable
) -> list[dict[str, float]]:
    """ACLO (slo-aware-neural-networks, Eq. 2): per accuracy target the cheapest point each input is expected to need.

    Returns per target: the share of inputs it could be met for, the accuracy reached (inputs that cannot meet it are
    answered in full), and mean latency in seconds; errors and latencies are those of ``outcomes``, which ``evaluate``
    made of the same model and split. Empty when the model cannot tell inputs apart.
    """
    expected = [model.expected_accuracy(split.x[i : i + 1]) for i in range(len(split))]
    if any(entry is None for entry in expected):
        return []
    column = {name: i for i, name in enumerate(outcomes.versions)}
    error, latency_s = outcomes.matrix("error"), outcomes.matrix("latency_s")
    rows, every = [], np.arange(len(split))
    for target in targets:
        cheapest = [_cheapest(model, entry or {}, target) for entry in expected]
        at = np.array([column[version_name(point or model.full)] for point in cheapest])
        rows.append(
            {
                "target": target,
                "met_share": float(np.mean([point is not None for point in cheapest])),
                "accuracy": 1.0 - float(error[every, at].mean()),
                "latency_s": float(latency_s[every, at].mean()),
            }
        )
    return rows


def summary(outcomes: OutcomeTable) -> list[dict[str, Any]]:
    """Per version: accuracy and its standard error, mean confidence, median and mean latency in seconds."""
    error, sure, latency_s = (outcomes.matrix(column) for column in ("error", "confidence", "latency_s"))
    return [
        {
            "version": version,
            "accuracy": 1.0 - float(error[:, i].mean()),
            "standard_error": float(error[:, i].std() / np.sqrt(len(error))),
            "confidence": float(sure[:, i].mean()),
            "median_latency_s": float(np.median(latency_s[:, i])),
            "mean_latency_s": float(latency_s[:, i].mean()),
        }
        for i, version in enumerate(outcomes.versions)
    ]


def _cheapest(model: ElasticModel, expected: Mapping[OperatingPoint, float], target: float) -> OperatingPoint | None:
    return next((point for point in model.points if expected.get(point, 0.0) >= target), None)


def _table(
    points: Sequence[OperatingPoint],
    split: Split,
    logits: np.ndarray,
    latency_s: np.ndarray,
    provenance: Mapping[str, Any] | None,
) -> OutcomeTable:
    examples = [str(i) for i in range(len(split))]
    per_point = [
        pd.DataFrame(
            {
                "example": examples,
                "version": version_name(point),
                "error": (logits[p].argmax(axis=1) != split.y).astype(np.float64),
                "confidence": confidence(logits[p]),
                "latency_s": latency_s[p],
            }
        )
        for p, point in enumerate(points)
    ]
    return OutcomeTable(pd.concat(per_point, ignore_index=True), provenance)
