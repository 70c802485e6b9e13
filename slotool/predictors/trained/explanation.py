"""Time of a predicted network by operator and type, and latencies at batch sizes that are scaled by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Predictor
from slotool.predictors.features.type_costs import batch_cost_s
from slotool.predictors.trained.artifact import Predictions, TrainedPredictor

CALL = "calling the network"


@dataclass(frozen=True)
class Explanation:
    """``seconds``: float64 [operators] of ``graph``; ``call_s``: what a call takes whatever the network. Together they
    are ``latency_s``. ``learnt``: whether the predictor itself adds up operators; else its answer is shared out by a
    neutral roofline."""

    graph: OperatorGraph
    latency_s: float
    seconds: np.ndarray
    call_s: float
    learnt: bool

    @classmethod
    def of(
        cls,
        predictor: Predictor[OperatorGraph],
        graph: OperatorGraph,
        batch_size: int = 1,
        answer_s: float | None = None,
    ) -> Explanation:
        """Where ``predictor`` thinks the time of ``graph`` goes, whose latencies are of batches of ``batch_size``.
        ``answer_s``: what was answered, where that may be raised from what it predicts."""
        predicted_s = float(predictor.predict([graph])[0])
        latency_s = predicted_s if answer_s is None else answer_s
        found = predictor.operator_seconds(graph)
        if found is not None:
            found = found * (latency_s / predicted_s)
        else:
            cost_s = batch_cost_s(graph, batch_size)
            return cls(graph, latency_s, latency_s * cost_s / cost_s.sum(), 0.0, False)
        return cls(graph, latency_s, found, max(0.0, latency_s - float(found.sum())), True)

    def by_type(self) -> Mapping[str, tuple[int, float]]:
        """How many operators of each type there are, and their seconds; the most expensive type first, then the
        call."""
        counts: dict[str, tuple[int, float]] = {}
        for operator, seconds in zip(self.graph.operators, self.seconds.tolist(), strict=True):
            number, total = counts.get(operator.op, (0, 0.0))
            counts[operator.op] = number + 1, total + seconds
        found = dict(sorted(counts.items(), key=lambda each: -each[1][1]))
        return {**found, CALL: (1, self.call_s)} if self.call_s else found

    def document(self) -> dict[str, Any]:
        """JSON: by type and by operator, seconds."""
        return {
            "learnt": self.learnt,
            "call_s": self.call_s,
            "by_type": {name: {"operators": n, "latency_s": s} for name, (n, s) in self.by_type().items()},
            "operators": [
                {"name": operator.name, "op": operator.op, "latency_s": seconds}
                for operator, seconds in zip(self.graph.operators, self.seconds.tolist(), strict=True)
            ],
        }


@dataclass(frozen=True)
class BatchScaledPredictor(TrainedPredictor[OperatorGraph]):
    """Predictor at a batch size other than ``learnt``, that of its labels; no prediction has an interval.

    Each operator's share of the latency grows as its cost on a neutral roofline: FLOPs and what it reads and writes
    with the batch, its weights and the call not. Where the operator takes longer than there, the rest is computing
    too, and grows. The cost of a call of the network stays.
    """

    learnt: int = 1

    @classmethod
    def of(cls, trained: TrainedPredictor[OperatorGraph], batch_size: int) -> Self:
        """Return ``trained`` at this batch size."""
        parts = {each.name: getattr(trained, each.name) for each in fields(TrainedPredictor)}
        setting = replace(trained.setting, batch_size=batch_size)
        return cls(**{**parts, "setting": setting}, learnt=trained.setting.batch_size)

    def predict(self, graphs: Sequence[OperatorGraph], unsure: np.ndarray | float = 0.0) -> Predictions:
        predictions = super().predict(graphs, unsure)
        latency_s = []
        for graph, answer_s in zip(graphs, predictions.latency_s.tolist(), strict=True):
            found = Explanation.of(self.predictor, graph, self.learnt, answer_s)
            shares = batch_cost_s(graph, 0) / np.maximum(batch_cost_s(graph, self.learnt), found.seconds)
            factors = 1.0 + (1.0 - shares) * (self.setting.batch_size / self.learnt - 1.0)
            latency_s.append(float(found.seconds @ factors) + found.call_s)
        scaled = replace(predictions, latency_s=np.array(latency_s, dtype=np.float64))
        return scaled.without_interval(f"scaled from batch {self.learnt} by a roofline, which no label checked")
