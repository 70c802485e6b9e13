"""What an SLO-aware network is worth on held-out data: per k, and when it chooses k per input."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.data.dataset import Split
from slotool.elastic.activators.activator import node_count
from slotool.elastic.activators.confidence import least_share, mean_share
from slotool.elastic.activators.slo_nn import SloNN

# Accuracy targets of the sweep: the full network's held-out accuracy less this much.
SLACKS = (0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.003, 0.0)
WARM_UP_CALLS = 20


@dataclass(frozen=True)
class Answers:
    """Predictions of every point on one split: ``predicted`` int64 [points, n]; ``y`` int64 [n].

    ``static``: the same of the static popularity list, each layer's overall ranking for every input.
    """

    predicted: np.ndarray
    static: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, model: SloNN, split: Split) -> Answers:
        predicted = [model.forward(split.x, point).argmax(axis=1) for point in model.points]
        static = [_static_logits(model, split.x, at).argmax(axis=1) for at in range(len(model.points))]
        return cls(np.stack(predicted), np.stack(static), split.y)

    @property
    def correct(self) -> np.ndarray:
        """bool [n, points]."""
        return (self.predicted == self.y).T


def by_point(model: SloNN, answers: Answers, latency_us: Sequence[float]) -> list[dict[str, Any]]:
    """Per point: nodes computed in all activated layers, accuracy, the paired difference to the full network with its
    standard error, accuracy of the rival (the same number of nodes, always the most popular ones), agreement with the
    full network's class, median latency in µs, speedup over the full point."""
    correct = answers.correct
    rows = []
    for at, point in enumerate(model.points):
        lost = correct[:, at].astype(float) - correct[:, -1]
        rows.append(
            {
                "point": point.key,
                "nodes": sum(_nodes(model, at).values()),
                "accuracy": float(correct[:, at].mean()),
                "difference": float(lost.mean()),
                "standard_error": float(lost.std() / np.sqrt(len(lost))),
                "static_accuracy": float((answers.static[at] == answers.y).mean()),
                "agreement": float((answers.predicted[at] == answers.predicted[-1]).mean()),
                "latency_us": float(latency_us[at]),
                "speedup": float(latency_us[-1] / latency_us[at]),
            }
        )
    return rows


def aclo_sweep(model: SloNN, split: Split, answers: Answers, slacks: Sequence[float] = SLACKS) -> list[dict[str, Any]]:
    """ACLO over accuracy targets below the full network's validation accuracy, beside the best k fixed beforehand.

    Both choose by the validation split and are scored on ``split``. Per target: mean k and accuracy reached, and the
    least fixed k whose validation accuracy meets the target with the accuracy it reaches.
    """
    correct, every = answers.correct, np.arange(len(split))
    estimates = model.estimates(split.x)
    rows = []
    for slack in slacks:
        target = float(model.calibration.by_point[-1]) - slack
        threshold = model.calibration.threshold(target)
        assert threshold is not None  # the target is at most the full network's accuracy
        chosen = least_share(estimates, threshold)
        fixed = int((model.calibration.by_point >= target).argmax())
        rows.append(
            {
                "target": target,
                "mean_k": mean_share(model.shares, chosen),
                "accuracy": float(correct[every, chosen].mean()),
                "fixed_k": mean_share(model.shares, np.array([fixed])),
                "fixed_accuracy": float(correct[:, fixed].mean()),
            }
        )
    return rows


def median_latencies_us(calls: Sequence[Callable[[np.ndarray], Any]], x: np.ndarray, queries: int) -> list[float]:
    """Median µs of each call on one query at a time, the calls taking turns so that drift hits all alike.

    ``x``: float32 [n, *input_shape], used round and round for ``queries`` turns, on whatever thread this is.
    """
    taken_s = np.empty((len(calls), queries))
    for call in calls:
        for _ in range(WARM_UP_CALLS):
            call(x[:1])
    was_on = gc.isenabled()
    gc.disable()
    try:
        for turn in range(queries):
            query = x[turn % len(x)][None]
            for at, call in enumerate(calls):
                started = time.perf_counter()
                call(query)
                taken_s[at, turn] = time.perf_counter() - started
    finally:
        if was_on:
            gc.enable()
    return (np.median(taken_s, axis=1) * 1e6).tolist()


def _nodes(model: SloNN, at: int) -> dict[int, int]:
    """Nodes computed per activated layer at point ``at``."""
    if at == len(model.shares):
        return {layer: model.mlp.layers[layer].units for layer in model.activators}
    return {
        layer: max(node_count(model.mlp.layers[layer].units, model.shares[at]), len(activator.ranker.computed_nodes))
        for layer, activator in model.activators.items()
    }


def _static_logits(model: SloNN, x: np.ndarray, at: int) -> np.ndarray:
    """float32 [n, classes] with the most popular nodes of each layer instead of this input's."""
    nodes, last = _nodes(model, at), len(model.mlp.layers) - 1
    values = x.reshape(len(x), -1)
    for at_layer, layer in enumerate(model.mlp.layers):
        values = layer.pre_activations(values)
        if at_layer in nodes:
            values[:, model.activators[at_layer].lists.overall[nodes[at_layer] :]] = -np.inf
        if at_layer < last:
            values = np.maximum(values, 0.0)
    return values
