"""Latencies at batch sizes that no label had: those learnt, scaled operator by operator by a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.features.type_costs import batch_cost_s
from slotool.predictors.trained.artifact import Predictions, TrainedPredictor
from slotool.predictors.trained.explanation import Explanation


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
