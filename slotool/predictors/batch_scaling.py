"""Latencies at batch sizes that no label had: those learnt, scaled operator by operator by a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.explanation import Explanation
from slotool.predictors.trained import Predictions, TrainedPredictor
from slotool.predictors.typecosts import batch_cost_s


def scaled_to_batch(
    trained: TrainedPredictor[OperatorGraph], graphs: Sequence[OperatorGraph], batch_size: int
) -> Predictions:
    """What ``trained`` predicts, at another batch size than that of its labels; no answer has an interval.

    Each operator's share of the latency grows as its cost on a neutral roofline: FLOPs and what it reads and writes
    with the batch, its weights and the call not. Where the operator takes longer than there, the rest is computing
    too, and grows. What a call of the network costs stays.
    """
    learnt = trained.setting.batch_size
    predictions = trained.predict(graphs)
    latency_s = []
    for graph, answer_s in zip(graphs, predictions.latency_s.tolist(), strict=True):
        found = Explanation.of(trained.predictor, graph, learnt, answer_s)
        shares = batch_cost_s(graph, 0) / np.maximum(batch_cost_s(graph, learnt), found.seconds)
        factors = 1.0 + (1.0 - shares) * (batch_size / learnt - 1.0)
        latency_s.append(float(found.seconds @ factors) + found.call_s)
    scaled = replace(predictions, latency_s=np.array(latency_s, dtype=np.float64))
    return scaled.without_interval(f"scaled from batch {learnt} by a roofline, which no label checked")
